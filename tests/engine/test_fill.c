/* First values on NVMe. In the orders in which trainers fill, each byte is written once and nothing
 * is read. Every order gives the same values. If ranks fill with different values, the error names
 * them. */
#include "engine/run/engine_impl.h"

#include "engine/run/fill.h"
#include "engine/run/update.h"
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "engine/plan/offload.h"
#include "engine/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 3
#define PARAMS (LAYERS * 5)

/* Opens layers in which sliced matrices alternate with vectors that every rank keeps whole, and
 * with a frozen matrix. */
static void layers_open(rig *r, sherd_world *world, const rig_options *options)
{
    static const size_t ELEMS[] = {9000, 130, 12000, 5000, 70};

    rig_open(r, world, options);
    for (int u = 0; u < LAYERS; u++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "layer%d", u);
        (void)rig_unit(r, name);
        for (int p = 0; p < 5; p++) {
            sherd_param_params params;

            sherd_param_params_init(&params);
            params.frozen = p == 3;
            (void)snprintf(name, sizeof(name), "layer%d.%d", u, p);
            (void)rig_param_as(r, u, name, ELEMS[p], &params);
        }
    }
    CHECK_OK(sherd_engine_seal(r->engine));
}

typedef enum order {
    ORDER_DECLARED = 0,
    ORDER_REVERSE,
    /* in each unit the sliced parameters first, then the frozen, then the whole ones */
    ORDER_SEGMENTS,
    ORDERS,
    ORDER_SHUFFLED = ORDERS,
} order;

static void order_make(const rig *r, order how, int out[PARAMS])
{
    uint64_t seed  = 20261122;
    int      count = 0;

    for (int u = 0; u < LAYERS && how == ORDER_SEGMENTS; u++) {
        const sherdi_plan      *plan = r->engine->plan;
        const sherdi_plan_unit *unit = &plan->layout.units[u];

        for (size_t s = 0; s < unit->num_segments; s++) {
            for (int p = 0; p < PARAMS; p++) {
                if (plan->layout.params[p].segment ==
                    plan->layout.unit_segments[unit->first_segment + s]) {
                    out[count++] = p;
                }
            }
        }
    }
    for (int p = 0; p < PARAMS && how != ORDER_SEGMENTS; p++) {
        out[count++] = how == ORDER_REVERSE ? PARAMS - 1 - p : p;
    }
    for (int p = PARAMS - 1; p > 0 && how == ORDER_SHUFFLED; p--) {
        int other = (int)(test_random(&seed) % (uint64_t)(p + 1));
        int kept  = out[p];

        out[p]     = out[other];
        out[other] = kept;
    }
    CHECK_INT(PARAMS, count);
}

static void layers_fill(rig *r, order how)
{
    int params[PARAMS];

    order_make(r, how, params);
    for (int i = 0; i < PARAMS; i++) {
        CHECK_OK(sherd_param_fill(r->engine, r->params[params[i]].handle, rig_fill,
                                  (void *)(uintptr_t)params[i]));
    }
}

/* Lets one call of the fill function fail, after it has filled in NaN. */
typedef struct interruption {
    int   calls, fails_at;
    void *which; /* the parameter's number */
} interruption;

static sherd_status fill_interrupted(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    interruption *i = ctx;

    if (++i->calls == i->fails_at) {
        memset(out, 0xff, count_elems * sizeof(*out));
        return SHERD_E_NUMERIC;
    }
    return rig_fill(i->which, first_elem, count_elems, out);
}

/* Fills every third parameter with other values first, and then all parameters; repeats a call that
 * was interrupted. */
static void layers_fill_with_trouble(rig *r, order how, interruption *trouble)
{
    int params[PARAMS];

    order_make(r, how, params);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = turn; i < PARAMS; i += turn == 0 ? 3 : 1) {
            sherd_param handle = r->params[params[i]].handle;

            trouble->which = (void *)(uintptr_t)(turn == 0 ? 1000 : params[i]);
            if (sherd_param_fill(r->engine, handle, fill_interrupted, trouble) != SHERD_OK) {
                CHECK_ERROR_SAYS("the fill function of parameter layer");
                CHECK_OK(sherd_param_fill(r->engine, handle, fill_interrupted, trouble));
            }
        }
    }
    CHECK_OK(sherd_param_fill(r->engine, r->params[params[0]].handle, rig_fill,
                              (void *)(uintptr_t)params[0]));
}

