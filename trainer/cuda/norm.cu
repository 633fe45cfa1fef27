/* LayerNorm and RMSNorm of rows, forward and backward.
 *
 * A warp owns a row. It reads the row two or three times, and only the first time from memory. In
 * backward a block owns NORM_CHUNK rows and sums their shares of the weight's gradient in shared
 * memory, with one sum for each warp and column; the sums of narrow rows may be in registers, and
 * those of very wide rows fit in neither, and are in device memory. A second kernel adds the sums
 * of the blocks in the order of the chunks. How the work is divided depends on the shape alone, so
 * the result does not depend on the launch or the device. Where N elements are read at once, rows
 * begin at multiples of 16 bytes, which the launchers check. */
#include "kernels.h"

#include "elements.cuh"
#include "launch.h"

#define NORM_WARPS     8  /* rows of a block in forward */
#define BACK_WARPS     8  /* of a block in backward, at most; another value gives other bits */
#define SUMMED_BLOCKS  2  /* of norm_backward_summed on a multiprocessor: 128 registers for a thread */
#define SUMMED_VECTORS 3  /* of a row at most, which fit these registers */
/* Bytes of shared memory that the sums of a backward block may take: the limit of a launch on every
 * device without cudaFuncSetAttribute. */
#define NORM_SHARED_BYTES ((size_t)48 << 10)

/* Threads of a block of columns_finish, and how many partials a thread has on their way at once.
 * Another number of rows gives other bits. */
#define FINISH_COLUMNS 8 /* the partials of a row that it reads are 32 bytes, what memory gives at least */
#define FINISH_ROWS    64
#define FINISH_LOADS   8

template <typename T, int N, bool IS_LAYER>
__device__ __forceinline__ void row_stats(const T *x, int width, int lane, float eps, float *mean_out,
                                          float *scale_out)
{
    float sum = 0.0f, mean = 0.0f, at[N];

    if (IS_LAYER) {
        for (int i = lane * N; i < width; i += 32 * N) {
            vector_of<T, N>::load(x + i, at);
            for (int k = 0; k < N; k++) {
                sum += at[k];
            }
        }
        mean = warp_sum(sum) / (float)width;
        sum  = 0.0f;
    }
    for (int i = lane * N; i < width; i += 32 * N) {
        vector_of<T, N>::load(x + i, at);
        for (int k = 0; k < N; k++) {
            sum += (at[k] - mean) * (at[k] - mean);
        }
    }
    *mean_out  = mean;
    *scale_out = 1.0f / sqrtf(warp_sum(sum) / (float)width + eps);
}

/* Each warp computes one row. */
template <typename T, int N, bool IS_LAYER>
__global__ void norm_forward(size_t rows, int width, float eps, const T *x_all, const T *weight, const T *bias, T *y_all)
{
    int    lane = (int)threadIdx.x % 32;
    size_t row  = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    float  mean, scale, x[N], w[N], b[N];

    if (row >= rows) {
        return;
    }
    row_stats<T, N, IS_LAYER>(x_all + row * (size_t)width, width, lane, eps, &mean, &scale);
    for (int i = lane * N; i < width; i += 32 * N) {
        vector_of<T, N>::load(x_all + row * (size_t)width + i, x);
        vector_of<T, N>::load(weight + i, w);
        if (IS_LAYER) {
            vector_of<T, N>::load(bias + i, b);
        }
        for (int k = 0; k < N; k++) {
            x[k] = (x[k] - mean) * scale * w[k] + (IS_LAYER ? b[k] : 0.0f);
        }
        vector_of<T, N>::store(y_all + row * (size_t)width + i, x);
    }
}

/* Adds the sums of the block's warps in order, and writes them to the partials of the block. */
template <int N>
__device__ __forceinline__ void block_sums_put(const float *shared, int width, int padded, int warps, int sets, float *to)
{
    for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
        int at = c / (32 * N) * (32 * N) + c % N * 32 + c % (32 * N) / N;

        for (int set = 0; set < sets; set++) {
            float sum = 0.0f;

            for (int w = 0; w < warps; w++) {
                sum += shared[((size_t)w * sets + set) * padded + at];
            }
            to[set * width + c] = sum;
        }
    }
}

