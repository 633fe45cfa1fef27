/* Causal attention without tensor cores, for fp32 and for widths that tensor cores cannot take. It
 * is written to be read rather than to be fast. It holds no length x length matrix either.
 *
 * A warp owns a row, and a block has eight warps. The block reads KEYS rows of the other side at a
 * time into shared memory. Forward and dQ own a query and walk over keys; dK and dV own a key and
 * walk over the queries of every head that reads it. Lane l computes the score of the l-th of the
 * KEYS rows. Then all lanes sum over these rows together, each lane its own columns, so that every
 * sum has one owner and one order. */
#include "attention.cuh"
#include "elements.cuh"
#include "kernels.h"
#include "launch.h"

#define WARPS      8
#define KEYS       32
#define MOST_WIDTH ATTENTION_MOST_WIDTH
#define COLUMNS    (MOST_WIDTH / 32) /* columns of a lane */

/* Copies rows [first, first + KEYS) of a matrix to shared memory [KEYS][width + 1], with zeros past
 * the end. */
template <typename T>
__device__ __forceinline__ void rows_load(float *to, const T *from, size_t stride, size_t first,
                                          size_t length, int width)
{
    for (int i = (int)threadIdx.x; i < KEYS * width; i += WARPS * 32) {
        int    r = i / width, c = i % width;
        size_t row = first + r;

        to[r * (width + 1) + c] = row < length ? float_get(from[row * stride + c]) : 0.0f;
    }
}

