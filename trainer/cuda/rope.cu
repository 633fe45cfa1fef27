/* Heads of queries and keys on their way to attention: RMSNorm of each head, where the model has
 * one, and the rotation by its position (Su et al. 2021, with the halves apart), in one kernel for
 * both and for each direction.
 *
 * Some lanes of a warp, a power of two, have one head. Each of them has PAIRS times N elements of
 * the head's first half and those of the second half that are rotated with them, so that each
 * element is read once and only the sum of a norm is exchanged. A block has some rows, and goes
 * over their heads. In backward a thread always has the same columns, and sums their shares of the
 * weight's gradient in registers; then the block adds them in order, and columns_finish adds those
 * of the blocks. So only shapes decide the order of a sum. */
#include "kernels.h"

#include "elements.cuh"
#include "launch.h"

#define THREADS   256
#define ROPE_ROWS 4 /* of a block in forward; of one in backward ROPE_CHUNK */

template <typename T> struct rope_typed_part {
    int      heads;
    const T *x, *weight; /* weight NULL: no norm */
    T       *y;
    const T *dy; /* backward */
    T       *dx;
};

template <typename T> struct rope_typed {
    size_t             rows, length;
    int                width, lanes; /* lanes of a head: a power of two */
    float              eps, direction;
    const float       *cosines, *sines;
    rope_typed_part<T> parts[2];
    float             *partials; /* [chunks, 2, width] */
};

/* The elements of a head that a thread has: PAIRS vectors of both halves. Lanes past the end of the
 * head have zeros. */
template <typename T, int N, int PAIRS> struct head_part {
    float at[PAIRS][2][N];

    __device__ __forceinline__ void load(const T *head, int lane, int lanes, int half)
    {
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int c = (p * lanes + lane) * N;

            for (int k = 0; k < N; k++) {
                at[p][0][k] = at[p][1][k] = 0.0f;
            }
            if (c < half) {
                vector_of<T, N>::load(head + c, at[p][0]);
                vector_of<T, N>::load(head + half + c, at[p][1]);
            }
        }
    }

    __device__ __forceinline__ void store(T *head, int lane, int lanes, int half) const
    {
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int c = (p * lanes + lane) * N;

            if (c < half) {
                vector_of<T, N>::store(head + c, at[p][0]);
                vector_of<T, N>::store(head + half + c, at[p][1]);
            }
        }
    }

    /* Rotates by the angles of a position. */
    __device__ __forceinline__ void rotate(const float *cosines, const float *sines, float direction, int lane, int lanes, int half)
    {
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int c = (p * lanes + lane) * N;

            for (int k = 0; k < N && c < half; k++) {
                float cosine = cosines[c + k], sine = direction * sines[c + k], first = at[p][0][k];

                at[p][0][k] = first * cosine - at[p][1][k] * sine;
                at[p][1][k] = at[p][1][k] * cosine + first * sine;
            }
        }
    }
};

/* Adds over the lanes of a head; all of a warp take part. */
__device__ __forceinline__ float lanes_sum(float x, int lanes)
{
    for (int step = lanes / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(WARP_ALL, x, step);
    }
    return x;
}

template <typename T, int N, int PAIRS>
__device__ __forceinline__ float norm_scale(const head_part<T, N, PAIRS> &x, int lanes, int width, float eps)
{
    float sum = 0.0f;

#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        for (int half = 0; half < 2; half++) {
            for (int k = 0; k < N; k++) {
                sum += x.at[p][half][k] * x.at[p][half][k];
            }
        }
    }
    return 1.0f / sqrtf(lanes_sum(sum, lanes) / (float)width + eps);
}

/* Heads of both parts are numbered together, row by row. A head that is not there is computed as
 * the first one and not stored. */