/* ------------------------------------------------------------------- bytes -- */

static int piece_has_elems(const rig *r, const sherdi_piece *piece)
{
    const sherdi_plan *plan = r->engine->plan;
    size_t first = (size_t)plan->rank * plan->layout.segments[piece->segment].slice_elems;
    size_t start = first + piece->offset_elems;

    for (size_t p = 0; p < plan->layout.num_params; p++) {
        const sherdi_plan_param *layout = &plan->layout.params[p];

        if (layout->segment == piece->segment && layout->offset_elems < start + piece->elems &&
            layout->offset_elems + r->params[p].elems > start) {
            return 1;
        }
    }
    return 0;
}

/* Returns the bytes of every extent of state and every piece that has elements of parameters, once
 * each, and of the record of the generation. */
static uint64_t bytes_to_write(const rig *r)
{
    const sherdi_plan *plan  = r->engine->plan;
    uint64_t           bytes = sherdi_plan_moves_of(plan)->index_bytes;
    size_t             last  = SIZE_MAX;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        if (plan->layout.blocks[b].num_spans > 0 && plan->layout.blocks[b].extent != last) {
            last = plan->layout.blocks[b].extent;
            bytes += plan->rings[SHERDI_RING_STATE].extents[last].len_bytes;
        }
    }
    for (size_t i = 0; i < plan->offload->num_pieces; i++) {
        bytes += piece_has_elems(r, &plan->offload->pieces[i])
                     ? plan->rings[SHERDI_RING_PARAMS].extents[i].len_bytes
                     : 0;
    }
    return bytes;
}

typedef struct fill_job {
    rig_options options;
    order       how;
    int         is_counted;
    /* the call of the fill function that fails; 0: none, and no parameter is filled twice */
    int      fails_at;
    int      calls;           /* result: rank 0's calls of the fill function */
    uint64_t filled, trained; /* results: rank 0's fingerprints */
} fill_job;

static void fill_counted(rig *r, order how)
{
    sherd_traffic_report before = {.struct_size = sizeof(before)};
    sherd_traffic_report after  = {.struct_size = sizeof(after)};
    uint64_t             own;

    CHECK(r->engine->plan->rings[SHERDI_RING_STATE].num_extents > 4);
    CHECK_OK(sherd_engine_traffic(r->engine, &before)); /* of the header of the new file */
    layers_fill(r, how);
    CHECK_OK(sherdi_fill_finish(r->engine));
    CHECK_OK(sherd_engine_traffic(r->engine, &after));
    CHECK_INT(bytes_to_write(r), after.written_counted - before.written_counted);
    CHECK_INT(0, after.read_counted);
    own                             = r->engine->fingerprints.own;
    r->engine->fingerprints.has_own = 0;
    CHECK_OK(sherdi_update_fingerprint(r->engine)); /* of the values on the drive */
    CHECK_INT(own, r->engine->fingerprints.own);
}

static void fill_run(sherd_world *world, void *raw)
{
    fill_job *job   = raw;
    int       calls = 0;
    uint64_t  filled;
    uint64_t  trained;
    rig       r;

    layers_open(&r, world, &job->options);
    if (job->is_counted) {
        fill_counted(&r, job->how);
    } else if (job->fails_at != 0) {
        interruption trouble = {.fails_at = job->fails_at};

        layers_fill_with_trouble(&r, job->how, &trouble);
        calls = trouble.calls;
    } else {
        layers_fill(&r, job->how);
    }
    filled  = rig_fingerprint(&r);
    trained = rig_train(&r, 2).fingerprint;
    if (sherd_world_rank(world) == 0) {
        job->calls   = calls;
        job->filled  = filled;
        job->trained = trained;
    }
    rig_close(&r);
}

#define THRESHOLD ", \"stage3_param_persistence_threshold\": 200, \"sub_group_size\": 4096"
#define STATE_ON_NVME                                                                              \
    THRESHOLD ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","             \
              " \"durable\": false, \"pipeline_read\": false%s}"
#define PARAMS_ON_NVME                                                                             \
    ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}"

/* Writes the keys of zero_optimization. Nothing is read ahead, so only what the fill reads is
 * counted. */
