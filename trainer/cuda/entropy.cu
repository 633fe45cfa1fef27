/* Softmax, cross-entropy and its gradient over rows of logits, in place.
 *
 * A block owns a row. A first pass finds the maximum and the sum of the exponentials together: each
 * thread has its own sum and rescales it when its maximum grows (Milakov and Gimelshein 2018). A
 * second pass writes the gradient. The kernel relies on rows that begin at multiples of 16 bytes.
 *
 * Where a multiprocessor has shared memory for two rows, a block holds its row there, and the row
 * is read from memory once: one block waits for its copies while the other one computes. Elsewhere
 * both passes read from memory. Rows of 50,000 16-bit logits do not all stay in the second-level
 * cache between the two passes: with four blocks on each of an H100's 132 multiprocessors they are
 * 53 MB, and the cache has 50. So the second pass walks back from the end of the row, which was
 * read last.
 *
 * Each thread takes the same elements in the same order either way, and threads are reduced lane by
 * lane and then warp by warp, always in the same order. So the bits do not depend on the device. */
#include "kernels.h"

#include "elements.cuh"
#include "launch.h"
#include "tensor.cuh"

#define THREADS 512 /* another value gives other bits */
#define WARPS   (THREADS / 32)
#define PARTS   4 /* of a row in shared memory: the first pass begins when the first part is there */

typedef struct softmax_sum {
    float most, sum; /* sum of exp(x - most) */
} softmax_sum;

#define FOLD_BYTES (WARPS * sizeof(softmax_sum)) /* shared memory of a block in addition to its row */

template <typename T>
__device__ __forceinline__ softmax_sum softmax_fold(softmax_sum a, softmax_sum b)
{
    softmax_sum both;

    both.most = fmaxf(a.most, b.most);
    if (both.most == -INFINITY) {
        both.sum = 0.0f;
    } else {
        both.sum = a.sum * exp_of<T>(a.most - both.most) + b.sum * exp_of<T>(b.most - both.most);
    }
    return both;
}

/* The two sides of an exchange may round differently, since one of them multiplies and adds at
 * once. The result is that of lane 0.
 */
template <typename T> __device__ softmax_sum block_fold(softmax_sum own)
{
    __shared__ softmax_sum folds[WARPS]; /* FOLD_BYTES */
    softmax_sum            all;

    for (int step = 16; step > 0; step /= 2) {
        softmax_sum other;

        other.most = __shfl_xor_sync(WARP_ALL, own.most, step);
        other.sum  = __shfl_xor_sync(WARP_ALL, own.sum, step);
        own        = softmax_fold<T>(own, other);
    }
    if (threadIdx.x % 32 == 0) {
        folds[threadIdx.x / 32] = own;
    }
    __syncthreads();
    all = folds[0];
    for (int w = 1; w < WARPS; w++) {
        all = softmax_fold<T>(all, folds[w]);
    }
    return all;
}

template <typename T, int N>
__device__ __forceinline__ void softmax_add(softmax_sum *own, const float *x)
{
    float most = own->most, sum = 0.0f;

    for (int k = 0; k < N; k++) {
        most = fmaxf(most, x[k]);
    }
    if (most == -INFINITY) {
        return;
    }
    for (int k = 0; k < N; k++) {
        sum += exp_of<T>(x[k] - most);
    }
    own->sum  = own->sum * exp_of<T>(own->most - most) + sum;
    own->most = most;
}

/* Adds the vectors of this thread in [first, end) to its sum. Returns where the next one begins. */
template <typename T, int N>
__device__ __forceinline__ int softmax_pass(softmax_sum *own, const T *x, int first, int end)
{
    float at[N];
    int   i = first;

    for (; i < end; i += THREADS * N) {
        vector_of<T, N>::load(x + i, at);
        softmax_add<T, N>(own, at);
    }
    return i;
}

/* Waits until no more than `pending` parts of the row are on their way. */
__device__ __forceinline__ void parts_wait(int pending)
{
    static_assert(PARTS == 4, "a case for each part");
    switch (pending) {
    case 3:
        copies_wait<3>();
        break;
    case 2:
        copies_wait<2>();
        break;
    case 1:
        copies_wait<1>();
        break;
    default:
        copies_wait<0>();
    }
}

/* The first pass, with copies of the row's vectors into shared memory. A thread copies the elements
 * that it will read itself, so that it need not wait for the other threads. */
template <typename T, int N>
__device__ __forceinline__ int softmax_fetch(softmax_sum *own, T *held, const T *x, int whole)
{
    const int step = THREADS * N, part = (whole + PARTS * step - 1) / (PARTS * step) * step;
    int       i = (int)threadIdx.x * N, next = i;

    for (int p = 1; p <= PARTS; p++) {
        for (int end = p * part < whole ? p * part : whole; i < end; i += step) {
            copy_start(held + i, x + i, true);
        }
        copies_commit();
    }
#pragma unroll
    for (int p = 1; p <= PARTS; p++) {
        parts_wait(PARTS - p);
        next = softmax_pass<T, N>(own, held, next, p * part < whole ? p * part : whole);
    }
    return next;
}

/* If IS_HELD, the launch gives shared memory for the `whole` vectors of a row. The remaining
 * elements are only in memory. */