/* Each block computes NORM_CHUNK rows, and each of its warps every blockDim / 32-th of them. Each
 * warp keeps `padded` sums for the weights, and as many for the biases of a LayerNorm. They are in
 * shared memory: sum k of a lane's j-th vector is at (j * N + k) * 32 + lane, so the lanes of a
 * warp use different banks. If IS_WIDE, one warp's sums do not fit there. Then the block has one
 * warp, its sums are the block's partials in device memory in the order of the columns, and
 * `padded` is the width. */
template <typename T, int N, bool IS_LAYER, bool IS_WIDE>
__global__ void norm_backward(size_t rows, int width, int padded, float eps, const T *x_all, const T *weight, const T *dy_all,
                              T *dx_all, int is_added, float *partials)
{
    LLM_SHARED(shared);
    const int sets = IS_LAYER ? 2 : 1;
    int       lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int       warps = (int)blockDim.x / 32;
    float    *to    = partials + (size_t)blockIdx.x * 2 * width;
    float    *own   = IS_WIDE ? to : (float *)shared + (size_t)warp * sets * padded;
    size_t    first = (size_t)blockIdx.x * NORM_CHUNK;
    size_t    end   = first + NORM_CHUNK < rows ? first + NORM_CHUNK : rows;
    const int step  = IS_WIDE ? 1 : 32; /* from one sum of a vector to the next */

    for (int i = lane; i < sets * padded; i += 32) {
        own[i] = 0.0f;
    }
    __syncwarp();
    for (size_t row = first + warp; row < end; row += warps) {
        const T *x  = x_all + row * (size_t)width;
        const T *dy = dy_all + row * (size_t)width;
        T       *dx = dx_all + row * (size_t)width;
        float    mean, scale, sum_d = 0.0f, sum_dx = 0.0f, at[N], w[N], d[N], old[N];

        row_stats<T, N, IS_LAYER>(x, width, lane, eps, &mean, &scale);
        for (int i = lane * N; i < width; i += 32 * N) {
            vector_of<T, N>::load(x + i, at);
            vector_of<T, N>::load(weight + i, w);
            vector_of<T, N>::load(dy + i, d);
            for (int k = 0; k < N; k++) {
                sum_d += d[k] * w[k];
                sum_dx += d[k] * w[k] * ((at[k] - mean) * scale);
            }
        }
        sum_d  = IS_LAYER ? warp_sum(sum_d) / (float)width : 0.0f;
        sum_dx = warp_sum(sum_dx) / (float)width;
        for (int i = lane * N; i < width; i += 32 * N) {
            float *sums = own + (IS_WIDE ? i : i / (32 * N) * (32 * N) + lane);

            vector_of<T, N>::load(x + i, at);
            vector_of<T, N>::load(weight + i, w);
            vector_of<T, N>::load(dy + i, d);
            for (int k = 0; k < N; k++) {
                old[k] = 0.0f;
            }
            if (is_added) {
                vector_of<T, N>::load(dx + i, old);
            }
            for (int k = 0; k < N; k++) {
                float hat = (at[k] - mean) * scale;

                sums[k * step] += d[k] * hat;
                if (IS_LAYER) {
                    sums[padded + k * step] += d[k];
                }
                at[k] = (d[k] * w[k] - sum_d - hat * sum_dx) * scale + old[k];
            }
            vector_of<T, N>::store(dx + i, at);
        }
    }
    if (!IS_WIDE) {
        __syncthreads();
        block_sums_put<N>((const float *)shared, width, padded, warps, sets, to);
    }
}

/* ------------------------------------------------------ rows in registers -- */

/* The same for rows that a warp holds in registers, in VECTORS vectors of N elements per lane, so
 * that memory is read once. Forward keeps the mean and 1 / std of each row for backward. The order
 * of all sums is the same as above, so the bits are the same. */