template <typename T>
__device__ __forceinline__ void row_load(float *to, const T *from, int width, int lane, bool is_there)
{
    for (int c = lane; c < width; c += 32) {
        to[c] = is_there ? float_get(from[c]) : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float *a, const float *b, int width)
{
    float sum = 0.0f;

    for (int c = 0; c < width; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

/* Shared memory: own rows [WARPS][width], two tiles [KEYS][width + 1], scores [WARPS][KEYS]. */
template <typename T> __global__ void plain_forward(attention_typed<T> a)
{
    LLM_SHARED(shared);
    const size_t length = (size_t)a.length;
    int    lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, width = a.width;
    int    head = (int)blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    size_t first = (size_t)blockIdx.x * WARPS, row = first + warp, batch0 = blockIdx.z * length;
    bool   is_there = row < length;
    float *own = (float *)shared + warp * width, *k_tile = (float *)shared + WARPS * width;
    float *v_tile = k_tile + KEYS * (width + 1), *p = v_tile + KEYS * (width + 1) + warp * KEYS;
    float  most = -INFINITY, sum = 0.0f, y[COLUMNS] = {0.0f};
    size_t last = first + WARPS - 1 < length ? first + WARPS - 1 : length - 1;

    row_load(own, a.q + (batch0 + row) * a.q_stride + head * width, width, lane, is_there);
    for (size_t key0 = 0; key0 <= last; key0 += KEYS) {
        const size_t at = batch0 * a.kv_stride + kv_head * width;
        float        s, tile_most, shrink;

        __syncthreads();
        rows_load(k_tile, a.k + at, a.kv_stride, key0, length, width);
        rows_load(v_tile, a.v + at, a.kv_stride, key0, length, width);
        __syncthreads();
        if (key0 > row) { /* no lane of the warp sees these keys */
            continue;
        }
        s         = key0 + lane <= row ? dot(own, k_tile + lane * (width + 1), width) * a.scale
                                       : -INFINITY;
        tile_most = fmaxf(most, warp_max(s));
        shrink    = expf(most - tile_most);
        s         = expf(s - tile_most);
        sum       = sum * shrink + warp_sum(s);
        most      = tile_most;
        p[lane]   = s;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            y[j] *= shrink;
            for (int key = 0; key < KEYS && lane + 32 * j < width; key++) {
                y[j] += p[key] * v_tile[key * (width + 1) + lane + 32 * j];
            }
        }
        __syncwarp();
    }
    if (!is_there) {
        return;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        if (lane + 32 * j < width) {
            float_put(&a.y[((batch0 + row) * a.heads + head) * width + lane + 32 * j], y[j] / sum);
        }
    }
    if (lane == 0) {
        a.log_sums[(blockIdx.z * (size_t)a.heads + head) * length + row] = most + logf(sum);
    }
}

/* Computes dQ, and for each row delta = sum of dout * out, which plain_back_kv reads. Shared
 * memory: rows of q and of dout, [WARPS][width] each, two tiles, scores. */
template <typename T> __global__ void plain_back_q(attention_typed<T> a)
{
    LLM_SHARED(shared);
    const size_t length = (size_t)a.length;
    int    lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, width = a.width;
    int    head = (int)blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    size_t first = (size_t)blockIdx.x * WARPS, row = first + warp, batch0 = blockIdx.z * length;
    bool   is_there = row < length;
    float *q = (float *)shared + warp * width, *dout = (float *)shared + (WARPS + warp) * width;
    float *k_tile = (float *)shared + 2 * WARPS * width, *v_tile = k_tile + KEYS * (width + 1);
    float *ds     = v_tile + KEYS * (width + 1) + warp * KEYS;
    size_t log_at = (blockIdx.z * (size_t)a.heads + head) * length + row;
    size_t out_at = ((batch0 + row) * a.heads + head) * width;
    float  log_sum = is_there ? a.log_sums[log_at] : 0.0f, delta = 0.0f, dq[COLUMNS] = {0.0f};
    size_t last = first + WARPS - 1 < length ? first + WARPS - 1 : length - 1;

    row_load(q, a.q + (batch0 + row) * a.q_stride + head * width, width, lane, is_there);
    row_load(dout, a.dout + out_at, width, lane, is_there);
    for (int c = lane; c < width; c += 32) {
        delta += is_there ? float_get(a.out[out_at + c]) * float_get(a.dout[out_at + c]) : 0.0f;
    }
    delta = warp_sum(delta);
    if (is_there && lane == 0) {
        a.deltas[log_at] = delta;
    }
    for (size_t key0 = 0; key0 <= last; key0 += KEYS) {
        const size_t at = batch0 * a.kv_stride + kv_head * width;
        float        d  = 0.0f;

        __syncthreads();
        rows_load(k_tile, a.k + at, a.kv_stride, key0, length, width);
        rows_load(v_tile, a.v + at, a.kv_stride, key0, length, width);
        __syncthreads();
        if (key0 > row) {
            continue;
        }
        if (key0 + lane <= row && is_there) {
            float s = dot(q, k_tile + lane * (width + 1), width) * a.scale;

            d = expf(s - log_sum) * (dot(dout, v_tile + lane * (width + 1), width) - delta);
        }
        ds[lane] = d * a.scale;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            for (int key = 0; key < KEYS && lane + 32 * j < width; key++) {
                dq[j] += ds[key] * k_tile[key * (width + 1) + lane + 32 * j];
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        if (is_there && lane + 32 * j < width) {
            float_put(&a.dq[(batch0 + row) * a.q_stride + head * width + lane + 32 * j], dq[j]);
        }
    }
}

/* Computes dK and dV. Shared memory: rows of k and of v, [WARPS][width] each, tiles of q and dout,
 * p and ds [WARPS][KEYS] each. */
template <typename T> __global__ void plain_back_kv(attention_typed<T> a)
{
    LLM_SHARED(shared);
    const size_t length = (size_t)a.length;
    int    lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, width = a.width;
    int    kv_head = (int)blockIdx.y, group = a.heads / a.kv_heads;
    size_t first = (size_t)blockIdx.x * WARPS, row = first + warp, batch0 = blockIdx.z * length;
    bool   is_there = row < length;
    float *k = (float *)shared + warp * width, *v = (float *)shared + (WARPS + warp) * width;
    float *q_tile = (float *)shared + 2 * WARPS * width, *do_tile = q_tile + KEYS * (width + 1);
    float *p  = do_tile + KEYS * (width + 1) + warp * 2 * KEYS, *ds = p + KEYS;
    float  dk[COLUMNS] = {0.0f}, dv[COLUMNS] = {0.0f};
    size_t kv_at = (batch0 + row) * a.kv_stride + kv_head * width;

    row_load(k, a.k + kv_at, width, lane, is_there);
    row_load(v, a.v + kv_at, width, lane, is_there);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        size_t log_at = (blockIdx.z * (size_t)a.heads + head) * length;

        for (size_t q0 = first / KEYS * KEYS; q0 < length; q0 += KEYS) {
            size_t query = q0 + lane;
            float  score = 0.0f, d = 0.0f;

            __syncthreads();
            rows_load(q_tile, a.q + batch0 * a.q_stride + head * width, a.q_stride, q0, length,
                      width);
            rows_load(do_tile, a.dout + (batch0 * a.heads + head) * width, (size_t)a.heads * width, q0,
                      length, width);
            __syncthreads();
            if (is_there && query >= row && query < length) {
                float s = dot(k, q_tile + lane * (width + 1), width) * a.scale;

                score = expf(s - a.log_sums[log_at + query]);
                d     = score *
                    (dot(v, do_tile + lane * (width + 1), width) - a.deltas[log_at + query]) *
                    a.scale;
            }
            p[lane]  = score;
            ds[lane] = d;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                for (int i = 0; i < KEYS && lane + 32 * j < width; i++) {
                    dv[j] += p[i] * do_tile[i * (width + 1) + lane + 32 * j];
                    dk[j] += ds[i] * q_tile[i * (width + 1) + lane + 32 * j];
                }
            }
            __syncwarp();
        }
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        if (is_there && lane + 32 * j < width) {
            float_put(&a.dk[kv_at + lane + 32 * j], dk[j]);
            float_put(&a.dv[kv_at + lane + 32 * j], dv[j]);
        }
    }
}

/* ----------------------------------------------------------- launchers -- */

static size_t shared_bytes(size_t width, size_t own_rows, size_t scores)
{
    return (own_rows * WARPS * width + 2 * KEYS * (width + 1) + scores * WARPS * KEYS) * sizeof(float);
}

template <typename T> static void shared_allow(void (*kernel)(attention_typed<T>), cudaError_t *error)
{
    if (*error == cudaSuccess) {
        *error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared_bytes(MOST_WIDTH, 2, 2));
    }
}

