/* LayerNorm and RMSNorm of wide rows of 16 bits, forward and backward: those that a block holds in
 * registers and a warp does not (norm.cu has all others). A thread has up to two vectors of eight
 * elements of each row, and as few warps as that takes have the row. So memory is read once, and in
 * backward the sums of the weight's gradient stay in registers from row to row, while the next row
 * is on its way. Sums over a row are those of the warps in order; only shapes decide the order of a
 * sum. */
#include "kernels.h"

#include "elements.cuh"
#include "launch.h"

#define N            8   /* elements of a vector */
#define VECTORS      2   /* of a row, for a thread */
#define MOST_THREADS 512 /* of a block: with 128 registers each, those of a multiprocessor */
#define MOST_WARPS   (MOST_THREADS / 32)
#define HELD_WIDTH   (8 * 32 * N) /* the most that a warp of norm.cu holds */

/* Rows of a block in backward. The gradients of a LayerNorm take twice the room for partial
 * sums. */
template <bool IS_LAYER> static constexpr int CHUNK = IS_LAYER ? NORM_CHUNK : NORM_CHUNK / 2;

/* Adds over the block; every thread gets the same sum. Sums that follow each other need other
 * memory. */
__device__ __forceinline__ float block_sum(float x, float (&warps)[MOST_WARPS])
{
    int   count = (int)blockDim.x / 32;
    float sum = warp_sum(x);

    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < count; w++) {
        sum += warps[w];
    }
    return sum;
}

/* Returns the first column of a thread's vector v. */
__device__ __forceinline__ int column_of(int v)
{
    return (v * (int)blockDim.x + (int)threadIdx.x) * N;
}

/* Each block computes one row. */
template <typename T, bool IS_LAYER>
__global__ void __launch_bounds__(MOST_THREADS)
    wide_forward(int width, float eps, const T *x_all, const T *weight, const T *bias, T *y_all, float *stats)
{
    __shared__ float warps[2][MOST_WARPS];
    const T         *row = x_all + blockIdx.x * (size_t)width;
    float            x[VECTORS][N], w[N], b[N], sum = 0.0f, mean = 0.0f, scale;

#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        for (int k = 0; k < N; k++) {
            x[v][k] = 0.0f;
        }
        if (column_of(v) < width) {
            vector_of<T, N>::load(row + column_of(v), x[v]);
        }
        for (int k = 0; k < N; k++) {
            sum += x[v][k];
        }
    }
    if (IS_LAYER) {
        mean = block_sum(sum, warps[0]) / (float)width;
    }
    sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        for (int k = 0; k < N && column_of(v) < width; k++) {
            sum += (x[v][k] - mean) * (x[v][k] - mean);
        }
    }
    scale = 1.0f / sqrtf(block_sum(sum, warps[1]) / (float)width + eps);
    if (threadIdx.x == 0) {
        stats[2 * (size_t)blockIdx.x]     = mean;
        stats[2 * (size_t)blockIdx.x + 1] = scale;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        if (column_of(v) < width) {
            vector_of<T, N>::load(weight + column_of(v), w);
            if (IS_LAYER) {
                vector_of<T, N>::load(bias + column_of(v), b);
            }
            for (int k = 0; k < N; k++) {
                x[v][k] = (x[v][k] - mean) * scale * w[k] + (IS_LAYER ? b[k] : 0.0f);
            }
            vector_of<T, N>::store(y_all + blockIdx.x * (size_t)width + column_of(v), x[v]);
        }
    }
}

/* A thread's elements of a row in backward, as they are in memory. Past the end of the row are
 * zeros, which add nothing. */
struct wide_row {
    uint4  x[VECTORS], dy[VECTORS], dx[VECTORS];
    float2 kept; /* mean, 1 / std */

    template <typename T>
    __device__ __forceinline__ void load(size_t row, int width, const T *x_all, const T *dy_all, const T *dx_all, int is_added,
                                         const float *stats)
    {
        const uint4 none = make_uint4(0, 0, 0, 0);

        kept = ((const float2 *)stats)[row];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            size_t at       = row * (size_t)width + column_of(v);
            bool   is_there = column_of(v) < width;

            x[v]  = is_there ? *(const uint4 *)(x_all + at) : none;
            dy[v] = is_there ? *(const uint4 *)(dy_all + at) : none;
            dx[v] = is_there && is_added ? *(const uint4 *)(dx_all + at) : none;
        }
    }
};

