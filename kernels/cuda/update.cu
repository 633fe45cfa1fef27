/* The element-wise updates (kernels/updates/): one pass over a block's parts of the state and gradient (read), which also
 * writes the new parameters and adds up the fingerprint. spans.cuh says who owns which element; each formula has a kernel
 * of its own, made of one template.
 *
 * update_kernel   256 threads, 64 registers: four thread blocks on a processor, each thread with two vectors of
 *                 four elements in flight (of three parts 56 bytes each with a 16-bit gradient). 64 bytes shared.
 * lamb_norms      see there.
 * Vectors need the parts at multiples of 16 bytes, grad and param of four elements; the slices of a
 * block are. Otherwise elements are loaded one by one. */
#include "kernels/cuda/norms.cuh"
#include "kernels/cuda/spans.cuh"
#include "kernels/updates/updates.h"

#define UPDATE_BLOCKS 4 /* on a processor */

/* What all updates have; as many parts as the update at hand. */
typedef struct update_arrays {
    const void *grad;
    float      *parts[SHERDI_UPDATE_MOST_PARTS];
    void       *param; /* may be NULL */
    sherd_dtype grad_dtype, param_dtype;
    int         is_vector;
} update_arrays;

template <int PARTS> struct update_loaded {
    packed4 grad;
    float4  parts[PARTS];
};

template <int PARTS>
static inline __device__ void update_load(const update_arrays &a, size_t at,
                                          update_loaded<PARTS> *x)
{
    x->grad = packed_load(a.grad, a.grad_dtype, at);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        x->parts[part] = *(const float4 *)(a.parts[part] + at);
    }
}

static inline __device__ bin_t mix_vector(uint64_t index, float4 x)
{
    return sherdi_mix_element(index, x.x) + sherdi_mix_element(index + 1, x.y) +
           sherdi_mix_element(index + 2, x.z) + sherdi_mix_element(index + 3, x.w);
}

/* The walk's operation. Rule names an update: its coefficients, its number of parts and its element. */
template <typename Rule> struct update {
    typedef update_loaded<Rule::PARTS> loaded;
    typedef typename Rule::coeffs      coeffs;

    const update_arrays &arrays;
    const coeffs        *groups;
    const float         *ratios; /* may be NULL */
    coeffs               c;      /* of the span at hand */
    bin_t                fingerprint;

    __device__ void span(const span_view &view)
    {
        c = groups[view.group];
        if (ratios != NULL) {
            c.neg_step_size = c.neg_step_size * ratios[view.param];
        }
    }

    __device__ void range(const span_view &view, size_t tile_first, size_t low, size_t high)
    {
        range_update(*this, view, tile_first, low, high, arrays.is_vector);
    }

    __device__ void load(size_t at, loaded *x)
    {
        update_load(arrays, at, x);
    }

    /* One of the four elements of a vector. */
    template <float float4::*LANE> __device__ void lane(loaded &x, float grad) const
    {
        float element[Rule::PARTS];

#pragma unroll
        for (int part = 0; part < Rule::PARTS; part++) {
            element[part] = x.parts[part].*LANE;
        }
        Rule::element(&c, grad, element);
#pragma unroll
        for (int part = 0; part < Rule::PARTS; part++) {
            x.parts[part].*LANE = element[part];
        }
    }

    __device__ void vector(loaded &x, const span_view &view, size_t at)
    {
        float4 grad = packed_widen(x.grad, arrays.grad_dtype);

        lane<&float4::x>(x, grad.x);
        lane<&float4::y>(x, grad.y);
        lane<&float4::z>(x, grad.z);
        lane<&float4::w>(x, grad.w);
#pragma unroll
        for (int part = 0; part < Rule::PARTS; part++) {
            *(float4 *)(arrays.parts[part] + at) = x.parts[part];
        }
        if (arrays.param != NULL) {
            vector_store(arrays.param, arrays.param_dtype, at, x.parts[0]);
        }
        fingerprint += mix_vector(view.index + at, x.parts[0]);
    }

    __device__ void element(const span_view &view, size_t at)
    {
        float element[Rule::PARTS];

        for (int part = 0; part < Rule::PARTS; part++) {
            element[part] = arrays.parts[part][at];
        }
        Rule::element(&c, element_load(arrays.grad, arrays.grad_dtype, at), element);
        for (int part = 0; part < Rule::PARTS; part++) {
            arrays.parts[part][at] = element[part];
        }
        if (arrays.param != NULL) {
            element_store(arrays.param, arrays.param_dtype, at, element[0]);
        }
        fingerprint += sherdi_mix_element(view.index + at, element[0]);
    }
};

