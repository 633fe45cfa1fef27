/* How often memory is gone over: a table in place of the kernels' counts what each call reads and
 * writes, and passes it on. What a boundary takes is what the plan says, and what moves between
 * ranks; nothing is done that has no result. */
#include "collectives/world.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdatomic.h>
#include <string.h>

#define UNITS       3
#define ELEMS       7680 /* of each unit; whole chunks on up to 4 ranks: no padding */
#define SMALL_BYTES 1024

enum { UPDATE, NORM, REDUCE, CAST, ADD, COPY, ZERO, KERNELS };

static const char *const NAMES[KERNELS] = {"update", "norm", "reduce", "cast",
                                           "add",    "copy", "zero"};

static _Atomic(const sherdi_kernel_ops *) real; /* the same for all ranks */
static _Atomic uint64_t                   counts[KERNELS];

static void count(int kernel, uint64_t bytes)
{
    (void)atomic_fetch_add(&counts[kernel], bytes);
}

static void counting_update(const sherdi_backend *backend, sherdi_update_id update,
                            const sherdi_update_args *args)
{
    count(UPDATE, sherdi_update_bytes(update, args, 1));
    real->update(backend, update, args);
}

static void counting_sumsq(const sherdi_backend *backend, const void *x, sherd_dtype dtype,
                           size_t count_elems, sherdi_norm_acc *acc)
{
    count(NORM, count_elems * sherd_dtype_bytes(dtype));
    real->sumsq(backend, x, dtype, count_elems, acc);
}

static void counting_reduce(const sherdi_backend *backend, const sherdi_reduce_args *args)
{
    uint64_t read    = (uint64_t)args->num_srcs * sherd_dtype_bytes(args->src_dtype);
    uint64_t written = (uint64_t)(1 + args->num_more_dsts + (args->accumulate != 0)) *
                       sherd_dtype_bytes(args->dst_dtype);

    count(REDUCE, args->count_elems * (read + written));
    real->reduce(backend, args);
}

static void counting_cast(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype,
                          const void *src, sherd_dtype src_dtype, size_t count_elems)
{
    count(CAST, count_elems * (sherd_dtype_bytes(dst_dtype) + sherd_dtype_bytes(src_dtype)));
    real->cast(backend, dst, dst_dtype, src, src_dtype, count_elems);
}

static void counting_accumulate(const sherdi_backend *backend, void *acc, sherd_dtype acc_dtype,
                                const void *x, sherd_dtype x_dtype, size_t count_elems)
{
    count(ADD, count_elems * (2 * sherd_dtype_bytes(acc_dtype) + sherd_dtype_bytes(x_dtype)));
    real->accumulate(backend, acc, acc_dtype, x, x_dtype, count_elems);
}

/* Messages between ranks are small, and not counted. */
static void counting_copy(const sherdi_backend *backend, void *dst, const void *src,
                          size_t len_bytes)
{
    count(COPY, len_bytes < SMALL_BYTES ? 0 : 2 * len_bytes);
    real->copy(backend, dst, src, len_bytes);
}

static void counting_zero(const sherdi_backend *backend, void *dst, size_t len_bytes)
{
    count(ZERO, len_bytes);
    real->zero(backend, dst, len_bytes);
}

/* Before the engine is made, on every rank. */
static void world_count(sherd_world *world, sherdi_kernel_ops *ops)
{
    sherdi_backend *backend = (sherdi_backend *)(uintptr_t)sherdi_world_backend(world);

    real             = backend->kernels;
    *ops             = *real;
    ops->update      = counting_update;
    ops->sumsq       = counting_sumsq;
    ops->reduce      = counting_reduce;
    ops->cast        = counting_cast;
    ops->accumulate  = counting_accumulate;
    ops->copy        = counting_copy;
    ops->zero        = counting_zero;
    backend->kernels = ops;
}

typedef struct passes {
    rig_options options;
    uint64_t    before[KERNELS];
    uint64_t    boundary[KERNELS]; /* bytes of all ranks */
    uint64_t    planned;           /* of one */
} passes;

/* What all ranks have counted; none goes on before. */
static void counts_read(sherd_world *world, uint64_t *out)
{
    CHECK_OK(sherd_world_barrier(world)); /* after what is queued */
    if (sherd_world_rank(world) == 0) {
        for (int k = 0; k < KERNELS; k++) {
            out[k] = atomic_load(&counts[k]);
        }
    }
    CHECK_OK(sherd_world_barrier(world));
}