template <typename T> static void typed_allow(cudaError_t *error)
{
    shared_allow<T>(plain_forward<T>, error);
    shared_allow<T>(plain_back_q<T>, error);
    shared_allow<T>(plain_back_kv<T>, error);
}

cudaError_t attention_plain_prepare(void)
{
    cudaError_t error = cudaSuccess;

    typed_allow<float>(&error);
    typed_allow<bf16_t>(&error);
    typed_allow<f16_t>(&error);
    return error;
}

void attention_plain_queue(const attention_launch *args, cudaStream_t stream)
{
    const heads_args *s     = &args->shape;
    unsigned          tiles = blocks_of(s->length, WARPS), batch = (unsigned)s->batch;
    dim3              block(WARPS * 32), queries(tiles, (unsigned)s->heads, batch);
    dim3              keys(tiles, (unsigned)s->kv_heads, batch);

    by_type(args->dtype, [&](auto one) {
        typedef typename decltype(one)::type T;
        attention_typed<T>                      a(args);

        if (args->dout == NULL) {
            LLM_LAUNCH(plain_forward<T>, queries, block, shared_bytes(s->width, 1, 1), stream, a);
        } else {
            LLM_LAUNCH(plain_back_q<T>, queries, block, shared_bytes(s->width, 2, 1), stream, a);
            LLM_LAUNCH(plain_back_kv<T>, keys, block, shared_bytes(s->width, 2, 2), stream, a);
        }
    });
}
