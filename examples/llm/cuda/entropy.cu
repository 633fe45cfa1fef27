/* Softmax, cross-entropy and its gradient over rows of logits, in place.
 *
 * A block owns a row. A first pass finds the maximum and the sum of the exponentials together: each thread has its own sum and
 * rescales it when its maximum grows (Milakov and Gimelshein 2018). A second pass writes the gradient. Rows of 50,000 16-bit logits
 * do not all stay in the second-level cache between the two passes: with four blocks on each of an H100's 132 multiprocessors they
 * are 53 MB, and the cache has 50. So the second pass walks back from the end of the row, which was read last. Threads are
 * reduced lane by lane and then warp by warp, always in the same order. The kernel relies on rows that begin at multiples of 16
 * bytes. */
#include "kernels.h"

#include "elements.cuh"
#include "launch.h"

#define THREADS 512
#define WARPS   (THREADS / 32)

typedef struct softmax_sum {
    float most, sum; /* sum of exp(x - most) */
} softmax_sum;

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

/* The two sides of an exchange may round differently, since one of them multiplies and adds at once. The result is that of lane 0.
 * */
template <typename T> __device__ softmax_sum block_fold(softmax_sum own)
{
    __shared__ softmax_sum folds[WARPS];
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

template <typename T, int N>
__global__ void entropy(int vocab, int zeroed, size_t stride, T *logits, const int32_t *targets, float *losses,
                        float grad_scale)
{
    T          *x      = logits + (size_t)blockIdx.x * stride;
    int         target = targets[blockIdx.x], whole = vocab / N * N;
    softmax_sum own    = {-INFINITY, 0.0f}, all;
    int         i      = (int)threadIdx.x * N;
    float       at[N], inverse, x_target;

    for (; i < whole; i += THREADS * N) {
        vector_of<T, N>::load(x + i, at);
        softmax_add<T, N>(&own, at);
    }
    if (whole + (int)threadIdx.x < vocab) {
        at[0] = float_get(x[whole + threadIdx.x]);
        softmax_add<T, 1>(&own, at);
    }
    x_target = float_get(x[target]);
    all      = block_fold<T>(own); /* after its barrier all threads have read the target, which is overwritten below */
    inverse  = grad_scale / all.sum;
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = logf(all.sum) + (all.most - x_target);
    }
    if (grad_scale == 0.0f) {
        return;
    }
    for (int c = vocab + (int)threadIdx.x; c < zeroed; c += THREADS) {
        float_put(&x[c], 0.0f);
    }
    if (whole + (int)threadIdx.x < vocab) {
        int last = whole + (int)threadIdx.x;

        float_put(&x[last], exp_of<T>(float_get(x[last]) - all.most) * inverse - (last == target ? grad_scale : 0.0f));
    }
    for (i -= THREADS * N; i >= 0; i -= THREADS * N) { /* beginning with the vector that this thread read last */
        vector_of<T, N>::load(x + i, at);
        for (int k = 0; k < N; k++) {
            at[k] = exp_of<T>(at[k] - all.most) * inverse - (i + k == target ? grad_scale : 0.0f);
        }
        vector_of<T, N>::store(x + i, at);
    }
}

/* One block sums in double: thread t takes every LOSS_THREADS-th row from t on, then the threads' sums are added in their order. */
#define LOSS_THREADS 256

__global__ void loss_finish(const float *losses, size_t rows, double *sum)
{
    __shared__ double shares[LOSS_THREADS];
    double            own = 0.0;

    for (size_t row = threadIdx.x; row < rows; row += LOSS_THREADS) {
        own += (double)losses[row];
    }
    shares[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int t = 1; t < LOSS_THREADS; t++) {
            own += shares[t];
        }
        *sum += (double)(float)(own / (double)rows);
    }
}

/* ----------------------------------------------------------- launchers -- */

void entropy_launch_rows(const entropy_launch *args, cudaStream_t stream)
{
    by_vector(args->dtype, args->stride, [&](auto vector) {
        typedef typename decltype(vector)::type T;

        LLM_LAUNCH((entropy<T, decltype(vector)::elems>), dim3((unsigned)args->rows), dim3(THREADS),
                   0, stream, (int)args->vocab, (int)args->zeroed, args->stride, (T *)args->logits, args->targets,
                   args->losses, args->grad_scale);
    });
}

void loss_finish_launch(const float *losses, size_t rows, double *sum, cudaStream_t stream)
{
    LLM_LAUNCH(loss_finish, dim3(1), dim3(LOSS_THREADS), 0, stream, losses, rows, sum);
}