static void boundary_run(sherd_world *world, void *raw)
{
    passes              *p = raw;
    sherdi_kernel_ops    ops;
    sherd_traffic_report traffic;
    rig                  r;

    world_count(world, &ops);
    rig_open(&r, world, &p->options);
    for (int u = 0; u < UNITS; u++) {
        static const char *const UNIT_NAMES[UNITS]  = {"first", "second", "third"};
        static const char *const PARAM_NAMES[UNITS] = {"a", "b", "c"};

        (void)rig_param(&r, rig_unit(&r, UNIT_NAMES[u]), PARAM_NAMES[u], ELEMS);
    }
    rig_seal(&r);
    (void)rig_train(&r, p->options.accumulation); /* the first step fills and compares */
    for (int m = 0; m < p->options.accumulation; m++) {
        rig_micro_batch(&r);
        if (m + 1 < p->options.accumulation) {
            (void)rig_step(&r);
        }
    }
    counts_read(world, p->before);
    CHECK(rig_step(&r).was_updated);
    counts_read(world, p->boundary);
    sherd_traffic_report_init(&traffic);
    CHECK_OK(sherd_engine_traffic(r.engine, &traffic));
    if (sherd_world_rank(world) == 0) {
        p->planned = traffic.update_device_planned;
    }
    rig_close(&r);
}

/* Bytes of an element, over all ranks, that a boundary takes in addition to norm and update. A sum
 * reads what every rank has and writes one result, at stage 0 one for each; where gradients are
 * kept wider than they travel each rank casts, and at stage 0 casts back; a parameter that is whole
 * everywhere is read by the ranks that do not have it. */
static void table_fill(int ranks, const rig_options *o, uint64_t *bytes)
{
    uint64_t n     = (uint64_t)ranks;
    uint64_t wire  = sherd_dtype_bytes(o->dtype);
    uint64_t grad  = o->accumulation > 1 ? sizeof(float) : wire;
    int      late  = o->stage < 2;
    int      alone = ranks == 1 && grad == wire; /* the sum is there already */

    memset(bytes, 0, KERNELS * sizeof(*bytes));
    if (late && !alone) {
        bytes[REDUCE] = o->stage == 0 ? 2 * n * wire : n * wire + grad;
    }
    if (late && grad != wire) {
        bytes[CAST] = (o->stage == 0 ? 2 : 1) * n * (grad + wire);
    }
    if (o->stage == 1 || o->stage == 2) {
        bytes[COPY] = 2 * (n - 1) * wire;
    }
}

static void boundary_is_as_in_the_table(int ranks, const rig_options *options)
{
    passes   p = {.options = *options};
    uint64_t want[KERNELS];

    test_world(ranks, boundary_run, &p);
    table_fill(ranks, options, want);
    for (int k = 0; k < KERNELS; k++) {
        p.boundary[k] -= p.before[k];
        if (k != UPDATE && k != NORM && p.boundary[k] != want[k] * UNITS * ELEMS) {
            test_fail(
                __FILE__, __LINE__,
                "stage %d, %d ranks, %s, accumulation %d: %s goes over %.2f bytes an element, "
                "not %.2f",
                options->stage, ranks, sherd_dtype_name(options->dtype), options->accumulation,
                NAMES[k], (double)p.boundary[k] / (UNITS * ELEMS), (double)want[k]);
        }
    }
    CHECK_INT((uint64_t)ranks * p.planned, p.boundary[UPDATE] + p.boundary[NORM]);
}

static void boundaries_of_all_ranks(int ranks)
{
    static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16};

    for (size_t d = 0; d < sizeof(DTYPES) / sizeof(DTYPES[0]); d++) {
        for (int stage = 0; stage <= 3; stage++) {
            for (int accumulation = 1; accumulation <= 2; accumulation++) {
                boundary_is_as_in_the_table(ranks, &(rig_options){.stage        = stage,
                                                                  .accumulation = accumulation,
                                                                  .dtype        = DTYPES[d],
                                                                  .clip         = 1});
            }
        }
    }
}

static void boundary_of_one_rank_moves_nothing(void)
{
    boundaries_of_all_ranks(1);
}

static void boundary_of_two_ranks_moves_what_the_table_says(void)
{
    boundaries_of_all_ranks(2);
}

static void boundary_of_four_ranks_moves_what_the_table_says(void)
{
    boundaries_of_all_ranks(4);
}

static const test_case CASES[] = {
    CASE(boundary_of_one_rank_moves_nothing),
    CASE(boundary_of_two_ranks_moves_what_the_table_says),
    CASE(boundary_of_four_ranks_moves_what_the_table_says),
};

RUN_MAIN(CASES)