template <typename T, int N, int PAIRS> __global__ void __launch_bounds__(THREADS) rope_forward(rope_typed<T> a)
{
    const int    lane = (int)threadIdx.x % a.lanes, group = (int)threadIdx.x / a.lanes, groups = THREADS / a.lanes;
    const int    half = a.width / 2, heads = a.parts[0].heads + a.parts[1].heads;
    const size_t first = (size_t)blockIdx.x * ROPE_ROWS;
    const int    count = (int)(a.rows - first < ROPE_ROWS ? a.rows - first : ROPE_ROWS) * heads;

    for (int i = group; i - group < count; i += groups) {
        const bool                is_there = i < count;
        const int                 in_row = is_there ? i % heads : 0;
        const size_t              row = first + (is_there ? i / heads : 0);
        const bool                is_second = in_row >= a.parts[0].heads;
        const rope_typed_part<T> &part = a.parts[is_second];
        const size_t              at = (row * part.heads + in_row - (is_second ? a.parts[0].heads : 0)) * a.width;
        const size_t              angles = row % a.length * half;
        head_part<T, N, PAIRS>    x, w;

        x.load(part.x + at, lane, a.lanes, half);
        /* the same in all lanes of a warp */
        if (a.parts[0].weight != NULL || a.parts[1].weight != NULL) {
            float scale = norm_scale<T, N, PAIRS>(x, a.lanes, a.width, a.eps);

            if (part.weight != NULL) {
                w.load(part.weight, lane, a.lanes, half);
#pragma unroll
                for (int p = 0; p < PAIRS; p++) {
                    for (int k = 0; k < N; k++) {
                        x.at[p][0][k] *= scale * w.at[p][0][k];
                        x.at[p][1][k] *= scale * w.at[p][1][k];
                    }
                }
            }
        }
        x.rotate(a.cosines + angles, a.sines + angles, a.direction, lane, a.lanes, half);
        if (is_there) {
            x.store(part.y + at, lane, a.lanes, half);
        }
    }
}

/* Backward of a part with a norm, which blockIdx.y chooses: dx, and the block's sums of the
 * weight's gradient. */
template <typename T, int N, int PAIRS> __global__ void __launch_bounds__(THREADS) rope_backward(rope_typed<T> a)
{
    __shared__ float          shared[THREADS * PAIRS * 2 * N];
    const rope_typed_part<T> &part = a.parts[blockIdx.y];
    const int    lane = (int)threadIdx.x % a.lanes, group = (int)threadIdx.x / a.lanes, groups = THREADS / a.lanes;
    const int    half = a.width / 2;
    const size_t first = (size_t)blockIdx.x * ROPE_CHUNK;
    const int    count = (int)(a.rows - first < ROPE_CHUNK ? a.rows - first : ROPE_CHUNK) * part.heads;
    float        sums[PAIRS][2][N];

    head_part<T, N, PAIRS> w;

    if (part.weight == NULL) { /* the other part has a norm */
        return;
    }
    w.load(part.weight, lane, a.lanes, half);
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        for (int k = 0; k < N; k++) {
            sums[p][0][k] = sums[p][1][k] = 0.0f;
        }
    }
    for (int i = group; i - group < count; i += groups) {
        const bool   is_there = i < count;
        const size_t row = first + (is_there ? i / part.heads : 0);
        const size_t at = (row * part.heads + (is_there ? i % part.heads : 0)) * a.width, angles = row % a.length * half;
        float        scale, sum = 0.0f;

        head_part<T, N, PAIRS> x, d;

        x.load(part.x + at, lane, a.lanes, half);
        d.load(part.dy + at, lane, a.lanes, half);
        d.rotate(a.cosines + angles, a.sines + angles, a.direction, lane, a.lanes, half);
        scale = norm_scale<T, N, PAIRS>(x, a.lanes, a.width, a.eps);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            for (int h = 0; h < 2; h++) {
                for (int k = 0; k < N; k++) {
                    x.at[p][h][k] *= scale;
                    sum += d.at[p][h][k] * w.at[p][h][k] * x.at[p][h][k];
                    sums[p][h][k] += is_there ? d.at[p][h][k] * x.at[p][h][k] : 0.0f;
                }
            }
        }
        sum = lanes_sum(sum, a.lanes) / (float)a.width;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            for (int h = 0; h < 2; h++) {
                for (int k = 0; k < N; k++) {
                    d.at[p][h][k] = (d.at[p][h][k] * w.at[p][h][k] - x.at[p][h][k] * sum) * scale;
                }
            }
        }
        if (is_there) {
            d.store(part.dx + at, lane, a.lanes, half);
        }
    }
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int c = (p * a.lanes + lane) * N;

        for (int k = 0; k < N && c < half; k++) {
            shared[group * a.width + c + k]        = sums[p][0][k];
            shared[group * a.width + half + c + k] = sums[p][1][k];
        }
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < a.width; c += THREADS) {
        float sum = 0.0f;

        for (int g = 0; g < groups; g++) {
            sum += shared[g * a.width + c];
        }
        a.partials[((size_t)blockIdx.x * 2 + blockIdx.y) * a.width + c] = sum;
    }
}