template <typename Rule>
static void __global__ __launch_bounds__(BLOCK_THREADS, UPDATE_BLOCKS)
    update_kernel(const __grid_constant__ update_arrays arrays,
                  const typename Rule::coeffs *groups, const float *ratios,
                  const sherdi_span *spans, size_t num_spans, bin_t *fingerprint)
{
    update<Rule> op = {arrays, groups, ratios, {}, 0};

    spans_walk(spans, num_spans, TILE_ELEMS, op);
    block_sum(op.fingerprint, fingerprint);
}

static update_arrays arrays_of(const sherdi_update_args *args, int num_parts)
{
    update_arrays arrays = {};

    arrays.grad        = args->grad;
    arrays.grad_dtype  = args->grad_dtype;
    arrays.param       = args->param;
    arrays.param_dtype = args->param_dtype;
    arrays.is_vector   = is_vector_start(args->grad, args->grad_dtype) &&
                       is_vector_start(args->param, args->param_dtype);
    for (int part = 0; part < num_parts; part++) {
        arrays.parts[part] = args->parts[part];
        arrays.is_vector   = arrays.is_vector && is_vector_start(args->parts[part], SHERD_F32);
    }
    return arrays;
}

template <typename Rule>
static void update_launch(const sherdi_backend *backend, const sherdi_update_args *args)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    kernel_launch(update_kernel<Rule>, blocks_of_machine(target, UPDATE_BLOCKS), target,
                  arrays_of(args, Rule::PARTS), (const typename Rule::coeffs *)args->coeffs,
                  args->ratios, args->spans, args->num_spans, (bin_t *)args->fingerprint);
}

#define SHERDI_UPDATE(name, num_parts)                                                             \
    struct name##_rule {                                                                           \
        enum { PARTS = num_parts };                                                                \
        typedef sherdi_##name##_coeffs coeffs;                                                     \
                                                                                                   \
        static __device__ void element(const coeffs *c, float grad, float *x)                      \
        {                                                                                          \
            sherdi_##name##_element(c, grad, x);                                                   \
        }                                                                                          \
    };
#include "kernels/updates/rows.h"

extern "C" void sherdi_cuda_update(const sherdi_backend *backend, sherdi_update_id update,
                                   const sherdi_update_args *args)
{
    static void (*const LAUNCHES[])(const sherdi_backend *, const sherdi_update_args *) = {
#define SHERDI_UPDATE(name, num_parts) update_launch<name##_rule>,
#include "kernels/updates/rows.h"
    };

    LAUNCHES[update](backend, args);
}

extern "C" cudaError_t sherdi_cuda_probe(void)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, update_kernel<adam_rule>);
}

/* ----------------------------------------------------------- lamb norms -- */

/* Both norms of every parameter of a block. A thread block owns the chunks that start in its tiles of 4096
 * elements of the block; chunks count from their span's start. A warp takes eight chunks at once: it loads
 * them as vectors, makes directions, lays weights and directions down as 16 rows in shared memory and sums row by
 * row. Bins of the parameter at hand are the thread block's, in shared memory; they go to norms[] when the
 * next parameter comes, so one atomic per bin, thread block and parameter. 37 KiB shared. */
