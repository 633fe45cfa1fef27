/* Casts, additions and reductions, which make each element on its own.
 *
 * A thread block owns tiles of 2048 elements (4096 in casts), numbers blockIdx.x, blockIdx.x +
 * gridDim.x, ... A thread owns the vectors of four elements threadIdx.x, threadIdx.x + 256, ... of
 * a tile, and loads all of them before it writes one. One thread makes each element, in the
 * formula's order, and counts are integers, so no result depends on the number of thread blocks.
 *
 * Vectors need every array at a multiple of four of its elements. Otherwise, and after the last
 * whole vector, elements are done one by one. An output may be an input (in place): the thread that
 * writes an element has read it before. The kernels use no shared memory except 64 bytes for the
 * counts. */
#include "kernels/cuda/elements.cuh"
#include "kernels/fixed.h"

#define MOVE_BLOCKS    6 /* thread blocks on a processor */
#define MOVE_VECTORS   4
#define REDUCE_BLOCKS  3
#define REDUCE_VECTORS 2
#define SOURCES_AHEAD  4 /* sources of a vector that are loaded at once */

/* Calls op.load(i, at) for up to VECTORS vectors of a thread, then op.vector(i, at) for each of
 * them; op.element(at) for elements outside whole vectors. */
template <int VECTORS, typename Op>
static inline __device__ void elements_walk(size_t count_elems, int is_vector, Op &op)
{
    const size_t tile = (size_t)BLOCK_THREADS * VECTOR_ELEMS * VECTORS;

    for (size_t first = blockIdx.x * tile; first < count_elems; first += gridDim.x * tile) {
        size_t left = count_elems - first;

        left = left < tile ? left : tile;
        if (is_vector) {
            size_t whole = left / VECTOR_ELEMS * VECTOR_ELEMS;

#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                size_t at = ((size_t)i * BLOCK_THREADS + threadIdx.x) * VECTOR_ELEMS;

                if (at < whole) {
                    op.load(i, first + at);
                }
            }
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                size_t at = ((size_t)i * BLOCK_THREADS + threadIdx.x) * VECTOR_ELEMS;

                if (at < whole) {
                    op.vector(i, first + at);
                }
            }
            if (whole + threadIdx.x < left) {
                op.element(first + whole + threadIdx.x);
            }
        } else {
            for (size_t at = threadIdx.x; at < left; at += BLOCK_THREADS) {
                op.element(first + at);
            }
        }
    }
}

/* Returns the thread blocks for a walk. */
static size_t blocks_of_walk(sherdi_cuda_target target, int each, int vectors, size_t count_elems)
{
    return blocks_of(target, each, count_elems,
                     (size_t)BLOCK_THREADS * VECTOR_ELEMS * (size_t)vectors);
}

/* ----------------------------------------------------------------- cast -- */

typedef struct cast_op {
    void       *dst;
    const void *src;
    sherd_dtype dst_dtype, src_dtype;
    packed4     x[MOVE_VECTORS];

    __device__ void load(int i, size_t at)
    {
        x[i] = packed_load(src, src_dtype, at);
    }

    __device__ void vector(int i, size_t at)
    {
        vector_store(dst, dst_dtype, at, packed_widen(x[i], src_dtype));
    }

    __device__ void element(size_t at)
    {
        element_store(dst, dst_dtype, at, element_load(src, src_dtype, at));
    }
} cast_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, MOVE_BLOCKS)
    cast_kernel(void *dst, sherd_dtype dst_dtype, const void *src, sherd_dtype src_dtype,
                size_t count_elems, int is_vector)
{
    cast_op op = {dst, src, dst_dtype, src_dtype, {}};

    elements_walk<MOVE_VECTORS>(count_elems, is_vector, op);
}