/* Each block computes CHUNK rows, one after the other. */
template <typename T, bool IS_LAYER>
__global__ void __launch_bounds__(MOST_THREADS)
    wide_backward(size_t rows, int width, const T *x_all, const T *weight, const T *dy_all, T *dx_all, int is_added, const float *stats,
                  float *partials)
{
    __shared__ float warps[2][2][MOST_WARPS];
    const size_t     first = (size_t)blockIdx.x * CHUNK<IS_LAYER>;
    const int        count = (int)(rows - first < CHUNK<IS_LAYER> ? rows - first : CHUNK<IS_LAYER>);
    float            sums[VECTORS][N], sums_d[VECTORS][N]; /* sums_d only if IS_LAYER */
    uint4            weights[VECTORS];
    wide_row         now, next;

#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        weights[v] = column_of(v) < width ? *(const uint4 *)(weight + column_of(v)) : make_uint4(0, 0, 0, 0);
        for (int k = 0; k < N; k++) {
            sums[v][k] = sums_d[v][k] = 0.0f;
        }
    }
    next.load(first, width, x_all, dy_all, dx_all, is_added, stats);
#pragma unroll 1
    for (int r = 0; r < count; r++) {
        float sum_d = 0.0f, sum_dx = 0.0f;

        now = next;
        if (r + 1 < count) {
            next.load(first + r + 1, width, x_all, dy_all, dx_all, is_added, stats);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float hat[N], d[N], w[N];

            vector_of<T, N>::split(now.x[v], hat);
            vector_of<T, N>::split(now.dy[v], d);
            vector_of<T, N>::split(weights[v], w);
            for (int k = 0; k < N; k++) {
                hat[k] = (hat[k] - now.kept.x) * now.kept.y;
                sum_d += d[k] * w[k];
                sum_dx += d[k] * w[k] * hat[k];
                sums[v][k] += d[k] * hat[k];
                sums_d[v][k] += d[k];
            }
        }
        sum_d  = IS_LAYER ? block_sum(sum_d, warps[r % 2][0]) / (float)width : 0.0f;
        sum_dx = block_sum(sum_dx, warps[r % 2][1]) / (float)width;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float hat[N], d[N], w[N], old[N];

            vector_of<T, N>::split(now.x[v], hat);
            vector_of<T, N>::split(now.dy[v], d);
            vector_of<T, N>::split(now.dx[v], old);
            vector_of<T, N>::split(weights[v], w);
            for (int k = 0; k < N; k++) {
                hat[k] = (hat[k] - now.kept.x) * now.kept.y;
                old[k] = (d[k] * w[k] - sum_d - hat[k] * sum_dx) * now.kept.y + old[k];
            }
            if (column_of(v) < width) {
                vector_of<T, N>::store(dx_all + (first + r) * (size_t)width + column_of(v), old);
            }
        }
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float *to = partials + (size_t)blockIdx.x * (IS_LAYER ? 2 : 1) * width + column_of(v);

        for (int k = 0; k < N && column_of(v) < width; k += 4) {
            vector_of<float, 4>::store(to + k, sums[v] + k);
            if (IS_LAYER) {
                vector_of<float, 4>::store(to + width + k, sums_d[v] + k);
            }
        }
    }
}

/* ----------------------------------------------------------- launchers -- */

template <typename T, bool IS_LAYER> static void wide_queue(const norm_launch *a, cudaStream_t stream)
{
    const unsigned threads = blocks_of(a->width / N, VECTORS * 32) * 32, chunks = blocks_of(a->rows, CHUNK<IS_LAYER>);
    const size_t   stride = (IS_LAYER ? 2 : 1) * a->width;

    if (a->dy == NULL) {
        LLM_LAUNCH((wide_forward<T, IS_LAYER>), dim3((unsigned)a->rows), dim3(threads), 0, stream, (int)a->width, a->eps, (const T *)a->x,
                   (const T *)a->weight, (const T *)a->bias, (T *)a->y, a->stats);
        return;
    }
    LLM_LAUNCH((wide_backward<T, IS_LAYER>), dim3(chunks), dim3(threads), 0, stream, a->rows, (int)a->width, (const T *)a->x,
               (const T *)a->weight, (const T *)a->dy, (T *)a->dx, a->is_added, (const float *)a->stats, a->partials);
    columns_finish_launch(a->dtype, a->partials, stride, chunks, a->width, a->dweight, stream);
    if (IS_LAYER) {
        columns_finish_launch(a->dtype, a->partials + a->width, stride, chunks, a->width, a->dbias, stream);
    }
}

bool norm_wide_try(const norm_launch *a, cudaStream_t stream)
{
    if (a->dtype == SHERD_F32 || a->stats == NULL || a->width % N != 0 || a->width <= HELD_WIDTH ||
        a->width > (size_t)VECTORS * MOST_THREADS * N) {
        return false;
    }
    by_type(a->dtype, [&](auto one) {
        typedef typename decltype(one)::type T;

        if constexpr (sizeof(T) == 2) {
            if (a->bias != NULL) {
                wide_queue<T, true>(a, stream);
            } else {
                wide_queue<T, false>(a, stream);
            }
        }
    });
    return true;
}
