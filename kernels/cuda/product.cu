/* Matrix products and normalisation.
 *
 * product: a thread block owns a tile of the result: 128 x 128 elements if the matrix has enough
 * tiles of this size for the machine, else 64 x 64. A thread owns 8 x 8 or 4 x 4 elements of the
 * tile, in groups of four. The factors of STEP_INNER inner indices lie in shared memory, by inner
 * index, in two buffers: while one buffer is multiplied, the next factors come from memory into
 * registers. Threads load along the stride that is 1, so at least eight of them read neighbours;
 * rows are padded so that in both cases stores meet every bank once. 17 KiB of shared memory.
 *
 * An element's sum is one chain of fma, in the order of the inner index, in one thread, so neither
 * tiles nor steps change it. Beyond the end the factors are -0 and +0: adding their product changes
 * no sum, not even the sign of a zero. Tensor cores are not used, since they add in an order of
 * their own. In a symmetric result, thread blocks below the diagonal end at once, and the others
 * store each element twice.
 *
 * normalize: a thread owns elements; the first thread of each thread block computes the factor. */
#include "kernels/cuda/elements.cuh"
#include "kernels/product.h"

#define TILE_THREADS   16 /* threads in each direction of a tile */
#define STEP_INNER     8
#define PRODUCT_BLOCKS 2 /* thread blocks on a processor */
#define SHARED_PAD     4

static_assert(TILE_THREADS * TILE_THREADS == BLOCK_THREADS, "every thread has a part of the tile");

/* One factor: element (i, k) is first[i * stride + k * inner_stride]. */
typedef struct factor_view {
    const float *first;
    size_t       stride, inner_stride;
    size_t       count, inner;
} factor_view;

/* A tile's part of a factor: 16 * PER * STEP_INNER elements, of which each thread loads STEP_INNER
 * * PER / 16. */
template <int PER> struct factor_part {
    enum { TILE = TILE_THREADS * PER, LOADS = TILE * STEP_INNER / BLOCK_THREADS };

    float x[LOADS];

    /* Gives the position in the tile of the thread's element number `load`. */
    static __device__ void place(const factor_view &view, int load, unsigned *i, unsigned *k)
    {
        unsigned number = (unsigned)load * BLOCK_THREADS + threadIdx.x;

        if (view.inner_stride == 1) {
            *k = number % STEP_INNER;
            *i = number / STEP_INNER;
        } else {
            *i = number % TILE;
            *k = number / TILE;
        }
    }

    __device__ void load(const factor_view &view, size_t first, size_t first_inner, float beyond)
    {
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            unsigned i, k;

            place(view, load, &i, &k);
            x[load] =
                first + i < view.count && first_inner + k < view.inner
                    ? view.first[(first + i) * view.stride + (first_inner + k) * view.inner_stride]
                    : beyond;
        }
    }

    __device__ void store(const factor_view &view, float (*shared)[TILE + SHARED_PAD]) const
    {
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            unsigned i, k;

            place(view, load, &i, &k);
            shared[k][i] = x[load];
        }
    }
};

/* Returns the row or column of a tile that is number `part` of thread `thread`. A thread's groups
 * of four lie 64 apart. */
static inline __device__ unsigned tile_index(unsigned thread, int part)
{
    return (unsigned)part / 4 * (4 * TILE_THREADS) + thread * 4 + (unsigned)part % 4;
}

/* Reads a thread's elements of a row in shared memory: one group of four, or two. */
template <int PER>
static inline __device__ void tile_read(float *x, const float *row, unsigned thread)
{
#pragma unroll
    for (int part = 0; part < PER; part += 4) {
        float4 four = *(const float4 *)(row + tile_index(thread, part));

        x[part]     = four.x;
        x[part + 1] = four.y;
        x[part + 2] = four.z;
        x[part + 3] = four.w;
    }
}

template <int PER>
static inline __device__ void tile_store(const sherdi_product_args &args, size_t first_row,
                                         size_t first_col, const float (*sums)[PER])
{
#pragma unroll
    for (int a = 0; a < PER; a++) {
        size_t i = first_row + tile_index(threadIdx.x / TILE_THREADS, a);

#pragma unroll
        for (int b = 0; b < PER; b++) {
            size_t j  = first_col + tile_index(threadIdx.x % TILE_THREADS, b);
            size_t at = i * args.cols + j;
            float  element;

            if (i >= args.rows || j >= args.cols || (args.is_symmetric && i > j)) {
                continue;
            }
            element      = sherdi_product_element(sums[a][b], args.scale,
                                             args.addend == NULL ? NULL : args.addend + at,
                                                  args.addend_scale);
            args.dst[at] = element;
            if (args.is_symmetric && i < j) {
                args.dst[j * args.cols + i] = element;
            }
        }
    }
}