template <typename T, int N, int VECTORS, bool IS_LAYER>
__global__ void norm_forward_held(size_t rows, int width, float eps, const T *x_all, const T *weight, const T *bias, T *y_all,
                                  float *stats)
{
    int    lane = (int)threadIdx.x % 32;
    size_t row  = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    float  x[VECTORS][N], sum = 0.0f, mean = 0.0f, scale, w[N], b[N];

    if (row >= rows) {
        return;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int i = (v * 32 + lane) * N;

        if (i < width) {
            vector_of<T, N>::load(x_all + row * (size_t)width + i, x[v]);
            for (int k = 0; k < N; k++) {
                sum += x[v][k];
            }
        }
    }
    if (IS_LAYER) {
        mean = warp_sum(sum) / (float)width;
    }
    sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        for (int k = 0; k < N && (v * 32 + lane) * N < width; k++) {
            sum += (x[v][k] - mean) * (x[v][k] - mean);
        }
    }
    scale = 1.0f / sqrtf(warp_sum(sum) / (float)width + eps);
    if (lane == 0) {
        stats[2 * row]     = mean;
        stats[2 * row + 1] = scale;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int i = (v * 32 + lane) * N;

        if (i < width) {
            vector_of<T, N>::load(weight + i, w);
            if (IS_LAYER) {
                vector_of<T, N>::load(bias + i, b);
            }
            for (int k = 0; k < N; k++) {
                x[v][k] = (x[v][k] - mean) * scale * w[k] + (IS_LAYER ? b[k] : 0.0f);
            }
            vector_of<T, N>::store(y_all + row * (size_t)width + i, x[v]);
        }
    }
}

/* Computes one row of norm_backward_held, and adds the row's share to the sums of this warp. */
template <typename T, int N, int VECTORS, bool IS_LAYER>
__device__ __forceinline__ void row_back_held(int width, int padded, int lane, const T *x, const T *weight, const T *dy, T *dx,
                                              int is_added, float mean, float scale, float *own)
{
    float hat[VECTORS][N], d[VECTORS][N], w[N], old[N], sum_d = 0.0f, sum_dx = 0.0f;

#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int i = (v * 32 + lane) * N;

        if (i < width) {
            vector_of<T, N>::load(x + i, hat[v]);
            vector_of<T, N>::load(weight + i, w);
            vector_of<T, N>::load(dy + i, d[v]);
            for (int k = 0; k < N; k++) {
                hat[v][k] = (hat[v][k] - mean) * scale;
                sum_d += d[v][k] * w[k];
                sum_dx += d[v][k] * w[k] * hat[v][k];
            }
        }
    }
    sum_d  = IS_LAYER ? warp_sum(sum_d) / (float)width : 0.0f;
    sum_dx = warp_sum(sum_dx) / (float)width;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int    i    = (v * 32 + lane) * N;
        float *sums = own + v * 32 * N + lane;

        if (i < width) {
            vector_of<T, N>::load(weight + i, w);
            for (int k = 0; k < N; k++) {
                old[k] = 0.0f;
            }
            if (is_added) {
                vector_of<T, N>::load(dx + i, old);
            }
            for (int k = 0; k < N; k++) {
                sums[k * 32] += d[v][k] * hat[v][k];
                if (IS_LAYER) {
                    sums[padded + k * 32] += d[v][k];
                }
                old[k] = (d[v][k] * w[k] - sum_d - hat[v][k] * sum_dx) * scale + old[k];
            }
            vector_of<T, N>::store(dx + i, old);
        }
    }
}

