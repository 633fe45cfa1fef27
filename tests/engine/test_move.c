/* An engine that moves between worlds of threads in mid-run has the bits of one that does not. */
#include "engine/elastic/sizes.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/mover.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETERMINISTIC ", \"deterministic\": true"
#define ENCODED(keys) ", \"sherd\": {" keys "}, \"deterministic\": true"

/* An emulated device is slow: it takes one stage of each row, and small parameters. */
static int takes_stage(int stage, int first, int last)
{
    static int row;

    row += stage == first;
    return getenv("SHERD_BACKEND") == NULL || stage == first + row % (last - first + 1);
}

static void expect_same(mover *m, const char *what)
{
    static const size_t SMALL[] = {900, 1301, 322};
    mover_result        want    = {0};
    mover_result        got     = {0};

    if (getenv("SHERD_BACKEND") != NULL && !m->has_atoms) { /* atoms need longer slices */
        memcpy(m->elems, SMALL, sizeof(SMALL));
    }
    mover_usual(m);
    mover_twin(m, 4, &want);
    mover_threads(m, &got);
    mover_compare(what, &want, &got);
}

static void expect_same_at(const rig_options *options, int first_stage, int last_stage,
                           const char *what)
{
    for (int stage = first_stage; stage <= last_stage; stage++) {
        mover m = {.options = *options};
        char  text[160];

        m.options.stage = stage;
        (void)snprintf(text, sizeof(text), "%s, stage %d", what, stage);
        if (takes_stage(stage, first_stage, last_stage)) {
            expect_same(&m, text);
        }
    }
}

static void move_keeps_bits_in_fp32(void)
{
    expect_same_at(&(rig_options){.dtype = SHERD_F32, .clip = 1, .top = DETERMINISTIC}, 0, 3,
                   "fp32");
}

static void move_keeps_bits_in_bf16(void)
{
    expect_same_at(&(rig_options){.dtype = SHERD_BF16, .clip = 1, .top = DETERMINISTIC}, 0, 3,
                   "bf16");
}

static void move_keeps_bits_and_the_loss_scale_in_fp16(void)
{
    expect_same_at(&(rig_options){.dtype = SHERD_F16, .clip = 1, .top = DETERMINISTIC}, 0, 3,
                   "fp16");
}

static void move_keeps_bits_of_each_optimizer(void)
{
    expect_same_at(&(rig_options){.dtype = SHERD_BF16, .optimizer = "Lamb", .top = DETERMINISTIC},
                   0, 3, "LAMB");
    expect_same_at(
        &(rig_options){
            .dtype = SHERD_BF16, .optimizer = "Muon", .has_matrices = 1, .top = DETERMINISTIC},
        0, 3, "Muon");
}

static void move_keeps_bits_of_state_in_host_memory(void)
{
    static const char *const ZERO[] = {
        ", \"offload_optimizer\": {\"device\": \"cpu\"}",
        ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}, \"sub_group_size\": 640",
        ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}",
    };

    for (int z = 0; z < 3; z++) {
        expect_same_at(&(rig_options){.dtype = z == 1 ? SHERD_F32 : SHERD_BF16,
                                      .clip  = 1,
                                      .zero  = ZERO[z],
                                      .top   = DETERMINISTIC},
                       z == 2 ? 3 : 1, 3, ZERO[z]);
    }
}

static void move_keeps_bits_of_encoded_state(void)
{
    static const char *const TOP[] = {
        ENCODED("\"master_encoding\": \"bf16_beside\""),
        ENCODED("\"master_encoding\": \"bf16_beside\", \"moment_encoding\": \"bf16\""),
        ENCODED("\"moment_encoding\": \"fp8\""),
    };

    for (int t = 0; t < 3; t++) {
        expect_same_at(&(rig_options){.dtype = SHERD_BF16, .clip = 1, .top = TOP[t]}, 1, 3, TOP[t]);
    }
}

static void move_keeps_bits_of_persistent_and_overlapped_parameters(void)
{
    expect_same_at(
        &(rig_options){.dtype = SHERD_BF16,
                       .clip  = 1,
                       .zero =
                           ", \"overlap_comm\": true, \"stage3_param_persistence_threshold\": 200",
                       .top = DETERMINISTIC},
        1, 3, "persistent");
}

static void move_keeps_bits_of_atoms(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        mover m = {.options   = {.stage = stage, .dtype = SHERD_BF16, .top = DETERMINISTIC},
                   .has_atoms = 1};

        if (takes_stage(stage, 1, 3)) {
            expect_same(&m, "atoms");
        }
    }
}