#define LAMB_PARTS       3
#define NORM_TILE_ELEMS  ((size_t)4096)
#define NORM_WARP_CHUNKS 8
#define NORM_BLOCKS      3 /* on a processor */

static_assert(NORM_TILE_ELEMS == BLOCK_WARPS * NORM_WARP_CHUNKS * SHERD_CHUNK_ELEMS,
              "a warp has one turn per tile");
static_assert(sizeof(sherdi_lamb_norms) == 2 * NORM_WORDS * sizeof(bin_t), "two accumulators");

typedef struct norms_op {
    typedef update_loaded<LAMB_PARTS> loaded;

    const update_arrays      &arrays;
    const sherdi_lamb_coeffs *groups;
    sherdi_lamb_norms        *norms;
    unsigned char            *rows; /* of this warp */
    bin_t                    *bins; /* of the thread block: 2 * NORM_WORDS */
    bin_t                    *warp_bins; /* of this lane's half: weights or directions */
    int32_t                   param;
    sherdi_lamb_coeffs        c;
    norm_cache                cache;

    __device__ void flush(void)
    {
        cache_flush(&cache, 16, warp_bins);
        bins_flush(bins, 2 * NORM_WORDS, (bin_t *)&norms[param]);
    }

    __device__ void span(const span_view &view)
    {
        if (param >= 0 && param != view.param) {
            flush();
        }
        param = view.param;
        c     = groups[view.group];
    }

    __device__ float direction(float grad, float p, float m, float v) const
    {
        return sherdi_lamb_direction(&c, grad, p, &m, &v);
    }

    __device__ void row_store(unsigned vector, float4 p, float4 u)
    {
        unsigned char *at = rows + vector / 16 * ROW_F32_BYTES + vector % 16 * 16;

        *(float4 *)at                                        = p;
        *(float4 *)(at + NORM_WARP_CHUNKS * ROW_F32_BYTES) = u;
    }

    __device__ void vector_store_rows(unsigned vector, const loaded &x)
    {
        float4 grad = packed_widen(x.grad, arrays.grad_dtype);

        float4 p    = x.parts[0];
        float4 m    = x.parts[1];
        float4 v    = x.parts[2];

        row_store(vector, p,
                  make_float4(direction(grad.x, p.x, m.x, v.x), direction(grad.y, p.y, m.y, v.y),
                              direction(grad.z, p.z, m.z, v.z), direction(grad.w, p.w, m.w, v.w)));
    }

    /* Up to four elements, the rest zero. */
    __device__ void elements_store_rows(unsigned vector, size_t at, size_t count)
    {
        float p[VECTOR_ELEMS] = {0, 0, 0, 0};
        float u[VECTOR_ELEMS] = {0, 0, 0, 0};

#pragma unroll
        for (size_t i = 0; i < VECTOR_ELEMS; i++) {
            if (i < count) {
                p[i] = arrays.parts[0][at + i];
                u[i] = direction(element_load(arrays.grad, arrays.grad_dtype, at + i), p[i],
                                 arrays.parts[1][at + i], arrays.parts[2][at + i]);
            }
        }
        row_store(vector, make_float4(p[0], p[1], p[2], p[3]), make_float4(u[0], u[1], u[2], u[3]));
    }

    /* Lays down the weights and directions of `count` elements from `first`, at most eight chunks. */
    __device__ void rows_fill(size_t first, size_t count)
    {
        const size_t all = NORM_WARP_CHUNKS * SHERD_CHUNK_ELEMS;

        if (count == all && arrays.is_vector && first % VECTOR_ELEMS == 0) {
#pragma unroll 1
            for (unsigned i = 0; i < all / VECTOR_ELEMS; i += 64) {
                unsigned      vector = i + threadIdx.x % 32;
                loaded        x[2];

                update_load(arrays, first + vector * VECTOR_ELEMS, &x[0]);
                update_load(arrays, first + (vector + 32) * VECTOR_ELEMS, &x[1]);
                vector_store_rows(vector, x[0]);
                vector_store_rows(vector + 32, x[1]);
            }
            return;
        }
#pragma unroll 1
        for (unsigned vector = threadIdx.x % 32; vector < all / VECTOR_ELEMS; vector += 32) {
            size_t done = vector * VECTOR_ELEMS;

            elements_store_rows(vector, first + done, done < count ? count - done : 0);
        }
    }

    __device__ void range(const span_view &view, size_t tile_first, size_t low, size_t high)
    {
        size_t elems = view.end - view.first;
        size_t skip  = (low - view.first + SHERD_CHUNK_ELEMS - 1) / SHERD_CHUNK_ELEMS;
        size_t end   = (high - view.first + SHERD_CHUNK_ELEMS - 1) / SHERD_CHUNK_ELEMS;
        size_t chunk = skip + threadIdx.x / 32 * NORM_WARP_CHUNKS;
        double sum;

        (void)tile_first;
        if (chunk >= end) {
            return; /* the whole warp */
        }
        end = end - chunk < NORM_WARP_CHUNKS ? end : chunk + NORM_WARP_CHUNKS;
        elems = end * SHERD_CHUNK_ELEMS < elems ? end * SHERD_CHUNK_ELEMS : elems;
        rows_fill(view.first + chunk * SHERD_CHUNK_ELEMS, elems - chunk * SHERD_CHUNK_ELEMS);
        __syncwarp();
        sum = rows_sum_f32(rows);
        __syncwarp();
        cache_add(&cache, 16, threadIdx.x % 2 == 0 ? sum : 0, warp_bins);
    }
} norms_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, NORM_BLOCKS)
    lamb_norms_kernel(const __grid_constant__ update_arrays arrays,
                      const sherdi_lamb_coeffs *coeffs, const sherdi_span *spans, size_t num_spans,
                      sherdi_lamb_norms *norms)
{
    __shared__ __align__(16) unsigned char rows[BLOCK_WARPS][WARP_ROWS_BYTES];
    __shared__ bin_t                       bins[2 * NORM_WORDS];
    norms_op                               op = {arrays,
                                                 coeffs,
                                                 norms,
                                                 rows[threadIdx.x / 32],
                                                 bins,
                                                 bins + (threadIdx.x % 32 < 16 ? 0 : NORM_WORDS),
                                                 -1,
                                                 {},
                                                 {}};

    if (threadIdx.x < 2 * NORM_WORDS) {
        bins[threadIdx.x] = 0;
    }
    __syncthreads();
    cache_init(&op.cache);
    spans_walk(spans, num_spans, NORM_TILE_ELEMS, op);
    if (op.param >= 0) {
        op.flush();
    }
}

