/* Operations element by element, and sums of columns.
 *
 * A thread owns one vector of sixteen bytes, or one element if the count is not a whole number of
 * vectors. Sums of columns take two steps, as those of norms do: a block owns SUM_ROWS rows of 32
 * vectors, and each warp sums every SUM_WARPS-th row; columns_finish then adds the sums of the
 * blocks in order. */
#include "kernels.h"

#include "elements.cuh"
#include "launch.h"

#define THREADS   256
#define SUM_WARPS 8
/* Rows of which a warp of column_sums reads a vector before it adds them. With fewer blocks on a
 * multiprocessor than SUM_BLOCKS there would be too few warps, with more of them too few registers
 * for the loads. Not macros, as a pragma does not expand those. */
static const int SUM_LOADS = 8, SUM_BLOCKS = 4;

/* ----------------------------------------------------------- formulas -- */

__device__ __forceinline__ float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel
 * 2016). */
__device__ __forceinline__ float gelu_gate(float x)
{
    return sigmoid_of(1.5957691216f * (x + 0.044715f * x * x * x));
}

struct gelu_forward {
    static const int inputs = 1, outputs = 1;
    __device__ __forceinline__ void operator()(const float *in, float *out) const
    {
        out[0] = in[0] * gelu_gate(in[0]);
    }
};

/* Inputs: x, d. Output: d. */
struct gelu_backward {
    static const int inputs = 2, outputs = 1;
    __device__ __forceinline__ void operator()(const float *in, float *out) const
    {
        float gate  = gelu_gate(in[0]);
        float slope = 1.5957691216f * (1.0f + 0.134145f * in[0] * in[0]);

        out[0] = in[1] * (gate + in[0] * slope * gate * (1.0f - gate));
    }
};

/* Inputs: gate, up (Shazeer 2020). */
struct swiglu_forward {
    static const int inputs = 2, outputs = 1;
    __device__ __forceinline__ void operator()(const float *in, float *out) const
    {
        out[0] = in[0] * sigmoid_of(in[0]) * in[1];
    }
};

/* Inputs: gate, up, d. Outputs: the gradient of up, the gradient of gate, and what forward gave. */
struct swiglu_backward {
    static const int inputs = 3, outputs = 3;
    __device__ __forceinline__ void operator()(const float *in, float *out) const
    {
        float s = sigmoid_of(in[0]);

        out[0] = in[2] * in[0] * s;
        out[1] = in[2] * in[1] * (s + in[0] * s * (1.0f - s));
        out[2] = in[0] * s * in[1];
    }
};

/* ------------------------------------------------------------- kernels -- */

/* An output may be the same array as an input, since a thread reads its vector of every input
 * before it writes. */
template <typename T> struct elementwise_args {
    size_t   elems;
    const T *in[3];
    T       *out[3];
};

template <typename T, int N, typename F>
__global__ void elementwise(elementwise_args<T> a)
{
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float  in[F::inputs][N], out[F::outputs][N];
    F      formula;

    if (i >= a.elems) {
        return;
    }
    for (int k = 0; k < F::inputs; k++) {
        vector_of<T, N>::load(a.in[k] + i, in[k]);
    }
    for (int n = 0; n < N; n++) {
        float x[F::inputs], y[F::outputs];

        for (int k = 0; k < F::inputs; k++) {
            x[k] = in[k][n];
        }
        formula(x, y);
        for (int k = 0; k < F::outputs; k++) {
            out[k][n] = y[k];
        }
    }
    for (int k = 0; k < F::outputs; k++) {
        vector_of<T, N>::store(a.out[k] + i, out[k]);
    }
}

/* Each row of blocks of the grid computes one row. The number of columns is a multiple of N. */
template <typename T, int N>
__global__ void bias_add(size_t rows, int columns, const T *bias, T *y)
{
    float b[N], x[N];

    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        for (int c = (int)threadIdx.x * N; c < columns; c += THREADS * N) {
            T *at = y + row * (size_t)columns + c;

            vector_of<T, N>::load(bias + c, b);
            vector_of<T, N>::load(at, x);
            for (int k = 0; k < N; k++) {
                x[k] += b[k];
            }
            vector_of<T, N>::store(at, x);
        }
    }
}

/* Adds `count` vectors, each `step` elements after the one before. */
template <typename T, int N>
__device__ __forceinline__ void vectors_add(const T *at, size_t count, size_t step, float *sum)
{
    for (; count >= SUM_LOADS; count -= SUM_LOADS) {
        float x[SUM_LOADS][N];

#pragma unroll
        for (int l = 0; l < SUM_LOADS; l++, at += step) {
            vector_of<T, N>::load(at, x[l]);
        }
#pragma unroll
        for (int l = 0; l < SUM_LOADS; l++) {
            for (int k = 0; k < N; k++) {
                sum[k] += x[l][k];
            }
        }
    }
#pragma unroll 1
    for (; count > 0; count--, at += step) {
        float x[N];

        vector_of<T, N>::load(at, x);
        for (int k = 0; k < N; k++) {
            sum[k] += x[k];
        }
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(SUM_WARPS * 32, SUM_BLOCKS)
    column_sums(const T *dy, size_t rows, int columns, float *partials)
{
    __shared__ float sums[SUM_WARPS][32 * N];
    int              lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int              first = (int)blockIdx.y * 32 * N, c = first + lane * N;
    size_t           row = (size_t)blockIdx.x * SUM_ROWS + warp, end = ((size_t)blockIdx.x + 1) * SUM_ROWS;
    float            sum[N];

    end = end < rows ? end : rows;
    for (int k = 0; k < N; k++) {
        sum[k] = 0.0f;
    }
    if (c < columns && row < end) {
        vectors_add<T, N>(dy + row * (size_t)columns + c, (end - row + SUM_WARPS - 1) / SUM_WARPS, SUM_WARPS * (size_t)columns, sum);
    }
    for (int k = 0; k < N; k++) {
        sums[warp][k * 32 + lane] = sum[k]; /* all lanes use different banks */
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 32 * N; i += THREADS) {
        int   at    = first + i % 32 * N + i / 32;
        float total = 0.0f;

        for (int w = 0; w < SUM_WARPS; w++) {
            total += sums[w][i];
        }
        if (at < columns) {
            partials[(size_t)blockIdx.x * columns + at] = total;
        }
    }
}

template <typename T> __global__ void widen(const T *src, float *dst, size_t elems)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < elems) {
        dst[i] = float_get(src[i]);
    }
}