static const char *nvme_keys(const char *more, int has_params, char out[1024])
{
    int used = snprintf(out, 1024, STATE_ON_NVME, test_scratch(), more);

    if (has_params) {
        (void)snprintf(out + used, 1024 - (size_t)used, PARAMS_ON_NVME, test_scratch());
    }
    return out;
}

/* Does the same fill and training in memory. */
static fill_job reference_of(int world_size, int stage, sherd_dtype dtype)
{
    fill_job job = {
        .options = {.stage = stage, .accumulation = 1, .dtype = dtype, .zero = THRESHOLD}};

    test_world(world_size, fill_run, &job);
    return job;
}

/* State on a drive has generations, which need checksums. */
static void checksums_are_needed(void)
{
#ifndef SHERDI_HAVE_XXHASH
    test_skip("no libxxhash in this build");
#endif
}

static const sherd_dtype TYPES[] = {SHERD_BF16, SHERD_F32};

static void each_byte_is_written_once_and_nothing_is_read(void)
{
    checksums_are_needed();
    for (int world_size = 1; world_size <= 4; world_size++) {
        for (size_t t = 0; t < 2; t++) {
            for (int stage = 1; stage <= 3; stage++) {
                fill_job want = reference_of(world_size, stage, TYPES[t]);

                for (int how = 0; how < 2 * ORDERS; how++) {
                    char     keys[1024];
                    fill_job job = {.options    = {.stage        = stage,
                                                   .accumulation = 1,
                                                   .dtype        = TYPES[t],
                                                   .zero         = nvme_keys("", how >= ORDERS, keys)},
                                    .how        = (order)(how % ORDERS),
                                    .is_counted = 1};

                    if ((how >= ORDERS && stage < 3) ||
                        (!test_is_long() && (how + stage + world_size) % 2 != (int)t)) {
                        continue;
                    }
                    test_world(world_size, fill_run, &job);
                    CHECK_INT(want.filled, job.filled);
                    CHECK_INT(want.trained, job.trained);
                }
            }
        }
    }
}

/* With a single buffer, extents that had to make room are read back. */
static void any_order_gives_the_same_values_with_a_single_buffer(void)
{
    checksums_are_needed();
    for (int world_size = 1; world_size <= 2; world_size++) {
        fill_job want = reference_of(world_size, 3, SHERD_BF16);

        for (int how = 0; how <= ORDER_SHUFFLED; how++) {
            char     keys[1024];
            fill_job job = {.options = {.stage        = 3,
                                        .accumulation = 1,
                                        .dtype        = SHERD_BF16,
                                        .zero = nvme_keys(", \"buffer_count\": 1", 1, keys)},
                            .how     = (order)how};

            test_world(world_size, fill_run, &job);
            CHECK_INT(want.filled, job.filled);
            CHECK_INT(want.trained, job.trained);
        }
    }
}

/* Each call of the function fails in turn (a sample of them on two ranks). Parameters come in
 * disorder, some of them twice, through one to three buffers. */
static void fills_that_are_interrupted_and_repeated_give_the_same_values(void)
{
    checksums_are_needed();
    for (int world_size = 1; world_size <= 2; world_size++) {
        fill_job want = reference_of(world_size, 3, SHERD_BF16);

        for (int slots = 1; slots <= 3; slots++) {
            int calls = 1;

            int step = world_size == 2 ? 5 : test_is_long() ? 1 : 3;

            for (int nth = 1 + slots % step; nth <= calls || calls == 1; nth += step) {
                char     more[64];
                char     keys[1024];
                fill_job job = {
                    .options  = {.stage = 3, .accumulation = 1, .dtype = SHERD_BF16},
                    .how      = nth % 2 ? ORDER_SHUFFLED : ORDER_REVERSE,
                    .fails_at = nth,
                };

                (void)snprintf(more, sizeof(more), ", \"buffer_count\": %d", slots);
                job.options.zero = nvme_keys(more, 1, keys);
                test_world(world_size, fill_run, &job);
                CHECK_INT(want.filled, job.filled);
                CHECK_INT(want.trained, job.trained);
                CHECK(job.calls > PARAMS);
                calls = job.calls - 1; /* one call is the repetition */
            }
        }
    }
}