/* ----------------------------------------------------------- launchers -- */

template <typename T> static rope_typed_part<T> typed_part(const rope_launch_part *part)
{
    return {(int)part->heads, (const T *)part->x, (const T *)part->weight, (T *)part->y, (const T *)part->dy, (T *)part->dx};
}

template <typename T, int N, int PAIRS> static void typed_queue(const rope_launch *l, rope_typed<T> a, cudaStream_t stream)
{
    bool has_norms = l->parts[0].weight != NULL || l->parts[1].weight != NULL;

    if (l->is_backward && has_norms) {
        LLM_LAUNCH((rope_backward<T, N, PAIRS>), dim3(blocks_of(l->rows, ROPE_CHUNK), 2), dim3(THREADS), 0, stream, a);
    }
    if (l->is_backward) { /* heads without a norm are rotated back */
        for (int i = 0; i < 2; i++) {
            a.parts[i].heads = l->parts[i].weight == NULL ? a.parts[i].heads : 0;
            a.parts[i].x     = a.parts[i].dy;
            a.parts[i].y     = a.parts[i].dx;
            a.parts[i].weight = NULL;
        }
    }
    if (a.parts[0].heads + a.parts[1].heads > 0) {
        LLM_LAUNCH((rope_forward<T, N, PAIRS>), dim3(blocks_of(l->rows, ROPE_ROWS)), dim3(THREADS), 0, stream, a);
    }
}

void rope_queue(const rope_launch *l, cudaStream_t stream)
{
    by_vector(l->dtype, l->width / 2, [&](auto vector) {
        typedef typename decltype(vector)::type T;
        constexpr int                           N = decltype(vector)::elems;
        const int                               vectors = (int)l->width / 2 / N;
        rope_typed<T> a = {l->rows, l->length, (int)l->width, 1, l->eps, l->is_backward ? -1.0f : 1.0f, l->cosines, l->sines,
                           {typed_part<T>(&l->parts[0]), typed_part<T>(&l->parts[1])}, l->partials};

        while (a.lanes < 32 && a.lanes < vectors) {
            a.lanes *= 2;
        }
        static_assert(ATTENTION_MOST_WIDTH <= 256, "a lane has four pairs at most, or one vector");
        if constexpr (N > 1) {
            typed_queue<T, N, 1>(l, a, stream);
        } else if (vectors <= a.lanes) {
            typed_queue<T, 1, 1>(l, a, stream);
        } else {
            typed_queue<T, 1, 4>(l, a, stream);
        }
    });
    for (int i = 0; i < 2 && l->is_backward; i++) {
        if (l->parts[i].weight != NULL) {
            columns_finish_launch(l->dtype, l->partials + i * l->width, 2 * l->width, blocks_of(l->rows, ROPE_CHUNK), l->width,
                                  l->parts[i].dweight, stream);
        }
    }
}