/* Each thread adds to one vector of y. Per element, four bytes of x are read, and two of y are read
 * and written. The thread after the last whole vector takes the rest. -0 in x counts as 0, as in
 * columns_finish, whose sums begin with 0. */
template <typename T> __global__ void add_wide(size_t elems, const float *x, T *y)
{
    constexpr int N = wide_of<T>::elems;
    size_t        i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float         sum[N], at[N];

    if (i + N <= elems) {
        for (int k = 0; k < N; k += 4) {
            vector_of<float, 4>::load(x + i + k, sum + k);
        }
        vector_of<T, N>::load(y + i, at);
        for (int k = 0; k < N; k++) {
            at[k] += 0.0f + sum[k];
        }
        vector_of<T, N>::store(y + i, at);
        return;
    }
    for (; i < elems; i++) {
        float_put(&y[i], float_get(y[i]) + (0.0f + x[i]));
    }
}

/* ----------------------------------------------------------- launchers -- */

/* The arrays that a formula does not have are NULL. */
typedef struct element_arrays {
    const void *in[3];
    void       *out[3];
} element_arrays;

template <typename F>
static void elementwise_queue(sherd_dtype dtype, size_t elems, const element_arrays &arrays, cudaStream_t stream)
{
    by_vector(dtype, elems, [&](auto vector) {
        typedef typename decltype(vector)::type T;
        constexpr int                           N    = decltype(vector)::elems;
        elementwise_args<T>                     args = {elems, {}, {}};

        for (int i = 0; i < 3; i++) {
            args.in[i]  = (const T *)arrays.in[i];
            args.out[i] = (T *)arrays.out[i];
        }
        LLM_LAUNCH((elementwise<T, N, F>), dim3(blocks_of(elems / N, THREADS)), dim3(THREADS), 0,
                   stream, args);
    });
}

void gelu_launch(sherd_dtype dtype, size_t elems, const void *x, void *y, cudaStream_t stream)
{
    elementwise_queue<gelu_forward>(dtype, elems, {{x}, {y}}, stream);
}

void add_wide_launch(sherd_dtype dtype, size_t elems, const float *x, void *y, cudaStream_t stream)
{
    by_type(dtype, [&](auto one) {
        typedef typename decltype(one)::type T;

        LLM_LAUNCH(add_wide<T>, dim3(blocks_of(elems, (size_t)THREADS * wide_of<T>::elems)), dim3(THREADS), 0, stream, elems, x,
                   (T *)y);
    });
}

void gelu_back_launch(sherd_dtype dtype, size_t elems, const void *x, void *d, cudaStream_t stream)
{
    elementwise_queue<gelu_backward>(dtype, elems, {{x, d}, {d}}, stream);
}

void swiglu_launch(sherd_dtype dtype, size_t elems, const void *gate, const void *up, void *y,
                   cudaStream_t stream)
{
    elementwise_queue<swiglu_forward>(dtype, elems, {{gate, up}, {y}}, stream);
}

void swiglu_back_launch(sherd_dtype dtype, size_t elems, const void *gate, const void *up, void *y, void *d, void *dgate,
                        cudaStream_t stream)
{
    elementwise_queue<swiglu_backward>(dtype, elems, {{gate, up, d}, {d, dgate, y}}, stream);
}

void bias_add_launch(sherd_dtype dtype, size_t rows, size_t columns, const void *bias, void *y,
                     cudaStream_t stream)
{
    by_vector(dtype, columns, [&](auto vector) {
        typedef typename decltype(vector)::type T;

        LLM_LAUNCH((bias_add<T, decltype(vector)::elems>),
                   dim3((unsigned)(rows < 65535 ? rows : 65535)), dim3(THREADS), 0, stream, rows,
                   (int)columns, (const T *)bias, (T *)y);
    });
}

void column_sums_launch(sherd_dtype dtype, const void *dy, size_t rows, size_t columns,
                        float *partials, void *dbias, cudaStream_t stream)
{
    by_vector(dtype, columns, [&](auto vector) {
        typedef typename decltype(vector)::type T;
        constexpr int                           N = decltype(vector)::elems;

        LLM_LAUNCH((column_sums<T, N>), dim3(blocks_of(rows, SUM_ROWS), blocks_of(columns, 32 * N)),
                   dim3(SUM_WARPS * 32), 0, stream, (const T *)dy, rows, (int)columns, partials);
    });
    columns_finish_launch(dtype, partials, columns, blocks_of(rows, SUM_ROWS), columns, dbias,
                          stream);
}

void widen_launch(sherd_dtype dtype, const void *src, float *dst, size_t elems, cudaStream_t stream)
{
    by_type(dtype, [&](auto one) {
        typedef typename decltype(one)::type T;

        LLM_LAUNCH(widen<T>, dim3(blocks_of(elems, THREADS)), dim3(THREADS), 0, stream,
                   (const T *)src, dst, elems);
    });
}
