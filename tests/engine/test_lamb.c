/* LAMB under every stage, number of ranks and offload of the state: the bits of the training that
 * is written plainly, whose norms are of whole tensors. */
#include "engine/run/engine_impl.h"
#include "engine/run/store.h"
#include "engine/report.h"
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct offload {
    const char *name;
    const char *keys; /* of zero_optimization; %s is the folder */
    int         least_stage;
} offload;

#define STATE(device, more)                                                                        \
    ", \"offload_optimizer\": {\"device\": \"" device                                              \
    "\", \"nvme_path\": \"%s\", \"durable\": false" more "}"
#define PARAMS(device, more)                                                                       \
    ", \"offload_param\": {\"device\": \"" device "\", \"nvme_path\": \"%s\"" more "}"
#define SMALL_BLOCKS ", \"sub_group_size\": 2048"

static const offload OFFLOADS[] = {
    {"device", "", 0},
    {"device, tiny blocks", ", \"sub_group_size\": 64", 0},
    {"optimizer cpu", SMALL_BLOCKS STATE("cpu", ""), 1},
    {"optimizer cpu, ratio 0.3", SMALL_BLOCKS STATE("cpu", ", \"ratio\": 0.3"), 1},
    {"optimizer cpu, sums on the device", SMALL_BLOCKS STATE("cpu", ", \"accumulate\": \"device\""),
     1},
    {"parameters cpu", PARAMS("cpu", ""), 3},
    {"optimizer nvme", SMALL_BLOCKS STATE("nvme", ""), 1},
    {"optimizer nvme, one buffer", SMALL_BLOCKS STATE("nvme", ", \"buffer_count\": 1"), 1},
    {"both nvme",
     SMALL_BLOCKS STATE("nvme", ", \"gradients\": \"nvme\"") PARAMS("nvme", ", \"max_in_cpu\": 0"),
     3},
};

#define NUM_OFFLOADS (sizeof(OFFLOADS) / sizeof(OFFLOADS[0]))

/* Without checksums in the build the whole state cannot rest on a drive. */
static int is_possible(const offload *what)
{
#ifdef SHERDI_HAVE_XXHASH
    (void)what;
    return 1;
#else
    return strstr(what->keys, "offload_optimizer\": {\"device\": \"nvme\"") == NULL;
#endif
}

static void expect_reference(int world_size, const toy_options *options, const char *name)
{
    toy_result want = {0};
    toy_result got  = {0};

    toy_reference(world_size, options, &want);
    toy_train_threads(world_size, options, &got);
    if (want.fingerprint != got.fingerprint) {
        test_fail(__FILE__, __LINE__,
                  "%s: stage %d, %d ranks, accumulation %d, %s, form %d: fingerprint %016llx; the "
                  "plain training has %016llx",
                  name, options->stage, world_size, options->accumulation,
                  sherd_dtype_name(options->dtype), options->lamb,
                  (unsigned long long)got.fingerprint, (unsigned long long)want.fingerprint);
    }
    CHECK_INT(got.memory.total_planned, got.memory.total_held);
}

static void expect_reference_everywhere(toy_options options)
{
    static const int RANKS[] = {1, 2, 3, 6};
    static int       case_number; /* so that another case has another stage of the same offload */
    char             keys[1024];

    case_number++;
    for (size_t i = 0; i < NUM_OFFLOADS; i++) {
        if (!is_possible(&OFFLOADS[i])) {
            continue;
        }
        (void)snprintf(keys, sizeof(keys), OFFLOADS[i].keys, test_scratch(), test_scratch());
        options.zero_extra = keys;
        for (size_t r = 0; r < 4; r++) {
            for (options.stage = OFFLOADS[i].least_stage;
                 options.stage <= 3 && toy_takes_ranks(RANKS[r]); options.stage++) {
                if ((!options.is_bound || options.stage < 3) &&
                    toy_takes_stage(options.stage, OFFLOADS[i].least_stage,
                                    (int)(i + r) + case_number)) {
                    expect_reference(RANKS[r], &options, OFFLOADS[i].name);
                }
            }
        }
    }
}

static void lamb_bf16_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 1, .lamb = 1});
}

static void lamb_accumulated_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_F16, .clip = 1, .accumulation = 3, .lamb = 1});
}

static void lamb_papers_form_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_F32, .clip = 1, .accumulation = 1, .lamb = 2});
}

static void lamb_bound_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 2, .lamb = 2, .is_bound = 1});
}

static void lamb_deterministic_is_one_training(void)
{
    toy_options options = {
        .dtype = SHERD_BF16, .clip = 1, .lamb = 1, .top_extra = ", \"deterministic\": true"};
    uint64_t want = 0;

    for (int ranks = 1; ranks <= 6; ranks += ranks < 3 ? 1 : 3) {
        for (options.stage = 0; options.stage <= 3; options.stage++) {
            toy_result got;

            options.accumulation = 6 / ranks;
            toy_train_threads(ranks, &options, &got);
            want = want == 0 ? got.fingerprint : want;
            CHECK_INT(want, got.fingerprint);
        }
    }
}