extern "C" void sherdi_cuda_cast(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype,
                                 const void *src, sherd_dtype src_dtype, size_t count_elems)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    if (count_elems == 0) {
        return;
    }
    kernel_launch(cast_kernel, blocks_of_walk(target, MOVE_BLOCKS, MOVE_VECTORS, count_elems),
                  target, dst, dst_dtype, src, src_dtype, count_elems,
                  is_vector_start(dst, dst_dtype) && is_vector_start(src, src_dtype));
}

/* ----------------------------------------------------------- accumulate -- */

typedef struct accumulate_op {
    void       *acc;
    const void *from;
    sherd_dtype acc_dtype, from_dtype;
    packed4     sums[REDUCE_VECTORS], x[REDUCE_VECTORS];

    __device__ void load(int i, size_t at)
    {
        sums[i] = packed_load(acc, acc_dtype, at);
        x[i]    = packed_load(from, from_dtype, at);
    }

    __device__ void vector(int i, size_t at)
    {
        float4 a = packed_widen(sums[i], acc_dtype);
        float4 b = packed_widen(x[i], from_dtype);

        vector_store(acc, acc_dtype, at,
                     make_float4(sherdi_canonical_f32(a.x + b.x), sherdi_canonical_f32(a.y + b.y),
                                 sherdi_canonical_f32(a.z + b.z), sherdi_canonical_f32(a.w + b.w)));
    }

    __device__ void element(size_t at)
    {
        float sum = element_load(acc, acc_dtype, at) + element_load(from, from_dtype, at);

        element_store(acc, acc_dtype, at, sherdi_canonical_f32(sum));
    }
} accumulate_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, MOVE_BLOCKS)
    accumulate_kernel(void *acc, sherd_dtype acc_dtype, const void *x, sherd_dtype x_dtype,
                      size_t count_elems, int is_vector)
{
    accumulate_op op = {acc, x, acc_dtype, x_dtype, {}, {}};

    elements_walk<REDUCE_VECTORS>(count_elems, is_vector, op);
}

extern "C" void sherdi_cuda_accumulate(const sherdi_backend *backend, void *acc,
                                       sherd_dtype acc_dtype, const void *x, sherd_dtype x_dtype,
                                       size_t count_elems)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    if (count_elems == 0) {
        return;
    }
    kernel_launch(accumulate_kernel,
                  blocks_of_walk(target, MOVE_BLOCKS, REDUCE_VECTORS, count_elems), target, acc,
                  acc_dtype, x, x_dtype, count_elems,
                  is_vector_start(acc, acc_dtype) && is_vector_start(x, x_dtype));
}

/* --------------------------------------------------------------- reduce -- */

/* The addresses of sources, by value. Any number of equally spaced sources is a base and a
 * distance. */
typedef struct source_list {
    const void *srcs[SHERDI_CUDA_POINTERS];
    const char *base; /* NULL: the addresses are in srcs */
    ptrdiff_t   stride_bytes;
    int         count;
    sherd_dtype dtype;
} source_list;

static inline __device__ const void *source_at(const source_list &list, int k)
{
    return list.base != NULL ? list.base + k * list.stride_bytes : list.srcs[k];
}

static cudaError_t source_list_make(source_list *list, const void *const *srcs, int count,
                                    sherd_dtype dtype)
{
    memset(list, 0, sizeof(*list));
    list->count = count;
    list->dtype = dtype;
    if (count <= SHERDI_CUDA_POINTERS) {
        memcpy(list->srcs, srcs, (size_t)count * sizeof(*srcs));
        return cudaSuccess;
    }
    list->base         = (const char *)srcs[0];
    list->stride_bytes = (const char *)srcs[1] - (const char *)srcs[0];
    for (int k = 2; k < count; k++) {
        if ((const char *)srcs[k] - (const char *)srcs[k - 1] != list->stride_bytes) {
            return cudaErrorInvalidValue;
        }
    }
    return cudaSuccess;
}

/* The weights of sources, by value. */
typedef struct weight_list {
    double of[SHERDI_DEVICE_WEIGHTS];
    int    count; /* 0: all weights are 1 */
} weight_list;

