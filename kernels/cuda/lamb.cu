/* LAMB's first sweep, which takes both norms of every parameter of a block, and the trust ratios.
 *
 * A thread block owns the chunks that start in its tiles of 4096 elements of the block; chunks
 * count from their span's start. A warp takes eight chunks at once: it loads them as vectors, makes
 * the directions, writes weights and directions to shared memory as 16 rows, and sums row by row
 * (norms.cuh). The thread block keeps the bins of the current parameter in shared memory and adds
 * them to norms[] when the next parameter comes. So there is one atomic addition per bin, thread
 * block and parameter. 37 KiB of shared memory. Sums are sums of integers, so the launch shape does
 * not show.
 *
 * One kernel takes a state in fp32, another one an encoded state. For the ratios, a thread takes a
 * parameter. */
#include "kernels/cuda/encoded.cuh"
#include "kernels/cuda/norms.cuh"
#include "kernels/cuda/updates.cuh"

#define LAMB_PARTS       3
#define NORM_TILE_ELEMS  ((size_t)4096)
#define NORM_WARP_CHUNKS 8

static_assert(NORM_TILE_ELEMS == BLOCK_WARPS * NORM_WARP_CHUNKS * SHERD_CHUNK_ELEMS,
              "a warp has one turn per tile");
static_assert(sizeof(sherdi_lamb_norms) == 2 * NORM_WORDS * sizeof(bin_t), "two accumulators");

/* A source of gradients, weights and moments: it loads a vector, whole or only the elements in
 * `mine`, and gives the values of its parts. */
struct plain_source {
    enum {
        AHEAD  = 2, /* vectors that a thread loads before it uses the first */
        BLOCKS = 3, /* thread blocks on a processor */
    };
    typedef update_arrays             arrays;
    typedef update_loaded<LAMB_PARTS> loaded;

    static __device__ void load(const arrays &a, size_t at, loaded *x)
    {
        update_load(a, at, x);
    }

    static __device__ void load_some(const arrays &a, size_t at, unsigned mine, loaded *x)
    {
        unsigned width = a.grad_dtype == SHERD_F32 ? 4 : 2;

        x->grad = packed_load_mine((const unsigned char *)a.grad + at * width, width, mine, false);
#pragma unroll
        for (int part = 0; part < LAMB_PARTS; part++) {
            x->parts[part] = packed_widen(
                packed_load_mine((const unsigned char *)(a.parts[part] + at), 4, mine, false),
                SHERD_F32);
        }
    }

    static __device__ void values(const arrays &a, size_t at, const loaded &x, float4 *out)
    {
        (void)a;
        (void)at;
#pragma unroll
        for (int part = 0; part < LAMB_PARTS; part++) {
            out[part] = x.parts[part];
        }
    }
};

struct encoded_source {
    enum { AHEAD = 2, BLOCKS = 2 };
    typedef encoded_arrays             arrays;
    typedef encoded_vector<LAMB_PARTS> loaded;

    static __device__ void load(const arrays &a, size_t at, loaded *x)
    {
        load_some(a, at, 15, x);
    }

    static __device__ void load_some(const arrays &a, size_t at, unsigned mine, loaded *x)
    {
        encoded_load(a, at, mine, x);
    }

    static __device__ void values(const arrays &a, size_t at, const loaded &x, float4 *out)
    {
        float values[LAMB_PARTS][VECTOR_ELEMS];

        encoded_decode(a, at, x, values);
#pragma unroll
        for (int part = 0; part < LAMB_PARTS; part++) {
            out[part] =
                make_float4(values[part][0], values[part][1], values[part][2], values[part][3]);
        }
    }
};