/* Blocks, warps and shared memory are those of norm_backward. */
template <typename T, int N, int VECTORS, bool IS_LAYER>
__global__ void norm_backward_held(size_t rows, int width, int padded, const T *x_all, const T *weight, const T *dy_all,
                                   T *dx_all, int is_added, const float *stats, float *partials)
{
    LLM_SHARED(shared);
    const int sets = IS_LAYER ? 2 : 1;
    int       lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    float    *own   = (float *)shared + (size_t)warp * sets * padded;
    size_t    first = (size_t)blockIdx.x * NORM_CHUNK;
    size_t    end   = first + NORM_CHUNK < rows ? first + NORM_CHUNK : rows;

    for (int i = lane; i < sets * padded; i += 32) {
        own[i] = 0.0f;
    }
    for (size_t row = first + warp; row < end; row += warps) {
        row_back_held<T, N, VECTORS, IS_LAYER>(width, padded, lane, x_all + row * (size_t)width, weight,
                                               dy_all + row * (size_t)width, dx_all + row * (size_t)width, is_added,
                                               stats[2 * row], stats[2 * row + 1], own);
    }
    __syncthreads();
    block_sums_put<N>((const float *)shared, width, padded, warps, sets, partials + (size_t)blockIdx.x * 2 * width);
}

/* The same with the sums of a warp in registers, too, and the row as it is in memory, in half of
 * the registers that its elements take as floats. With few blocks on a multiprocessor, the vectors
 * that a warp reads at once have to be many: those of dx are among them.
 *
 * If SUMS_DX, the columns of dx, as it is stored, are summed too. Their sums do not fit the
 * registers; they are in shared memory, where the others come when all rows are done. */
template <typename T, int N, int VECTORS, bool IS_LAYER, bool SUMS_DX>
__global__ void __launch_bounds__(BACK_WARPS * 32, SUMMED_BLOCKS)
    norm_backward_summed(size_t rows, int width, int padded, const T *x_all, const T *weight, const T *dy_all, T *dx_all,
                         int is_added, const float *stats, float *partials, float *dx_partials)
{
    LLM_SHARED(shared);
    const int   sets = IS_LAYER ? 2 : 1;
    const uint4 none = make_uint4(0, 0, 0, 0);
    int         lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    size_t      first = (size_t)blockIdx.x * NORM_CHUNK;
    int         count = (int)(rows - first < NORM_CHUNK ? rows - first : NORM_CHUNK);
    float      *own = (float *)shared + (size_t)warp * padded + lane; /* of dx; only if SUMS_DX */
    float       sums[VECTORS][N], sums_d[VECTORS][N];                 /* sums_d only if IS_LAYER */

#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        for (int k = 0; k < N; k++) {
            sums[v][k] = sums_d[v][k] = 0.0f;
            if (SUMS_DX) {
                own[(v * N + k) * 32] = 0.0f;
            }
        }
    }