static cudaError_t weight_list_make(weight_list *list, const sherdi_reduce_args *args)
{
    list->count = args->weights == NULL ? 0 : args->num_srcs;
    if (list->count > SHERDI_DEVICE_WEIGHTS) {
        return cudaErrorInvalidValue;
    }
    if (list->count > 0) {
        memcpy(list->of, args->weights, (size_t)list->count * sizeof(*list->of));
    }
    return cudaSuccess;
}

static int source_list_is_vector(const void *const *srcs, int count, sherd_dtype dtype)
{
    int is_vector = 1;

    for (int k = 0; k < count; k++) {
        is_vector &= is_vector_start(srcs[k], dtype);
    }
    return is_vector;
}

typedef struct reduce_params {
    source_list sources;
    weight_list weights;
    void       *dst;
    void       *more_dsts[SHERDI_CUDA_POINTERS];
    size_t      count_elems;
    float       scale;
    sherd_dtype comm_dtype, dst_dtype;
    int         num_more_dsts;
    int         accumulate;
    int         is_vector;
} reduce_params;

static inline __device__ float4 add4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

static inline __device__ float weigh(const weight_list &list, int k, float x)
{
    return list.count == 0 ? x : x * (float)list.of[k];
}

static inline __device__ float4 weigh4(const weight_list &list, int k, float4 x)
{
    return list.count == 0 ? x
                           : make_float4(weigh(list, k, x.x), weigh(list, k, x.y),
                                         weigh(list, k, x.z), weigh(list, k, x.w));
}

typedef struct reduce_op {
    const reduce_params &args;
    packed4              x[REDUCE_VECTORS][SOURCES_AHEAD];
    packed4              old[REDUCE_VECTORS];

    __device__ void sources_load(packed4 *to, int first, size_t at)
    {
#pragma unroll
        for (int k = 0; k < SOURCES_AHEAD; k++) {
            if (first + k < args.sources.count) {
                to[k] = packed_load(source_at(args.sources, first + k), args.sources.dtype, at);
            }
        }
    }

    __device__ void load(int i, size_t at)
    {
        sources_load(x[i], 0, at);
        if (args.accumulate) {
            old[i] = packed_load(args.dst, args.dst_dtype, at);
        }
    }

    /* Adds in the order of the sources. */
    __device__ float4 sum(int i, size_t at)
    {
        const sherd_dtype type  = args.sources.dtype;
        float4            total = weigh4(args.weights, 0, packed_widen(x[i][0], type));

#pragma unroll
        for (int k = 1; k < SOURCES_AHEAD; k++) {
            if (k < args.sources.count) {
                total = add4(total, weigh4(args.weights, k, packed_widen(x[i][k], type)));
            }
        }
        for (int first = SOURCES_AHEAD; first < args.sources.count; first += SOURCES_AHEAD) {
            packed4 more[SOURCES_AHEAD];

            sources_load(more, first, at);
#pragma unroll
            for (int k = 0; k < SOURCES_AHEAD; k++) {
                if (first + k < args.sources.count) {
                    total = add4(total, weigh4(args.weights, first + k,
                                               packed_widen(more[k], type)));
                }
            }
        }
        return total;
    }

    __device__ float finish(float sum) const
    {
        return element_round(sherdi_canonical_f32(sum * args.scale), args.comm_dtype);
    }

    __device__ void vector(int i, size_t at)
    {
        float4 total  = sum(i, at);
        float4 result = make_float4(finish(total.x), finish(total.y), finish(total.z),
                                    finish(total.w));

        if (args.accumulate) {
            result = add4(packed_widen(old[i], args.dst_dtype), result);
            result = make_float4(sherdi_canonical_f32(result.x), sherdi_canonical_f32(result.y),
                                 sherdi_canonical_f32(result.z), sherdi_canonical_f32(result.w));
        }
        vector_store(args.dst, args.dst_dtype, at, result);
        for (int k = 0; k < args.num_more_dsts; k++) {
            vector_store(args.more_dsts[k], args.dst_dtype, at, result);
        }
    }

    __device__ void element(size_t at)
    {
        const source_list &list = args.sources;
        float              x    = weigh(args.weights, 0,
                                        element_load(source_at(list, 0), list.dtype, at));

        for (int k = 1; k < list.count; k++) {
            x = x + weigh(args.weights, k, element_load(source_at(list, k), list.dtype, at));
        }
        x = finish(x);
        if (args.accumulate) {
            x = sherdi_canonical_f32(element_load(args.dst, args.dst_dtype, at) + x);
        }
        element_store(args.dst, args.dst_dtype, at, x);
        for (int k = 0; k < args.num_more_dsts; k++) {
            element_store(args.more_dsts[k], args.dst_dtype, at, x);
        }
    }
} reduce_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, REDUCE_BLOCKS)
    reduce_kernel(const __grid_constant__ reduce_params args)
{
    reduce_op op = {args, {}, {}};

    elements_walk<REDUCE_VECTORS>(args.count_elems, args.is_vector, op);
}