/* Fills a parameter in several calls of the fill function, one of which is interrupted. */
static void long_fill_run(sherd_world *world, void *raw)
{
    fill_job    *job     = raw;
    interruption trouble = {.fails_at = job->fails_at};
    rig          r;

    rig_open(&r, world, &job->options);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "short", 1000);
    (void)rig_param(&r, 0, "long", 3 * SHERDI_FILL_ELEMS - 100);
    CHECK_OK(sherd_engine_seal(r.engine));
    trouble.which = (void *)(uintptr_t)1;
    if (sherd_param_fill(r.engine, r.params[1].handle, fill_interrupted, &trouble) != SHERD_OK) {
        CHECK_OK(sherd_param_fill(r.engine, r.params[1].handle, fill_interrupted, &trouble));
    }
    CHECK_INT(job->fails_at == 0 ? 3 : 3 + job->fails_at, trouble.calls);
    CHECK_OK(sherd_param_fill(r.engine, r.params[0].handle, rig_fill, NULL));
    job->filled = rig_fingerprint(&r);
    rig_close(&r);
}

static void long_parameter_that_is_interrupted_is_filled_from_its_beginning(void)
{
    fill_job want = {.options = {.stage = 3, .accumulation = 1, .dtype = SHERD_BF16}};

    checksums_are_needed();
    test_world(1, long_fill_run, &want);
    for (int nth = 0; nth <= 3; nth++) {
        char     keys[1024];
        fill_job job = {.options  = {.stage = 3, .accumulation = 1, .dtype = SHERD_BF16},
                        .fails_at = nth};

        (void)snprintf(keys, sizeof(keys),
                       ", \"sub_group_size\": 65536, \"offload_optimizer\": {\"device\": \"nvme\", "
                       "\"nvme_path\": \"%s\", \"buffer_count\": 2}" PARAMS_ON_NVME,
                       test_scratch(), test_scratch());
        job.options.zero = keys;
        test_world(1, long_fill_run, &job);
        CHECK_INT(want.filled, job.filled);
    }
}

/* ---------------------------------------------------------- ranks that differ -- */

/* The ranks have different seeds, as by a mistake of the trainer; they have no values in common
 * that could differ. */
static void fill_with_another_seed_on_ranks_1_and_3(sherd_world *world, void *raw)
{
    size_t             elems   = *(const size_t *)raw;
    int                rank    = sherd_world_rank(world);
    rig_options        options = {.stage = 3, .dtype = SHERD_BF16};
    sherd_param_params frozen;
    rig                r;

    rig_open(&r, world, &options);
    sherd_param_params_init(&frozen);
    frozen.frozen = 1;
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "same", elems);
    (void)rig_param(&r, 0, "none", 0);
    (void)rig_param_as(&r, 0, "other", elems, &frozen);
    (void)rig_param(&r, 0, "trained", elems);
    rig_seal(&r);
    for (int p = 3; p >= 2; p--) {
        CHECK_OK(sherd_param_fill(r.engine, r.params[p].handle, rig_fill,
                                  (void *)(uintptr_t)(rank % 2 == 1 ? 100 : 1)));
        CHECK_STATUS(SHERD_E_INVAL, sherd_unit_acquire(r.engine, 0, SHERD_FORWARD));
        CHECK_ERROR_SAYS(p == 3 ? "parameter trained starts with other values on ranks 1, 3 than"
                                : "parameter other starts with other values on ranks 1, 3 than");
    }
    for (int p = 2; p <= 3; p++) {
        CHECK_OK(sherd_param_fill(r.engine, r.params[p].handle, rig_fill, NULL));
    }
    (void)rig_train(&r, 1);
    rig_close(&r);
}

static void another_seed_on_some_ranks_is_refused_at_stage_3(void)
{
    size_t elems[] = {1, 10, 5000};

    for (size_t i = 0; i < 3; i++) {
        test_world(4, fill_with_another_seed_on_ranks_1_and_3, &elems[i]);
    }
}

static const test_case CASES[] = {
    CASE(each_byte_is_written_once_and_nothing_is_read),
    CASE(any_order_gives_the_same_values_with_a_single_buffer),
    CASE(fills_that_are_interrupted_and_repeated_give_the_same_values),
    CASE(long_parameter_that_is_interrupted_is_filled_from_its_beginning),
    CASE(another_seed_on_some_ranks_is_refused_at_stage_3),
};

RUN_MAIN(CASES)