#pragma unroll 1
    for (int row = warp; row < count; row += warps) { /* 32 bits, as registers are few */
        size_t at   = (first + (size_t)row) * (size_t)width + lane * N;
        float2 kept = ((const float2 *)stats)[first + (size_t)row]; /* mean, 1 / std */
        float  sum_d = 0.0f, sum_dx = 0.0f;
        uint4  x[VECTORS], dy[VECTORS], dx[VECTORS];

#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if ((v * 32 + lane) * N < width) {
                x[v]  = *(const uint4 *)(x_all + at + v * 32 * N);
                dy[v] = *(const uint4 *)(dy_all + at + v * 32 * N);
                dx[v] = is_added ? *(const uint4 *)(dx_all + at + v * 32 * N) : none;
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float hat[N], d[N], w[N];

            if ((v * 32 + lane) * N < width) {
                vector_of<T, N>::split(x[v], hat);
                vector_of<T, N>::split(dy[v], d);
                vector_of<T, N>::load(weight + (v * 32 + lane) * N, w);
                for (int k = 0; k < N; k++) {
                    hat[k] = (hat[k] - kept.x) * kept.y;
                    sum_d += d[k] * w[k];
                    sum_dx += d[k] * w[k] * hat[k];
                    sums[v][k] += d[k] * hat[k];
                    sums_d[v][k] += d[k];
                }
            }
        }
        sum_d  = IS_LAYER ? warp_sum(sum_d) / (float)width : 0.0f;
        sum_dx = warp_sum(sum_dx) / (float)width;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float hat[N], d[N], w[N], old[N];

            if ((v * 32 + lane) * N < width) {
                vector_of<T, N>::split(x[v], hat);
                vector_of<T, N>::split(dy[v], d);
                vector_of<T, N>::split(dx[v], old);
                vector_of<T, N>::load(weight + (v * 32 + lane) * N, w);
                for (int k = 0; k < N; k++) {
                    hat[k] = (hat[k] - kept.x) * kept.y;
                    old[k] = (d[k] * w[k] - sum_d - hat[k] * sum_dx) * kept.y + old[k];
                }
                vector_of<T, N>::store_rounded(dx_all + at + v * 32 * N, old);
                for (int k = 0; k < N && SUMS_DX; k++) {
                    own[(v * N + k) * 32] += old[k];
                }
            }
        }
    }
    if (SUMS_DX) {
        __syncthreads();
        block_sums_put<N>((const float *)shared, width, padded, warps, 1, dx_partials + (size_t)blockIdx.x * width);
        __syncthreads();
    }
    own = (float *)shared + (size_t)warp * sets * padded + lane;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        for (int k = 0; k < N && (v * 32 + lane) * N < width; k++) {
            own[(v * N + k) * 32] = sums[v][k];
            if (IS_LAYER) {
                own[padded + (v * N + k) * 32] = sums_d[v][k];
            }
        }
    }
    __syncthreads();
    block_sums_put<N>((const float *)shared, width, padded, warps, sets, partials + (size_t)blockIdx.x * 2 * width);
}

/* Adds up partials; each block takes FINISH_COLUMNS columns. Row r of its threads sums every
 * FINISH_ROWS-th partial from r on. Then lane l of a warp adds the sums of rows l, l + 32 and so on
 * of one column, and the lanes are added. Blocks of row 1 of the grid do the same for `second`,
 * whose partials follow the columns. The work is small, so the time is that of dependent
 * instructions: loads are independent of each other, and the gradient is read at the beginning. */
template <typename T>
__global__ void columns_finish(const float *partials, size_t stride, size_t count, size_t columns,
                               T *grad, T *second)
{
    __shared__ float sums[FINISH_ROWS][FINISH_COLUMNS + 1];
    const float     *at   = partials + (blockIdx.y == 0 ? 0 : columns);
    /* the column that this warp finishes */
    int              lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32;
    int              column = (int)threadIdx.x % FINISH_COLUMNS, row = (int)threadIdx.x / FINISH_COLUMNS;
    size_t           first = (size_t)blockIdx.x * FINISH_COLUMNS;
    T               *to    = (blockIdx.y == 0 ? grad : second) + first + own;
    bool             is_writer = lane == 0 && own < FINISH_COLUMNS && first + own < columns;
    float            sum = 0.0f, old = is_writer ? float_get(*to) : 0.0f;

    static_assert(FINISH_ROWS % 32 == 0, "a warp, or more, for each column");
    at += row * stride + first + column;
    for (size_t i = row; i < count && first + column < columns; i += FINISH_ROWS * FINISH_LOADS) {
        float x[FINISH_LOADS];

#pragma unroll
        for (int k = 0; k < FINISH_LOADS; k++, at += FINISH_ROWS * stride) {
            x[k] = i + k * FINISH_ROWS < count ? *at : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < FINISH_LOADS; k++) {
            sum += x[k];
        }
    }
    sums[row][column] = sum;
    __syncthreads();
    if (own >= FINISH_COLUMNS) {
        return;
    }
    sum = 0.0f;
#pragma unroll
    for (int r = 0; r < FINISH_ROWS; r += 32) {
        sum += sums[r + lane][own];
    }
    sum = warp_sum(sum);
    if (is_writer) {
        float_put(to, old + sum);
    }
}

/* ------------------------------------------------------------ launchers -- */