extern "C" void sherdi_cuda_reduce(const sherdi_backend *backend, const sherdi_reduce_args *args)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);
    reduce_params     params;

    if (args->count_elems == 0) {
        return;
    }
    if (args->num_more_dsts > SHERDI_CUDA_POINTERS ||
        weight_list_make(&params.weights, args) != cudaSuccess ||
        source_list_make(&params.sources, args->srcs, args->num_srcs, args->src_dtype) !=
            cudaSuccess) {
        sherdi_cuda_launched(backend, cudaErrorInvalidValue);
        return;
    }
    params.dst           = args->dst;
    params.count_elems   = args->count_elems;
    params.scale         = args->scale;
    params.comm_dtype    = args->comm_dtype;
    params.dst_dtype     = args->dst_dtype;
    params.num_more_dsts = args->num_more_dsts;
    params.accumulate    = args->accumulate;
    params.is_vector     = is_vector_start(args->dst, args->dst_dtype) &&
                       source_list_is_vector(args->srcs, args->num_srcs, args->src_dtype);
    for (int k = 0; k < SHERDI_CUDA_POINTERS; k++) {
        params.more_dsts[k] = k < args->num_more_dsts ? args->more_dsts[k] : NULL;
        params.is_vector &= is_vector_start(params.more_dsts[k], args->dst_dtype);
    }
    kernel_launch(reduce_kernel,
                  blocks_of_walk(target, REDUCE_BLOCKS, REDUCE_VECTORS, args->count_elems), target,
                  params);
}

/* ---------------------------------------------------------- fixed point -- */

typedef struct fixed_params {
    source_list          sources;
    weight_list          weights;
    int64_t             *acc;
    size_t               count_elems;
    double               multiplier, limit;
    sherdi_fixed_counts *counts;
    int                  accumulate;
    int                  is_vector;
} fixed_params;