extern "C" void sherdi_cuda_lamb_norms(const sherdi_backend     *backend,
                                       const sherdi_update_args *args)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    kernel_launch(lamb_norms_kernel, blocks_of_machine(target, NORM_BLOCKS), target,
                  arrays_of(args, LAMB_PARTS), (const sherdi_lamb_coeffs *)args->coeffs, args->spans,
                  args->num_spans, args->norms);
}

/* One thread per parameter. */
static void __global__ __launch_bounds__(BLOCK_THREADS)
    lamb_ratios_kernel(const __grid_constant__ sherdi_lamb_ratio_args args)
{
    for (size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x; i < args.num_params;
         i += (size_t)gridDim.x * BLOCK_THREADS) {
        int32_t group = args.groups[i];

        args.ratios[i] = group < 0 ? 1
                                   : sherdi_lamb_ratio(&args.coeffs[group], &args.norms[i].param,
                                                       &args.norms[i].update);
    }
}

extern "C" void sherdi_cuda_lamb_ratios(const sherdi_backend         *backend,
                                        const sherdi_lamb_ratio_args *args)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    if (args->num_params == 0) {
        return;
    }
    kernel_launch(lamb_ratios_kernel, blocks_of(target, 1, args->num_params, BLOCK_THREADS), target,
                  *args);
}