/* Returns how many warps have room for their sums: 8, 4, 2 or 1. It depends on the width alone. */
static int backward_warps(size_t bytes_each)
{
    int warps = BACK_WARPS;

    while (warps > 1 && (size_t)warps * bytes_each > NORM_SHARED_BYTES) {
        warps /= 2;
    }
    return warps;
}

template <typename T, int N, bool IS_LAYER>
static void forward_queue(const norm_launch *a, cudaStream_t stream)
{
    unsigned blocks = blocks_of(a->rows, NORM_WARPS);

    LLM_LAUNCH((norm_forward<T, N, IS_LAYER>), dim3(blocks), dim3(NORM_WARPS * 32), 0, stream, a->rows,
               (int)a->width, a->eps, (const T *)a->x, (const T *)a->weight, (const T *)a->bias, (T *)a->y);
}

template <typename T, int N, bool IS_LAYER>
static void backward_queue(const norm_launch *a, cudaStream_t stream)
{
    int    padded = (int)((a->width + 32 * N - 1) / (32 * N) * (32 * N));
    size_t each   = (size_t)padded * (IS_LAYER ? 2 : 1) * sizeof(float);
    int    warps  = backward_warps(each);
    dim3   blocks = dim3(blocks_of(a->rows, NORM_CHUNK)), threads = dim3((unsigned)warps * 32);

    if (each > NORM_SHARED_BYTES) {
        LLM_LAUNCH((norm_backward<T, N, IS_LAYER, true>), blocks, threads, 0, stream, a->rows, (int)a->width, (int)a->width,
                   a->eps, (const T *)a->x, (const T *)a->weight, (const T *)a->dy, (T *)a->dx, a->is_added, a->partials);
        return;
    }
    LLM_LAUNCH((norm_backward<T, N, IS_LAYER, false>), blocks, threads, (size_t)warps * each, stream, a->rows, (int)a->width,
               padded, a->eps, (const T *)a->x, (const T *)a->weight, (const T *)a->dy, (T *)a->dx, a->is_added, a->partials);
}

template <typename T, int N, int VECTORS, bool IS_LAYER, bool SUMS_DX>
static void summed_queue(const norm_launch *a, int padded, dim3 threads, size_t shared_bytes, cudaStream_t stream)
{
    LLM_LAUNCH((norm_backward_summed<T, N, VECTORS, IS_LAYER, SUMS_DX>), dim3(blocks_of(a->rows, NORM_CHUNK)), threads, shared_bytes,
               stream, a->rows, (int)a->width, padded, (const T *)a->x, (const T *)a->weight, (const T *)a->dy, (T *)a->dx,
               a->is_added, (const float *)a->stats, a->partials, a->dx_partials);
}

template <typename T, int N, int VECTORS, bool IS_LAYER>
static void held_queue(const norm_launch *a, cudaStream_t stream)
{
    int    padded = (int)((a->width + 32 * N - 1) / (32 * N) * (32 * N));
    size_t each   = (size_t)padded * (IS_LAYER ? 2 : 1) * sizeof(float);
    int    warps  = backward_warps(each);
    dim3   threads = dim3((unsigned)warps * 32);

    if (a->dy == NULL) {
        LLM_LAUNCH((norm_forward_held<T, N, VECTORS, IS_LAYER>), dim3(blocks_of(a->rows, NORM_WARPS)), dim3(NORM_WARPS * 32), 0,
                   stream, a->rows, (int)a->width, a->eps, (const T *)a->x, (const T *)a->weight, (const T *)a->bias,
                   (T *)a->y, a->stats);
    } else if constexpr (VECTORS > SUMMED_VECTORS) {
        LLM_LAUNCH((norm_backward_held<T, N, VECTORS, IS_LAYER>), dim3(blocks_of(a->rows, NORM_CHUNK)), threads, (size_t)warps * each,
                   stream, a->rows, (int)a->width, padded, (const T *)a->x, (const T *)a->weight, (const T *)a->dy, (T *)a->dx,
                   a->is_added, (const float *)a->stats, a->partials);
    } else if (IS_LAYER && a->dx_partials != NULL) {
        summed_queue<T, N, VECTORS, IS_LAYER, IS_LAYER>(a, padded, threads, (size_t)warps * each, stream);
    } else {
        summed_queue<T, N, VECTORS, IS_LAYER, false>(a, padded, threads, (size_t)warps * each, stream);
    }
}

