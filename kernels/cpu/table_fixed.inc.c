/* The part of a kernel table for the deterministic mode. table_list.h explains the two faces of
 * this file. */
#if defined(TABLE_SLOTS)

.reduce_fixed = table_reduce_fixed, .fixed_to_f32 = table_fixed_to_f32,

#else

#include "kernels/fixed.h"

/* Sources are cast to fp32 in the first-level cache, a tile at a time. */
#define FIXED_TILE_ELEMS 512

typedef struct fixed_call {
    const sherdi_reduce_args *args;
    const sherdi_fixed_sink  *sink;
    _Atomic uint64_t          nonfinite;
    _Atomic uint64_t          out_of_range;
} fixed_call;

/* Adds one tile of one source. The counts add 0 or 1 for each element, so that the compiler
 * vectorises them too. */
static void fixed_tile_add(int64_t *acc, const float *grad, size_t count_elems, int overwrites,
                           double multiplier, double limit, sherdi_fixed_counts *counts)
{
    sherdi_fixed_counts seen = {0, 0};

    if (overwrites) {
        for (size_t i = 0; i < count_elems; i++) {
            acc[i] = sherdi_fixed_element(grad[i], multiplier, limit, &seen);
        }
    } else {
        for (size_t i = 0; i < count_elems; i++) {
            acc[i] += sherdi_fixed_element(grad[i], multiplier, limit, &seen);
        }
    }
    counts->nonfinite += seen.nonfinite;
    counts->out_of_range += seen.out_of_range;
}

static void fixed_elems(void *ctx, size_t first, size_t total)
{
    fixed_call               *call   = ctx;
    const sherdi_reduce_args *args   = call->args;
    size_t                    end    = first + total;
    sherdi_fixed_counts       counts = {0, 0};
    float                     tile[FIXED_TILE_ELEMS];

    for (; first < end; first += FIXED_TILE_ELEMS) {
        size_t count = sherdi_min_size(FIXED_TILE_ELEMS, end - first);

        for (int k = 0; k < args->num_srcs; k++) {
            const void *src = sherdi_elem_at(args->srcs[k], args->src_dtype, first);

            if (args->src_dtype != SHERD_F32) {
                range_cast(tile, SHERD_F32, src, args->src_dtype, count, 0);
                src = tile;
            }
            fixed_tile_add((int64_t *)args->dst + first, src, count, k == 0 && !args->accumulate,
                           sherdi_fixed_multiplier(args, k, call->sink), call->sink->limit,
                           &counts);
        }
    }
    (void)atomic_fetch_add_explicit(&call->nonfinite, counts.nonfinite, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&call->out_of_range, counts.out_of_range, memory_order_relaxed);
}

static void table_reduce_fixed(const sherdi_backend *backend, const sherdi_reduce_args *args,
                               const sherdi_fixed_sink *sink)
{
    size_t     per_elem = sherd_dtype_bytes(args->src_dtype) * (size_t)args->num_srcs + 16;
    fixed_call call     = {.args = args, .sink = sink};

    elems_run(backend, args->count_elems, per_elem, fixed_elems, &call);
    sink->counts->nonfinite += call.nonfinite;
    sink->counts->out_of_range += call.out_of_range;
}

typedef struct fixed_to_f32_call {
    float         *dst;
    const int64_t *acc;
} fixed_to_f32_call;

static void fixed_to_f32_elems(void *ctx, size_t first, size_t count)
{
    const fixed_to_f32_call *call = ctx;

    for (size_t i = first; i < first + count; i++) {
        call->dst[i] = sherdi_fixed_f32(call->acc[i]);
    }
}

static void table_fixed_to_f32(const sherdi_backend *backend, float *dst, const int64_t *acc,
                               size_t count_elems)
{
    fixed_to_f32_call call = {dst, acc};

    elems_run(backend, count_elems, 12, fixed_to_f32_elems, &call);
}

#endif