template <int PER>
static void __global__ __launch_bounds__(BLOCK_THREADS, PRODUCT_BLOCKS)
    product_kernel(const __grid_constant__ sherdi_product_args args)
{
    typedef factor_part<PER> part;
    __shared__ __align__(16) float lefts[2][STEP_INNER][part::TILE + SHARED_PAD];
    __shared__ __align__(16) float rights[2][STEP_INNER][part::TILE + SHARED_PAD];
    const factor_view left  = {args.left, args.left_row_stride, args.left_inner_stride, args.rows,
                               args.inner};
    const factor_view right = {args.right, args.right_col_stride, args.right_inner_stride,
                               args.cols, args.inner};
    const size_t      tiles_wide     = (args.cols + part::TILE - 1) / part::TILE;
    const size_t      row            = blockIdx.x / tiles_wide * part::TILE;
    const size_t      col            = blockIdx.x % tiles_wide * part::TILE;
    float             sums[PER][PER] = {};
    part              next_left, next_right;
    int               now = 0;

    if (args.is_symmetric && row > col) {
        return; /* with the whole thread block */
    }
    next_left.load(left, row, 0, -0.0f);
    next_right.load(right, col, 0, 0.0f);
    for (size_t done = 0; done < args.inner; done += STEP_INNER) {
        next_left.store(left, lefts[now]);
        next_right.store(right, rights[now]);
        __syncthreads();
        next_left.load(left, row, done + STEP_INNER, -0.0f);
        next_right.load(right, col, done + STEP_INNER, 0.0f);
#pragma unroll 4 /* with all of them registers are spilled on 10.x */
        for (int k = 0; k < STEP_INNER; k++) {
            float a[PER], b[PER];

            tile_read<PER>(a, lefts[now][k], threadIdx.x / TILE_THREADS);
            tile_read<PER>(b, rights[now][k], threadIdx.x % TILE_THREADS);
#pragma unroll
            for (int i = 0; i < PER; i++) {
#pragma unroll
                for (int j = 0; j < PER; j++) {
                    sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
                }
            }
        }
        now = 1 - now; /* threads that still read the old buffer have not passed the next barrier */
    }
    tile_store<PER>(args, row, col, sums);
}

static size_t tiles_across(size_t count, size_t tile)
{
    return count / tile + (count % tile != 0);
}

extern "C" void sherdi_cuda_product(const sherdi_backend *backend, const sherdi_product_args *args)
{
    sherdi_cuda_target target  = sherdi_cuda_target_of(backend);
    const size_t       large   = factor_part<8>::TILE;
    const size_t       small   = factor_part<4>::TILE;
    size_t             tiles   = tiles_across(args->rows, large) * tiles_across(args->cols, large);
    size_t             working = args->is_symmetric ? tiles / 2 : tiles;

    if (tiles == 0) {
        return;
    }
    if (working >= blocks_of_machine(target, 1)) {
        kernel_launch(product_kernel<8>, tiles, target, *args);
    } else {
        kernel_launch(product_kernel<4>,
                      tiles_across(args->rows, small) * tiles_across(args->cols, small), target,
                      *args);
    }
}

/* ---------------------------------------------------------- normalising -- */

#define NORMALIZE_BLOCKS 8 /* thread blocks on a processor */

static void __global__ __launch_bounds__(BLOCK_THREADS)
    normalize_kernel(float *dst, const float *src, size_t count_elems, const sherdi_norm_acc *sumsq,
                     float eps)
{
    __shared__ double factor;

    if (threadIdx.x == 0) {
        factor = sherdi_normalize_factor(sumsq, eps);
    }
    __syncthreads();
    for (size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x; i < count_elems;
         i += (size_t)gridDim.x * BLOCK_THREADS) {
        dst[i] = sherdi_normalize_element(src[i], factor);
    }
}

extern "C" void sherdi_cuda_normalize(const sherdi_backend *backend, float *dst, const float *src,
                                      size_t count_elems, const sherdi_norm_acc *sumsq, float eps)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    if (count_elems == 0) {
        return;
    }
    kernel_launch(normalize_kernel, blocks_of(target, NORMALIZE_BLOCKS, count_elems, BLOCK_THREADS),
                  target, dst, src, count_elems, sumsq, eps);
}