/* Two whole sweeps and nothing else in addition to AdamW's bytes. */
static void check_bytes(sherd_world *world, void *ctx)
{
    rig                      r;
    sherd_step_report        report;
    const sherdi_plan_moves *moves;

    rig_open(&r, world, ctx);
    (void)rig_unit(&r, "a");
    (void)rig_param(&r, 0, "a.w", 48 << 10);
    rig_seal(&r);
    (void)rig_train(&r, 2);
    report = rig_train(&r, 1);
    moves  = sherdi_plan_moves_of(r.engine->plan);
    CHECK_INT(moves->micro[SHERDI_MOVES_DOWN] + moves->step[SHERDI_MOVES_DOWN],
              report.link_down_bytes);
    CHECK_INT(moves->micro[SHERDI_MOVES_UP] + moves->step[SHERDI_MOVES_UP], report.link_up_bytes);
    CHECK_INT(moves->micro[SHERDI_MOVES_READ] + moves->step[SHERDI_MOVES_READ],
              report.nvme_read_bytes);
    CHECK_INT(moves->micro[SHERDI_MOVES_WRITTEN] + moves->step[SHERDI_MOVES_WRITTEN],
              report.nvme_written_bytes);
    if (r.engine->plan->rings[SHERDI_RING_STATE].num_extents > 0 &&
        r.engine->storage.store->tiers[SHERDI_RING_PARAMS] == NULL) {
        size_t state = (48 << 10) / 2 * 12;

        CHECK_INT(2 * state, report.nvme_read_bytes);
        CHECK_INT(state + moves->index_bytes, report.nvme_written_bytes);
    }
    rig_close(&r);
}

static void lamb_bytes_are_as_planned(void)
{
    char keys[1024];

    for (size_t i = 0; i < NUM_OFFLOADS; i++) {
        for (int stage = OFFLOADS[i].least_stage; stage <= 3 && is_possible(&OFFLOADS[i]);
             stage++) {
            rig_options options = {
                .stage = stage, .dtype = SHERD_BF16, .zero = keys, .optimizer = "Lamb"};

            if (!toy_takes_stage(stage, OFFLOADS[i].least_stage, (int)i)) {
                continue;
            }
            (void)snprintf(keys, sizeof(keys), OFFLOADS[i].keys, test_scratch(), test_scratch());
            test_world(2, check_bytes, &options);
        }
    }
}

/* What crosses the wire at a boundary is what the plan says, the norms of LAMB among it. */
static void check_wire(sherd_world *world, void *ctx)
{
    rig      r;
    uint64_t before, after, received;

    rig_open(&r, world, ctx);
    for (int u = 0; u < 3; u++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(&r, name);
        for (int p = 0; p < 4; p++) {
            (void)snprintf(name, sizeof(name), "p%d.%d", u, p);
            (void)rig_param(&r, u, name, (size_t)(777 + 100 * p));
        }
    }
    rig_seal(&r);
    (void)rig_train(&r, 1);
    sherd_world_traffic(world, &before, &received);
    (void)rig_train(&r, 1);
    sherd_world_traffic(world, &after, &received);
    CHECK_INT(sherdi_plan_moves_of(r.engine->plan)->micro[SHERDI_MOVES_WIRE] +
                  sherdi_plan_moves_of(r.engine->plan)->step[SHERDI_MOVES_WIRE],
              after - before);
    rig_close(&r);
}

static void lamb_wire_is_as_planned(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        for (int ranks = 2; ranks <= 7; ranks += 5) {
            rig_options options = {.stage = stage, .dtype = SHERD_BF16, .optimizer = "Lamb"};

            test_world(ranks, check_wire, &options);
        }
    }
}

/* A rate as large as the weights: the ratio is what keeps a tensor from leaving, so it must be
 * there. */
static void check_ratio(sherd_world *world, void *ctx)
{
    rig    r;
    float  before[1000], after[1000];
    double moved = 0, norm = 0;

    rig_open(&r, world, ctx);
    (void)rig_unit(&r, "a");
    (void)rig_param(&r, 0, "a.w", 1000);
    rig_seal(&r);
    rig_values(&r, 0, before);
    (void)rig_train(&r, 1);
    rig_values(&r, 0, after);
    for (int i = 0; i < 1000; i++) {
        norm += (double)before[i] * before[i];
        moved += (double)(after[i] - before[i]) * (after[i] - before[i]);
    }
    /* |step| = lr * sqrt(1 - b2) / (1 - b1) * ratio * |u| = lr * that * |p|, whatever the
     * gradient */
    CHECK(fabs(sqrt(moved / norm) / (0.01 * sqrt(1 - 0.95) / (1 - 0.9)) - 1) < 1e-4);
    rig_close(&r);
}

static void lamb_step_is_a_share_of_the_weights(void)
{
    rig_options options = {.stage = 3, .dtype = SHERD_F32, .optimizer = "Lamb"};

    test_world(3, check_ratio, &options);
}

static const test_case CASES[] = {
    CASE(lamb_bf16_equals_unsharded),
    CASE(lamb_accumulated_equals_unsharded),
    CASE(lamb_papers_form_equals_unsharded),
    CASE(lamb_bound_equals_unsharded),
    CASE(lamb_deterministic_is_one_training),
    CASE(lamb_bytes_are_as_planned),
    CASE(lamb_wire_is_as_planned),
    CASE(lamb_step_is_a_share_of_the_weights),
};

RUN_MAIN(CASES)