template <typename T, int N, bool IS_HELD>
__global__ void entropy(int vocab, size_t stride, T *logits, const int32_t *targets, float *losses,
                        float grad_scale)
{
    LLM_SHARED(shared);
    T          *x      = logits + (size_t)blockIdx.x * stride;
    T          *from   = IS_HELD ? (T *)shared : x;
    int         target = targets[blockIdx.x], whole = vocab / N * N;
    softmax_sum own    = {-INFINITY, 0.0f}, all;
    float       at[N], inverse, x_target = float_get(x[target]);
    int         i;

    if constexpr (IS_HELD) {
        i = softmax_fetch<T, N>(&own, from, x, whole);
    } else {
        i = softmax_pass<T, N>(&own, x, (int)threadIdx.x * N, whole);
    }
    if (whole + (int)threadIdx.x < vocab) {
        at[0] = float_get(x[whole + threadIdx.x]);
        softmax_add<T, 1>(&own, at);
    }
    /* after its barrier all threads have read the target, which is overwritten below */
    all     = block_fold<T>(own);
    inverse = grad_scale / all.sum;
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = logf(all.sum) + (all.most - x_target);
    }
    if (grad_scale == 0.0f) {
        return;
    }
    if (whole + (int)threadIdx.x < vocab) {
        int last = whole + (int)threadIdx.x;

        float_put(&x[last], exp_of<T>(float_get(x[last]) - all.most) * inverse - (last == target ? grad_scale : 0.0f));
    }
    /* beginning with the vector that this thread read last */
    for (i -= THREADS * N; i >= 0; i -= THREADS * N) {
        vector_of<T, N>::load(from + i, at);
        for (int k = 0; k < N; k++) {
            at[k] = exp_of<T>(at[k] - all.most) * inverse - (i + k == target ? grad_scale : 0.0f);
        }
        vector_of<T, N>::store(x + i, at);
    }
}

/* One block sums in double: thread t takes every LOSS_THREADS-th row from t on, LOSS_LOADS of them
 * at once. Then the threads' sums are added in pairs. */
#define LOSS_THREADS 1024
#define LOSS_LOADS   8

__global__ void loss_finish(const float *losses, size_t rows, double *sum)
{
    __shared__ double shares[LOSS_THREADS];
    double            own = 0.0;

    for (size_t row = threadIdx.x; row < rows; row += LOSS_THREADS * LOSS_LOADS) {
        float x[LOSS_LOADS];

#pragma unroll
        for (int k = 0; k < LOSS_LOADS; k++) {
            size_t at = row + (size_t)k * LOSS_THREADS;

            x[k] = at < rows ? losses[at] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < LOSS_LOADS; k++) {
            own += (double)x[k];
        }
    }
    shares[threadIdx.x] = own;
    for (int half = LOSS_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            own += shares[threadIdx.x + half];
            shares[threadIdx.x] = own;
        }
    }
    if (threadIdx.x == 0) {
        *sum += (double)(float)(own / (double)rows);
    }
}

/* ----------------------------------------------------------- launchers -- */

/* Returns how many bytes a row may have so that two blocks with their rows have room on a
 * multiprocessor. */
static size_t held_most(const shared_memory &memory)
{
    const size_t beside = RESERVED_BYTES + FOLD_BYTES;

    return memory.processor_bytes / 2 > beside ? memory.processor_bytes / 2 - beside : 0;
}

template <typename T, int N, bool IS_HELD> static void entropy_queue(const entropy_launch *a, size_t held_bytes, cudaStream_t stream)
{
    LLM_LAUNCH((entropy<T, N, IS_HELD>), dim3((unsigned)a->rows), dim3(THREADS), held_bytes, stream, (int)a->vocab,
               a->stride, (T *)a->logits, a->targets, a->losses, a->grad_scale);
}

void entropy_launch_rows(const entropy_launch *args, cudaStream_t stream)
{
    by_vector(args->dtype, args->stride, [&](auto vector) {
        typedef typename decltype(vector)::type T;
        constexpr int                           N     = decltype(vector)::elems;
        size_t                                  bytes = args->vocab / N * N * sizeof(T);

        if constexpr (N > 1) {
            if (bytes <= held_most(args->memory)) {
                entropy_queue<T, N, true>(args, bytes, stream);
                return;
            }
        }
        entropy_queue<T, N, false>(args, 0, stream);
    });
}

template <typename T> static void held_allow(const shared_memory &memory, cudaError_t *error)
{
    if (*error == cudaSuccess) {
        *error = cudaFuncSetAttribute((const void *)entropy<T, wide_of<T>::elems, true>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)held_most(memory));
    }
}

cudaError_t entropy_prepare(shared_memory memory)
{
    cudaError_t error = cudaSuccess;

    held_allow<float>(memory, &error);
    held_allow<bf16_t>(memory, &error);
    held_allow<f16_t>(memory, &error);
    return error;
}

void loss_finish_launch(const float *losses, size_t rows, double *sum, cudaStream_t stream)
{
    LLM_LAUNCH(loss_finish, dim3(1), dim3(LOSS_THREADS), 0, stream, losses, rows, sum);
}