template <typename T, int N, int VECTORS> static void held_kind_queue(const norm_launch *a, cudaStream_t stream)
{
    if (a->bias != NULL) {
        held_queue<T, N, VECTORS, true>(a, stream);
    } else {
        held_queue<T, N, VECTORS, false>(a, stream);
    }
}

/* Queues the kernel for rows in registers, if a row fits there and consists of vectors. Returns
 * whether it does. It depends on the width alone, so forward and backward agree. */
template <typename T, int N> static bool held_try(const norm_launch *a, cudaStream_t stream)
{
    size_t vectors = (a->width + 32 * N - 1) / (32 * N);

    if (N == 1 || a->stats == NULL || vectors > 8) {
        return false;
    }
    if constexpr (N > 1) {
        if (vectors <= 2) {
            held_kind_queue<T, N, 2>(a, stream);
        } else if (vectors == 3) { /* 768 elements of 16 bits */
            held_kind_queue<T, N, 3>(a, stream);
        } else if (vectors <= 4) {
            held_kind_queue<T, N, 4>(a, stream);
        } else {
            held_kind_queue<T, N, 8>(a, stream);
        }
    }
    return true;
}

template <typename T, int N> static void both_queue(const norm_launch *a, cudaStream_t stream)
{
    if (a->dy == NULL) {
        if (a->bias != NULL) {
            forward_queue<T, N, true>(a, stream);
        } else {
            forward_queue<T, N, false>(a, stream);
        }
    } else if (a->bias != NULL) {
        backward_queue<T, N, true>(a, stream);
    } else {
        backward_queue<T, N, false>(a, stream);
    }
}

static void rows_queue(const norm_launch *a, cudaStream_t stream)
{
    by_vector(a->dtype, a->width, [&](auto vector) {
        typedef typename decltype(vector)::type T;

        if (!held_try<T, decltype(vector)::elems>(a, stream)) {
            both_queue<T, decltype(vector)::elems>(a, stream);
        }
    });
}

/* Finishes one gradient or, if `second` is not NULL, two. */
static void finish_queue(sherd_dtype dtype, const float *partials, size_t stride, size_t count, size_t columns, void *grad,
                         void *second, cudaStream_t stream)
{
    by_type(dtype, [&](auto one) {
        typedef typename decltype(one)::type T;

        LLM_LAUNCH(columns_finish<T>, dim3(blocks_of(columns, FINISH_COLUMNS), second == NULL ? 1 : 2),
                   dim3(FINISH_COLUMNS * FINISH_ROWS), 0, stream, partials, stride, count, columns, (T *)grad, (T *)second);
    });
}

bool norm_sums_dx(const norm_launch *args)
{
    size_t elems = 16 / sherd_dtype_bytes(args->dtype);

    return args->bias != NULL && args->stats != NULL && args->width % elems == 0 && args->width <= SUMMED_VECTORS * 32 * elems;
}

void norm_queue(const norm_launch *args, cudaStream_t stream)
{
    if (norm_wide_try(args, stream)) {
        return;
    }
    rows_queue(args, stream);
    if (args->dy != NULL) {
        finish_queue(args->dtype, args->partials, 2 * args->width, blocks_of(args->rows, NORM_CHUNK), args->width, args->dweight,
                     args->bias == NULL ? NULL : args->dbias, stream);
    }
}

void columns_finish_launch(sherd_dtype dtype, const float *partials, size_t stride, size_t count,
                           size_t columns, void *grad, cudaStream_t stream)
{
    finish_queue(dtype, partials, stride, count, columns, grad, NULL, stream);
}