/* With two ranks to a copy: numbers that two divides, and others, where all ranks share one. */
static void move_keeps_bits_of_replicas(void)
{
    static const char *const TOP[]  = {ENCODED("\"shard_size\": 2, \"elastic\": [1, 6]"),
                                       ENCODED("\"shard_size\": 1, \"elastic\": [1, 6]"),
                                       ENCODED("\"shard_size\": 2, \"elastic\": [1, 6], "
                                                "\"moment_encoding\": \"bf16\"")};
    static const mover_phase EVEN[] = {
        {.size = 4, .slots = {0, 1, 2, 3}, .steps = 1, .left_micro = 1},
        {.size = 6, .slots = {0, 1, 2, 3, 4, 5}, .steps = 1},
        {.size = 2, .slots = {1, 4}, .steps = 1, .is_torn = 1},
        {.size = 4, .slots = {1, 4, 0, 2}, .steps = 1},
    };

    if (getenv("SHERD_BACKEND") != NULL) {
        test_skip("replicas add integers up in host memory only");
    }
    for (int t = 0; t < 3; t++) {
        rig_options  options = {.dtype = SHERD_BF16, .clip = 1, .top = TOP[t]};
        mover        m       = {.options = options, .has_blobs = 1};
        mover_result want    = {0};
        mover_result got     = {0};

        expect_same_at(&options, 1, 3, TOP[t]);
        m.options.stage = 1 + t;
        m.global        = 12;
        m.num_phases    = 4;
        memcpy(m.phases, EVEN, sizeof(EVEN));
        mover_threads(&m, &got);
        m.options.top = DETERMINISTIC; /* as on one copy, without moves */
        if (t < 2) {
            mover_twin(&m, 3, &want);
            mover_compare("replicas of one copy", &want, &got);
        }
    }
}

static void move_keeps_bits_of_second_copies(void)
{
    expect_same_at(&(rig_options){.dtype = SHERD_BF16,
                                  .clip  = 1,
                                  .zero  = ", \"zero_hpz_partition_size\": 2",
                                  .top   = ENCODED("\"elastic\": [1, 6]")},
                   3, 3, "second copies");
}

static void move_fills_bound_memory_of_newcomers(void)
{
    for (int stage = 0; stage <= 2; stage++) {
        mover m = {.options  = {.stage = stage, .dtype = SHERD_BF16, .top = DETERMINISTIC},
                   .is_bound = 1};

        if (takes_stage(stage, 0, 2)) {
            expect_same(&m, "bound");
        }
    }
}

static void move_takes_blobs_as_a_checkpoint_does(void)
{
    mover m = {.options = {.stage = 2, .dtype = SHERD_BF16, .top = DETERMINISTIC}, .has_blobs = 1};

    expect_same(&m, "blobs");
}

/* The ranks have up to 20 places for the 16 micro-batches of a step. */
typedef struct share_job {
    int      stage;
    uint64_t fingerprint;
} share_job;

static void share_body(sherd_world *world, void *raw)
{
    share_job  *job   = raw;
    int         rank  = sherd_world_rank(world);
    int         ranks = sherd_world_size(world);
    uint64_t    fingerprint;
    rig_options options = {.stage        = job->stage,
                           .dtype        = SHERD_BF16,
                           .accumulation = (16 + ranks - 1) / ranks,
                           .top          = DETERMINISTIC ", \"train_batch_size\": 16, "
                                                         "\"sherd\": {\"elastic\": [1, 5]}"};
    sherd_share share;
    rig         r;

    sherd_share_init(&share);
    rig_open(&r, world, &options);
    rig_three(&r, 700);
    CHECK_STATUS(SHERD_E_STATE, sherd_step_share(r.engine, &share));
    rig_seal(&r);
    CHECK_OK(sherd_step_share(r.engine, &share));
    CHECK_INT(16, share.window_count);
    CHECK_INT(0, share.window_first);
    CHECK_INT(rank, share.number);
    CHECK_INT((16 - rank + ranks - 1) / ranks, share.count);
    for (int k = 0, own = share.count, calls = share.calls; k < calls; k++) {
        CHECK_OK(sherd_step_share(r.engine, &share));
        CHECK_INT(calls - k, share.calls);
        CHECK_INT(own > k ? own - k : 0, share.count);
        if (k < own) {
            CHECK_INT(rank + k * ranks, share.number);
            rig_micro_batch(&r);
        } else {
            CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
            CHECK_OK(sherd_micro_batch_skip(r.engine));
        }
        (void)rig_step(&r);
    }
    CHECK_OK(sherd_step_share(r.engine, &share));
    CHECK_INT(16, share.window_first);
    CHECK_OK(sherd_engine_fingerprint(r.engine, &fingerprint));
    if (rank == 0) {
        job->fingerprint = fingerprint;
    }
    rig_close(&r);
}

static void ranks_have_their_share_of_a_batch_that_they_do_not_divide(void)
{
    uint64_t first = 0;

    for (int stage = 0; stage <= 3; stage++) {
        int is_taken = takes_stage(stage, 0, 3);

        for (int ranks = 1; ranks <= 5 && is_taken; ranks++) {
            share_job job = {.stage = stage};

            test_world(ranks, share_body, &job);
            first = first == 0 ? job.fingerprint : first;
            CHECK_INT(first, job.fingerprint);
        }
    }
}