typedef struct fixed_op {
    const fixed_params &args;
    sherdi_fixed_counts counts;

    __device__ void load(int i, size_t at)
    {
        (void)i;
        (void)at;
    }

    __device__ double multiplier(int k) const
    {
        return args.weights.count == 0 ? args.multiplier : args.multiplier * args.weights.of[k];
    }

    __device__ int64_t fixed(float x, double multiplier)
    {
        return sherdi_fixed_element(x, multiplier, args.limit, &counts);
    }

    __device__ void vector(int i, size_t at)
    {
        const source_list &list = args.sources;
        longlong2         *acc  = (longlong2 *)(args.acc + at);
        longlong2          low  = {0, 0};
        longlong2          high = {0, 0};

        (void)i;
        if (args.accumulate) {
            low  = acc[0];
            high = acc[1];
        }
#pragma unroll 2
        for (int k = 0; k < list.count; k++) {
            float4 x = packed_widen(packed_load(source_at(list, k), list.dtype, at), list.dtype);
            double by = multiplier(k);

            low.x += fixed(x.x, by);
            low.y += fixed(x.y, by);
            high.x += fixed(x.z, by);
            high.y += fixed(x.w, by);
        }
        acc[0] = low;
        acc[1] = high;
    }

    __device__ void element(size_t at)
    {
        const source_list &list = args.sources;
        int64_t            sum  = args.accumulate ? args.acc[at] : 0;

        for (int k = 0; k < list.count; k++) {
            sum += fixed(element_load(source_at(list, k), list.dtype, at), multiplier(k));
        }
        args.acc[at] = sum;
    }
} fixed_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, REDUCE_BLOCKS)
    fixed_kernel(const __grid_constant__ fixed_params args)
{
    fixed_op op = {args, {0, 0}};
    bin_t    bad;

    elements_walk<REDUCE_VECTORS>(args.count_elems, args.is_vector, op);
    bad = op.counts.nonfinite + op.counts.out_of_range;
    if (__syncthreads_or(bad != 0)) { /* rare */
        block_sum(op.counts.nonfinite, (bin_t *)&args.counts->nonfinite);
        __syncthreads();
        block_sum(op.counts.out_of_range, (bin_t *)&args.counts->out_of_range);
    }
}

extern "C" void sherdi_cuda_reduce_fixed(const sherdi_backend     *backend,
                                         const sherdi_reduce_args *args,
                                         const sherdi_fixed_sink  *sink)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);
    fixed_params      params;

    if (args->count_elems == 0) {
        return;
    }
    if (weight_list_make(&params.weights, args) != cudaSuccess ||
        source_list_make(&params.sources, args->srcs, args->num_srcs, args->src_dtype) !=
            cudaSuccess) {
        sherdi_cuda_launched(backend, cudaErrorInvalidValue);
        return;
    }
    params.acc         = (int64_t *)args->dst;
    params.count_elems = args->count_elems;
    params.multiplier  = sink->multiplier;
    params.limit       = sink->limit;
    params.counts      = sink->counts;
    params.accumulate  = args->accumulate;
    params.is_vector   = (uintptr_t)args->dst % 16 == 0 &&
                       source_list_is_vector(args->srcs, args->num_srcs, args->src_dtype);
    kernel_launch(fixed_kernel,
                  blocks_of_walk(target, REDUCE_BLOCKS, REDUCE_VECTORS, args->count_elems), target,
                  params);
}

typedef struct fixed_to_f32_op {
    float         *dst;
    const int64_t *acc;
    longlong2      low[REDUCE_VECTORS], high[REDUCE_VECTORS];

    __device__ void load(int i, size_t at)
    {
        low[i]  = ((const longlong2 *)(acc + at))[0];
        high[i] = ((const longlong2 *)(acc + at))[1];
    }

    __device__ void vector(int i, size_t at)
    {
        *(float4 *)(dst + at) = make_float4(sherdi_fixed_f32(low[i].x), sherdi_fixed_f32(low[i].y),
                                            sherdi_fixed_f32(high[i].x), sherdi_fixed_f32(high[i].y));
    }

    __device__ void element(size_t at)
    {
        dst[at] = sherdi_fixed_f32(acc[at]);
    }
} fixed_to_f32_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, MOVE_BLOCKS)
    fixed_to_f32_kernel(float *dst, const int64_t *acc, size_t count_elems, int is_vector)
{
    fixed_to_f32_op op = {dst, acc, {}, {}};

    elements_walk<REDUCE_VECTORS>(count_elems, is_vector, op);
}

extern "C" void sherdi_cuda_fixed_to_f32(const sherdi_backend *backend, float *dst,
                                         const int64_t *acc, size_t count_elems)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    if (count_elems == 0) {
        return;
    }
    kernel_launch(fixed_to_f32_kernel,
                  blocks_of_walk(target, MOVE_BLOCKS, REDUCE_VECTORS, count_elems), target, dst,
                  acc, count_elems, is_vector_start(dst, SHERD_F32) && (uintptr_t)acc % 16 == 0);
}
