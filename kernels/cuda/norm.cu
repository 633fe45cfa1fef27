/* The gradient's norm and the fingerprint.
 *
 * sumsq: a warp owns tiles of 4 KiB (16 chunks of fp32, 32 of a 16-bit type), numbers w, w + warps,
 * ... It loads a tile as eight coalesced vectors of 16 bytes per thread, all in flight at once. It
 * then writes the tile to shared memory, each chunk as a row, and sums each row in the formula's
 * order (norms.cuh). 37 KiB of shared memory, four thread blocks on a processor. Vectors need x at
 * a multiple of 16 bytes; otherwise elements are loaded one by one. Chunk sums are added as
 * integers, so the launch shape does not show.
 *
 * fingerprint: threads own elements as in the updates (spans.cuh), and read only the master. */
#include "kernels/cuda/norms.cuh"
#include "kernels/cuda/spans.cuh"

#define SUMSQ_BLOCKS       4 /* thread blocks on a processor */
/* The thread blocks for which registers are limited: on compute capability 10.x, bf16 needs more
 * registers than four blocks leave. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define SUMSQ_RESIDENT 3
#else
#define SUMSQ_RESIDENT SUMSQ_BLOCKS
#endif
#define SUMSQ_VECTORS      8
#define FINGERPRINT_BLOCKS 5 /* more would spill registers on compute capability 10.x */

/* Writes a tile of x to the rows: at most `left` chunks, then zeros. */
template <typename Elem, int ROW_BYTES>
static inline __device__ void rows_load(unsigned char *rows, const Elem *x, size_t left,
                                        int is_vector)
{
    const unsigned vectors = SHERD_CHUNK_ELEMS * sizeof(Elem) / 16; /* of a chunk */
    const unsigned lane   = threadIdx.x % 32;

    if (is_vector) {
        uint4 vector[SUMSQ_VECTORS];

#pragma unroll
        for (unsigned i = 0; i < SUMSQ_VECTORS; i++) {
            unsigned number = i * 32 + lane;

            vector[i] =
                number / vectors < left ? ((const uint4 *)x)[number] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (unsigned i = 0; i < SUMSQ_VECTORS; i++) {
            unsigned number = i * 32 + lane;

            *(uint4 *)(rows + number / vectors * ROW_BYTES + number % vectors * 16) = vector[i];
        }
        return;
    }
#pragma unroll 4
    for (unsigned i = lane; i < SUMSQ_VECTORS * 32 * 16 / sizeof(Elem); i += 32) {
        unsigned chunk = i / SHERD_CHUNK_ELEMS;

        ((Elem *)(rows + chunk * ROW_BYTES))[i % SHERD_CHUNK_ELEMS] = chunk < left ? x[i] : 0;
    }
}

template <sherd_dtype DTYPE>
static void __global__ __launch_bounds__(BLOCK_THREADS, SUMSQ_RESIDENT)
    sumsq_kernel(const void *x, size_t num_chunks, int is_vector, bin_t *acc)
{
    __shared__ __align__(16) unsigned char rows[BLOCK_WARPS][WARP_ROWS_BYTES];
    __shared__ bin_t                       bins[NORM_WORDS];
    const size_t                           chunks = DTYPE == SHERD_F32 ? 16 : 32; /* of a tile */
    const unsigned                         warp   = threadIdx.x / 32;
    norm_cache                             cache;

    if (threadIdx.x < NORM_WORDS) {
        bins[threadIdx.x] = 0;
    }
    __syncthreads();
    cache_init(&cache);
    for (size_t first = ((size_t)blockIdx.x * BLOCK_WARPS + warp) * chunks; first < num_chunks;
         first += (size_t)gridDim.x * BLOCK_WARPS * chunks) {
        double sum;

        if (DTYPE == SHERD_F32) {
            rows_load<uint32_t, ROW_F32_BYTES>(
                rows[warp], (const uint32_t *)x + first * SHERD_CHUNK_ELEMS, num_chunks - first,
                is_vector);
            __syncwarp();
            sum = rows_sum_f32(rows[warp]);
            sum = threadIdx.x % 2 == 0 ? sum : 0;
        } else {
            rows_load<uint16_t, ROW_HALF_BYTES>(
                rows[warp], (const uint16_t *)x + first * SHERD_CHUNK_ELEMS, num_chunks - first,
                is_vector);
            __syncwarp();
            sum = rows_sum_half<DTYPE>(rows[warp]);
        }
        __syncwarp();
        cache_add(&cache, 32, sum, bins);
    }
    cache_flush(&cache, 32, bins);
    bins_flush(bins, NORM_WORDS, acc);
}

extern "C" void sherdi_cuda_sumsq(const sherdi_backend *backend, const void *x, sherd_dtype dtype,
                                  size_t count_elems, sherdi_norm_acc *acc)
{
    sherdi_cuda_target target     = sherdi_cuda_target_of(backend);
    size_t            num_chunks = count_elems / SHERD_CHUNK_ELEMS;
    int               is_f32     = dtype == SHERD_F32;
    size_t blocks = blocks_of(target, SUMSQ_BLOCKS, num_chunks, BLOCK_WARPS * (is_f32 ? 16 : 32));

    if (num_chunks == 0) {
        return;
    }
    kernel_launch(is_f32                ? sumsq_kernel<SHERD_F32>
                  : dtype == SHERD_BF16 ? sumsq_kernel<SHERD_BF16>
                                        : sumsq_kernel<SHERD_F16>,
                  blocks, target, x, num_chunks, (uintptr_t)x % 16 == 0, (bin_t *)acc);
}

/* ---------------------------------------------------------- fingerprint -- */

typedef struct fingerprint_op {
    typedef float4 loaded;

    const float *master;
    int          is_vector;
    bin_t        sum;

    __device__ void span(const span_view &view)
    {
        (void)view;
    }

    __device__ void range(const span_view &view, size_t tile_first, size_t low, size_t high)
    {
        range_update(*this, view, tile_first, low, high, is_vector);
    }

    __device__ void load(size_t at, float4 *x)
    {
        *x = *(const float4 *)(master + at);
    }

    __device__ void vector(const float4 &x, const span_view &view, size_t at)
    {
        uint64_t index = view.index + at;

        sum += sherdi_mix_element(index, x.x) + sherdi_mix_element(index + 1, x.y) +
               sherdi_mix_element(index + 2, x.z) + sherdi_mix_element(index + 3, x.w);
    }

    __device__ void element(const span_view &view, size_t at)
    {
        sum += sherdi_mix_element(view.index + at, master[at]);
    }
} fingerprint_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, FINGERPRINT_BLOCKS)
    fingerprint_kernel(const sherdi_span *spans, size_t num_spans, const float *master,
                       int is_vector, bin_t *sum)
{
    fingerprint_op op = {master, is_vector, 0};

    spans_walk(spans, num_spans, TILE_ELEMS, op);
    block_sum(op.sum, sum);
}

extern "C" void sherdi_cuda_fingerprint(const sherdi_backend *backend, const sherdi_span *spans,
                                        size_t num_spans, const float *master, uint64_t *sum)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    kernel_launch(fingerprint_kernel, blocks_of_machine(target, FINGERPRINT_BLOCKS), target, spans,
                  num_spans, master, is_vector_start(master, SHERD_F32), (bin_t *)sum);
}