template <typename Source> struct norms_op {
    typedef typename Source::loaded loaded;

    const typename Source::arrays &arrays;
    const sherdi_lamb_coeffs      *groups;
    sherdi_lamb_norms             *norms;
    unsigned char                 *rows;      /* of this warp, in shared memory */
    bin_t                         *bins;      /* of the thread block: 2 * NORM_WORDS */
    bin_t                         *warp_bins; /* of this half of the warp: weights or directions */
    int32_t                        param;
    sherdi_lamb_coeffs             c;
    norm_cache                     cache;

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

        *(float4 *)at                                      = p;
        *(float4 *)(at + NORM_WARP_CHUNKS * ROW_F32_BYTES) = u;
    }

    /* Writes the weights and directions of a vector's first `count` elements to the rows; the rest
     * is zero. */
    __device__ void vector_store_rows(unsigned vector, size_t at, const loaded &x, size_t count)
    {
        float4 grad = packed_widen(x.grad, arrays.grad_dtype);
        float4 all[LAMB_PARTS];
        float4 u;

        Source::values(arrays, at, x, all);
        u   = make_float4(direction(grad.x, all[0].x, all[1].x, all[2].x),
                          direction(grad.y, all[0].y, all[1].y, all[2].y),
                          direction(grad.z, all[0].z, all[1].z, all[2].z),
                          direction(grad.w, all[0].w, all[1].w, all[2].w));
        u.x = count > 0 ? u.x : 0;
        u.y = count > 1 ? u.y : 0;
        u.z = count > 2 ? u.z : 0;
        u.w = count > 3 ? u.w : 0;
        row_store(vector, all[0], u);
    }

    /* Writes the weights and directions of `count` elements from `first` to the rows, at most eight
     * chunks. */
    __device__ void rows_fill(size_t first, size_t count)
    {
        const size_t all = NORM_WARP_CHUNKS * SHERD_CHUNK_ELEMS;

        if (count == all && arrays.is_vector && first % VECTOR_ELEMS == 0) {
#pragma unroll 1
            for (unsigned i = 0; i < all / VECTOR_ELEMS; i += 32 * Source::AHEAD) {
                unsigned vector = i + threadIdx.x % 32;
                size_t   at     = first + vector * VECTOR_ELEMS;
                loaded   x[Source::AHEAD];

#pragma unroll
                for (unsigned k = 0; k < Source::AHEAD; k++) {
                    Source::load(arrays, at + k * 32 * VECTOR_ELEMS, &x[k]);
                }
#pragma unroll
                for (unsigned k = 0; k < Source::AHEAD; k++) {
                    vector_store_rows(vector + k * 32, at + k * 32 * VECTOR_ELEMS, x[k],
                                      VECTOR_ELEMS);
                }
            }
            return;
        }
#pragma unroll 1
        for (unsigned vector = threadIdx.x % 32; vector < all / VECTOR_ELEMS; vector += 32) {
            size_t at = first + vector * VECTOR_ELEMS;
            loaded x;

            Source::load_some(arrays, at, mine_of(at, first, first + count), &x);
            vector_store_rows(vector, at, x, first + count > at ? first + count - at : 0);
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
            return; /* with the whole warp */
        }
        end   = end - chunk < NORM_WARP_CHUNKS ? end : chunk + NORM_WARP_CHUNKS;
        elems = end * SHERD_CHUNK_ELEMS < elems ? end * SHERD_CHUNK_ELEMS : elems;
        rows_fill(view.first + chunk * SHERD_CHUNK_ELEMS, elems - chunk * SHERD_CHUNK_ELEMS);
        __syncwarp();
        sum = rows_sum_f32(rows);
        __syncwarp();
        cache_add(&cache, 16, threadIdx.x % 2 == 0 ? sum : 0, warp_bins);
    }
};

template <typename Source>
static void __global__ __launch_bounds__(BLOCK_THREADS, Source::BLOCKS)
    lamb_norms_kernel(const __grid_constant__ typename Source::arrays arrays,
                      const sherdi_lamb_coeffs *coeffs, const sherdi_span *spans, size_t num_spans,
                      sherdi_lamb_norms *norms)
{
    __shared__ __align__(16) unsigned char rows[BLOCK_WARPS][WARP_ROWS_BYTES];
    __shared__ bin_t                       bins[2 * NORM_WORDS];
    norms_op<Source>                       op = {arrays, coeffs,
                                                 norms,  rows[threadIdx.x / 32],
                                                 bins,   bins + (threadIdx.x % 32 < 16 ? 0 : NORM_WORDS),
                                                 -1,     {},
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
    sherdi_cuda_target        target = sherdi_cuda_target_of(backend);
    const sherdi_lamb_coeffs *coeffs = (const sherdi_lamb_coeffs *)args->coeffs;

    if (sherdi_has_encoded(args->encodings, SHERDI_UPDATE_MOST_PARTS)) {
        kernel_launch(lamb_norms_kernel<encoded_source>,
                      blocks_of_machine(target, encoded_source::BLOCKS), target,
                      encoded_arrays_of(args, LAMB_PARTS), coeffs, args->spans, args->num_spans,
                      args->norms);
    } else {
        kernel_launch(lamb_norms_kernel<plain_source>,
                      blocks_of_machine(target, plain_source::BLOCKS), target,
                      update_arrays_of(args, LAMB_PARTS), coeffs, args->spans, args->num_spans,
                      args->norms);
    }
}

/* A thread makes the ratio of one parameter. */
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
