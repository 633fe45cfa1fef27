/* Rows of the tables of tokens and positions, and the gradients of these tables.
 *
 * Backward receives the rows sorted by token, cut into ranges of at most EMBED_RANGE_ROWS.
 * (device.cu sorts them on the host when the micro-batch arrives.) A block sums one range. If a
 * token has several ranges, a second kernel adds their sums in order. So only one block touches a
 * token's gradient, and no sum depends on which block comes first. A thread owns vectors of N
 * columns. */
#include "kernels.h"

#include "elements.cuh"
#include "launch.h"

#define MOST_THREADS 256

template <typename T, int N>
__global__ void embed_forward(size_t length, int hidden, const int32_t *ids,
                              const T *tokens, const T *positions, T *y)
{
    size_t row = blockIdx.x;
    float  x[N], p[N];

    for (int c = (int)threadIdx.x * N; c < hidden; c += (int)blockDim.x * N) {
        vector_of<T, N>::load(tokens + (size_t)ids[row] * hidden + c, x);
        if (positions != NULL) {
            vector_of<T, N>::load(positions + row % length * hidden + c, p);
            for (int k = 0; k < N; k++) {
                x[k] += p[k];
            }
        }
        vector_of<T, N>::store(y + row * hidden + c, x);
    }
}

template <typename T, int N> __device__ __forceinline__ void grad_add(T *grad, const float *sum)
{
    float old[N];

    vector_of<T, N>::load(grad, old);
    for (int k = 0; k < N; k++) {
        old[k] += sum[k];
    }
    vector_of<T, N>::store(grad, old);
}

template <typename T, int N>
__global__ void embed_backward_ranges(int hidden, const embed_range *ranges, const int32_t *order,
                                      const T *dy, T *dtokens, float *partials)
{
    embed_range range = ranges[blockIdx.x];

    for (int c = (int)threadIdx.x * N; c < hidden; c += (int)blockDim.x * N) {
        float sum[N], x[N];

        for (int k = 0; k < N; k++) {
            sum[k] = 0.0f;
        }
#pragma unroll 4
        for (int i = 0; i < range.count; i++) {
            vector_of<T, N>::load(dy + (size_t)order[range.first + i] * hidden + c, x);
            for (int k = 0; k < N; k++) {
                sum[k] += x[k];
            }
        }
        if (range.slot < 0) {
            grad_add<T, N>(dtokens + (size_t)range.token * hidden + c, sum);
        } else {
            for (int k = 0; k < N; k++) {
                partials[(size_t)range.slot * hidden + c + k] = sum[k];
            }
        }
    }
}

template <typename T>
__global__ void embed_backward_repeated(int hidden, const embed_token *repeated, const float *partials,
                                        T *dtokens)
{
    embed_token token = repeated[blockIdx.x];

    for (int c = (int)threadIdx.x; c < hidden; c += (int)blockDim.x) {
        float sum = 0.0f;
        T    *at  = dtokens + (size_t)token.token * hidden + c;

        for (int i = 0; i < token.slots; i++) {
            sum += partials[(size_t)(token.first_slot + i) * hidden + c];
        }
        float_put(at, float_get(*at) + sum);
    }
}

template <typename T, int N>
__global__ void embed_backward_positions(size_t rows, size_t length, int hidden, const T *dy,
                                         T *dpositions)
{
    for (int c = (int)threadIdx.x * N; c < hidden; c += (int)blockDim.x * N) {
        float sum[N], x[N];

        for (int k = 0; k < N; k++) {
            sum[k] = 0.0f;
        }
        for (size_t row = blockIdx.x; row < rows; row += length) {
            vector_of<T, N>::load(dy + row * hidden + c, x);
            for (int k = 0; k < N; k++) {
                sum[k] += x[k];
            }
        }
        grad_add<T, N>(dpositions + (size_t)blockIdx.x * hidden + c, sum);
    }
}

/* ----------------------------------------------------------- launchers -- */

static dim3 block_of(size_t hidden, size_t n)
{
    size_t threads = (hidden / n + 31) / 32 * 32;

    threads = threads < 32 ? 32 : threads;
    return dim3((unsigned)(threads < MOST_THREADS ? threads : MOST_THREADS));
}

template <typename T, int N>
static void forward_queue(const embed_launch *a, cudaStream_t stream)
{
    LLM_LAUNCH((embed_forward<T, N>), dim3((unsigned)a->rows), block_of(a->hidden, N), 0, stream,
               a->length, (int)a->hidden, a->ids, (const T *)a->tokens,
               (const T *)a->positions, (T *)a->y);
}

template <typename T, int N>
static void backward_queue(const embed_launch *a, cudaStream_t stream)
{
    LLM_LAUNCH((embed_backward_ranges<T, N>), dim3((unsigned)a->num_ranges), block_of(a->hidden, N),
               0, stream, (int)a->hidden, a->ranges, a->order, (const T *)a->dy, (T *)a->dtokens,
               a->partials);
    if (a->num_repeated > 0) {
        LLM_LAUNCH((embed_backward_repeated<T>), dim3((unsigned)a->num_repeated),
                   block_of(a->hidden, 1), 0, stream, (int)a->hidden, a->repeated,
                   (const float *)a->partials, (T *)a->dtokens);
    }
    if (a->dpositions != NULL) {
        size_t positions = a->length < a->rows ? a->length : a->rows;

        LLM_LAUNCH((embed_backward_positions<T, N>), dim3((unsigned)positions), block_of(a->hidden, N),
                   0, stream, a->rows, a->length, (int)a->hidden, (const T *)a->dy,
                   (T *)a->dpositions);
    }
}

void embed_queue(const embed_launch *args, cudaStream_t stream)
{
    by_vector(args->dtype, args->hidden, [&](auto vector) {
        typedef typename decltype(vector)::type T;

        if (args->dy == NULL) {
            forward_queue<T, decltype(vector)::elems>(args, stream);
        } else {
            backward_queue<T, decltype(vector)::elems>(args, stream);
        }
    });
}