typedef struct size_list {
    int                 count;
    sherdi_elastic_size sizes[8];
} size_list;

static sherd_status size_add(void *ctx, const sherdi_elastic_size *size)
{
    size_list *list = ctx;

    list->sizes[list->count++] = *size;
    return SHERD_OK;
}

static sherd_status text_add(void *ctx, const char *text, size_t len_bytes)
{
    char  *all = ctx;
    size_t at  = strlen(all);

    if (at + len_bytes < 65536) {
        memcpy(all + at, text, len_bytes);
        all[at + len_bytes] = '\0';
    }
    return SHERD_OK;
}

static void elastic_train(sherd_world *world, void *ctx)
{
    static const char *const WRONG[] = {"[3, 2]", "[1.5, 4]", "[4, 8]", "[0, 4]"};
    rig_options              options = {.stage = 3, .top = ", \"sherd\": {\"elastic\": [2, 5]}"};
    size_list                list    = {0};
    char                     top[64];
    char                    *text;
    rig                      r;

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, 5000);
    rig_seal(&r);
    CHECK_OK(sherdi_elastic_sizes(r.engine->plan, &r.engine->model, size_add, &list));
    CHECK_INT(4, list.count);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(2 + i, list.sizes[i].ranks);
        CHECK(i == 0 || list.sizes[i].rank_bytes < list.sizes[i - 1].rank_bytes);
        CHECK(i == 0 || list.sizes[i].grow_peak.host >=
                            list.sizes[i - 1].rank_bytes - r.engine->plan->machine.transport_bytes);
    }
    text = calloc(1, 65536);
    CHECK(text != NULL);
    CHECK_OK(sherd_engine_plan(r.engine, SHERD_PLAN_TABLE, text_add, text));
    CHECK(strstr(text, "numbers of ranks (sherd.elastic)") != NULL);
    CHECK(strstr(text, "     5 ranks") != NULL);
    text[0] = '\0';
    CHECK_OK(sherd_engine_plan(r.engine, SHERD_PLAN_JSON, text_add, text));
    CHECK(strstr(text, "\"grow_peak_bytes\"") != NULL);
    free(text);
    rig_close(&r);
    for (size_t w = 0; w < sizeof(WRONG) / sizeof(WRONG[0]); w++) {
        (void)snprintf(top, sizeof(top), ", \"sherd\": {\"elastic\": %s}", WRONG[w]);
        options.top = top;
        rig_open(&r, world, &options);
        rig_three(&r, 5000);
        CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
        CHECK_ERROR_SAYS("sherd.elastic is [");
        rig_close(&r);
    }
}

static void elastic_sizes_are_planned_and_printed(void)
{
    test_world(3, elastic_train, NULL);
}

/* One rank more than the host has room for is refused at seal, by its number. */
static void elastic_size_without_room_is_refused_by_its_number(void)
{
    rig_options  options = {.stage = 0, .top = ", \"sherd\": {\"elastic\": [1, 4]}"};
    sherd_world *world;
    rig          r;

    if (getenv("SHERD_BACKEND") != NULL) {
        test_skip("a device's memory has a limit of its own (test_move_device.c)");
    }
    CHECK_OK(sherd_world_self(&world));
    CHECK(setenv("SHERD_MEMORY_LIMIT", "3000000", 1) == 0);
    rig_open(&r, world, &options);
    rig_three(&r, 30000); /* about 1.6 MB on each rank */
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("sherd.elastic: 2 ranks need");
    rig_close(&r);
    CHECK(unsetenv("SHERD_MEMORY_LIMIT") == 0);
    sherd_world_destroy(world);
}

static const test_case CASES[] = {
    CASE(move_keeps_bits_in_fp32),
    CASE(move_keeps_bits_in_bf16),
    CASE(move_keeps_bits_and_the_loss_scale_in_fp16),
    CASE(move_keeps_bits_of_each_optimizer),
    CASE(move_keeps_bits_of_state_in_host_memory),
    CASE(move_keeps_bits_of_encoded_state),
    CASE(move_keeps_bits_of_persistent_and_overlapped_parameters),
    CASE(move_keeps_bits_of_atoms),
    CASE(move_keeps_bits_of_replicas),
    CASE(move_keeps_bits_of_second_copies),
    CASE(move_fills_bound_memory_of_newcomers),
    CASE(move_takes_blobs_as_a_checkpoint_does),
    CASE(ranks_have_their_share_of_a_batch_that_they_do_not_divide),
    CASE(elastic_sizes_are_planned_and_printed),
    CASE(elastic_size_without_room_is_refused_by_its_number),
};

RUN_MAIN(CASES)
