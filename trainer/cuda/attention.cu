/* Causal attention on tensor cores, forward and backward, by the method of FlashAttention-2 (Dao
 * 2023): the scores are in registers, one tile at a time, and no length x length matrix exists
 * anywhere.
 *
 * Forward: a block owns 64 * TILES queries of one head. Each warp owns 16 * TILES of them, with
 * their running maximum and sum, and walks over tiles of 64 keys up to the diagonal. Backward
 * recomputes the probabilities from the logarithm of the sum, which forward stored. It does so
 * twice, so that every sum has one owner and needs no atomics: back_q owns queries and walks over
 * the keys for dQ; back_kv owns keys and walks over the queries of every head that reads them, in
 * the order of heads and queries, for dK and dV. This takes seven products of tiles, where a kernel
 * that adds dQ with atomics takes five. In return the bits are the same every time.
 *
 * In shared memory a row has D + 8 elements, so that the eight rows of an 8 x 8 matrix are in
 * different banks. D is the width rounded up to 32, 64, 96 or 128. Columns past the width and rows
 * past the length are zeros. The kernels rely on rows of q, k, v and out that begin at multiples of
 * 16 bytes (widths and strides are multiples of 8). */
#include "attention.cuh"
#include "kernels.h"
#include "launch.h"
#include "tiles.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)
#define KEYS    64 /* rows of a tile of the side that is walked over */

/* How many sets of 16 rows a warp owns in each kernel: two if their sums fit in registers.
 * `stages`: how many tiles backward has in shared memory at a time. */
template <int D> struct tiles_of {
    static const int forward = D <= 64 ? 2 : 1, back_q = D <= 64 ? 2 : 1, back_kv = D <= 32 ? 2 : 1, stages = 2;
};

/* The same with less shared memory, for multiprocessors that have room for only one block of the
 * above. The bits do not change. Two blocks with up to 32 columns fit everywhere. Two blocks with
 * up to 96 columns fit 164 KiB with the tiles above, and do not fit 100 KiB even with these. */
template <int D> constexpr bool has_small = D == 64 || D > 96;

template <int D> struct small_tiles_of {
    static const int forward = 1, back_q = 1, back_kv = 1, stages = 1;
};

/* How many blocks a multiprocessor is to hold. This limits the registers of a thread. */
template <int D> struct blocks_of_width {
    static const int forward = 2, back_q = 2, back_kv = D <= 64 ? 3 : 2;
};

/* Starts copying rows [first, first + ROWS) of a matrix into shared memory. */
template <typename T, int D, int ROWS>
__device__ __forceinline__ void tile_start(T *to, const T *from, size_t stride, int first,
                                           int length, int width)
{
    for (int i = (int)threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        int  r = i / (D / 8), c = i % (D / 8) * 8;
        bool is_there = first + r < length && c < width;

        copy_start(to + r * (D + 8) + c, is_there ? from + (size_t)(first + r) * stride + c : from, is_there);
    }
}

/* Waits for a tile of keys and values while the next one is copied. If there is room for one tile
 * only, it starts the copy first.
 */
template <typename T, int D, int STAGES>
__device__ __forceinline__ void keys_step(const attention_typed<T> &a, T *k_tiles, T *v_tiles, const T *k,
                                          const T *v, int tile, int tiles)
{
    const int next = tile + STAGES - 1, at = next % STAGES * KEYS * (D + 8);

    if (next > 0 && next < tiles) {
        tile_start<T, D, KEYS>(k_tiles + at, k, a.kv_stride, next * KEYS, a.length, a.width);
        tile_start<T, D, KEYS>(v_tiles + at, v, a.kv_stride, next * KEYS, a.length, a.width);
        copies_commit();
        copies_wait<STAGES - 1>();
    } else {
        copies_wait<0>();
    }
    __syncthreads();
}

/* Computes the scores of a tile's rows [row, row + 16) against the warp's own rows, and the
 * gradients of their probabilities: s = own . tile', dp = down . dtile'. */
template <typename T, int D, int TILES>
__device__ __forceinline__ void scores_make(float (&s)[TILES][2][4], float (&dp)[TILES][2][4],
                                            const uint32_t (&own)[TILES][D / 16][4],
                                            const uint32_t (&down)[TILES][D / 16][4], const T *tile,
                                            const T *dtile, int row)
{
    zero(s);
    zero(dp);
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t b[4], c[4];

        matrices_load(b, right_at(tile, D + 8, row, d * 16));
        matrices_load(c, right_at(dtile, D + 8, row, d * 16));
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            tile_multiply<T>(s[m][0], own[m][d], b[0], b[1]);
            tile_multiply<T>(s[m][1], own[m][d], b[2], b[3]);
            tile_multiply<T>(dp[m][0], down[m][d], c[0], c[1]);
            tile_multiply<T>(dp[m][1], down[m][d], c[2], c[3]);
        }
    }
}

/* sum += left . tile[row, row + 16) */
template <typename T, int D, int TILES>
__device__ __forceinline__ void rows_add(float (&sum)[TILES][D / 8][4], const uint32_t (&left)[TILES][4],
                                         const T *tile, int row)
{
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        uint32_t b[4];

        matrices_load_flipped(b, right_flipped_at(tile, D + 8, row, n * 16));
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            tile_multiply<T>(sum[m][2 * n], left[m], b[0], b[1]);
            tile_multiply<T>(sum[m][2 * n + 1], left[m], b[2], b[3]);
        }
    }
}

/* -------------------------------------------------------------- forward -- */

template <typename T, int D, int TILES>
__global__ void __launch_bounds__(THREADS, (blocks_of_width<D>::forward)) flash_forward(const attention_typed<T> a)
{
    constexpr int ROWS = 16 * TILES, QUERIES = WARPS * ROWS, LD = D + 8;
    LLM_SHARED(shared);
    T     *q_tile = (T *)shared, *k_tiles = q_tile + QUERIES * LD, *v_tiles = k_tiles + 2 * KEYS * LD;
    int    warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    int    head = (int)blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    /* the last queries see the most keys and come first, so that the short ones fill the gaps at
     * the end */
    int      first  = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, own = first + warp * ROWS;
    int      seen   = first + QUERIES < a.length ? first + QUERIES : a.length;
    int      tiles  = (seen + KEYS - 1) / KEYS;
    size_t   batch0 = (size_t)blockIdx.z * a.length;
    const T *k      = a.k + batch0 * a.kv_stride + kv_head * a.width;
    const T *v      = a.v + batch0 * a.kv_stride + kv_head * a.width;
    float    factor = a.scale * LOG2_E; /* scores are stored as exponents of 2 */
    uint32_t q[TILES][D / 16][4];
    float    y[TILES][D / 8][4], most[TILES][2], sum[TILES][2];

    tile_start<T, D, QUERIES>(q_tile, a.q + batch0 * a.q_stride + head * a.width, a.q_stride, first,
                              a.length, a.width);
    tile_start<T, D, KEYS>(k_tiles, k, a.kv_stride, 0, a.length, a.width);
    tile_start<T, D, KEYS>(v_tiles, v, a.kv_stride, 0, a.length, a.width);
    copies_commit();
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        most[m][0] = most[m][1] = -INFINITY;
        sum[m][0] = sum[m][1] = 0.0f;
    }
    zero(y);

    for (int tile = 0; tile < tiles; tile++) {
        const T *k_tile = k_tiles + tile % 2 * KEYS * LD, *v_tile = v_tiles + tile % 2 * KEYS * LD;
        int      key0   = tile * KEYS;
        float    s[TILES][KEYS / 8][4];

        keys_step<T, D, 2>(a, k_tiles, v_tiles, k, v, tile, tiles);
        if (tile == 0) {
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    matrices_load(q[m][d], left_at(q_tile, LD, warp * ROWS + m * 16, d * 16));
                }
            }
        }
        if (key0 < own + ROWS) { /* else no query of the warp sees these keys */
            zero(s);
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
#pragma unroll
                for (int n = 0; n < KEYS / 16; n++) {
                    uint32_t b[4];

                    matrices_load(b, right_at(k_tile, LD, n * 16, d * 16));
#pragma unroll
                    for (int m = 0; m < TILES; m++) {
                        tile_multiply<T>(s[m][2 * n], q[m][d], b[0], b[1]);
                        tile_multiply<T>(s[m][2 * n + 1], q[m][d], b[2], b[3]);
                    }
                }
            }
            if (key0 + KEYS > own + 1) { /* the diagonal crosses this tile */
#pragma unroll
                for (int m = 0; m < TILES; m++) {
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            int key = key0 + n * 8 + 2 * t + i % 2;
                            int row = own + m * 16 + g + i / 2 * 8;

                            s[m][n][i] = key > row ? -INFINITY : s[m][n][i];
                        }
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float tile_most = most[m][r], tile_sum = 0.0f, shrink, offset;

#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++) {
                        tile_most = fmaxf(tile_most, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
                    }
                    tile_most = quad_max(tile_most); /* never -inf, since all queries see key 0 */
                    offset    = tile_most * factor;
                    shrink    = exp2_of(most[m][r] * factor - offset);
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++) {
                        s[m][n][2 * r]     = exp2_of(s[m][n][2 * r] * factor - offset);
                        s[m][n][2 * r + 1] = exp2_of(s[m][n][2 * r + 1] * factor - offset);
                        tile_sum += s[m][n][2 * r] + s[m][n][2 * r + 1];
                    }
                    most[m][r] = tile_most;
                    sum[m][r]  = sum[m][r] * shrink + tile_sum;
#pragma unroll
                    for (int n = 0; n < D / 8; n++) {
                        y[m][n][2 * r] *= shrink;
                        y[m][n][2 * r + 1] *= shrink;
                    }
                }
            }
#pragma unroll
            for (int key = 0; key < KEYS / 16; key++) {
                uint32_t p[TILES][4];

#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    left_make<T>(p[m], s[m][2 * key], s[m][2 * key + 1]);
                }
                rows_add<T, D, TILES>(y, p, v_tile, key * 16);
            }
        }
        __syncthreads(); /* the next copies overwrite this tile */
    }

    /* The results go to memory in whole vectors, by way of the warp's own rows of q_tile, which no
     * other warp reads. */
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        float  low = quad_sum(sum[m][0]), high = quad_sum(sum[m][1]);
        int    row = own + m * 16 + g;
        size_t at  = (blockIdx.z * (size_t)a.heads + head) * a.length + row;

        tile_put<T, D>(q_tile + (warp * ROWS + m * 16) * LD, y[m], 1.0f / low, 1.0f / high);
        if (t == 0 && row < a.length) {
            a.log_sums[at] = most[m][0] * a.scale + logf(low);
        }
        if (t == 0 && row + 8 < a.length) {
            a.log_sums[at + 8] = most[m][1] * a.scale + logf(high);
        }
    }
    __syncwarp();
    rows_store<T, D, ROWS>(q_tile + warp * ROWS * LD,
                           a.y + batch0 * a.heads * a.width + head * a.width,
                           (size_t)a.heads * a.width, own, a.length, a.width);
}

/* ------------------------------------------------------------- backward -- */

/* Computes dQ, and for each row delta = sum of dout * out, which back_kv reads. */
template <typename T, int D, int TILES, int STAGES>
__global__ void __launch_bounds__(THREADS, (blocks_of_width<D>::back_q)) flash_back_q(const attention_typed<T> a)
{
    constexpr int ROWS = 16 * TILES, QUERIES = WARPS * ROWS, LD = D + 8;
    constexpr int LANES = D <= 32 ? 4 : D <= 64 ? 8 : 16; /* lanes that sum the delta of one row */
    LLM_SHARED(shared);
    T     *q_tile = (T *)shared, *do_tile = q_tile + QUERIES * LD, *k_tiles = do_tile + QUERIES * LD;
    T     *v_tiles = k_tiles + STAGES * KEYS * LD;
    float *row_deltas = (float *)(v_tiles + STAGES * KEYS * LD);
    int    warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int    head = (int)blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    int    first   = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, own = first + warp * ROWS;
    int    seen    = first + QUERIES < a.length ? first + QUERIES : a.length;
    int    tiles   = (seen + KEYS - 1) / KEYS;
    size_t batch0  = (size_t)blockIdx.z * a.length;
    size_t log0    = (blockIdx.z * (size_t)a.heads + head) * a.length;
    size_t out0    = (batch0 * a.heads + head) * a.width, out_stride = (size_t)a.heads * a.width;
    const T *k      = a.k + batch0 * a.kv_stride + kv_head * a.width;
    const T *v      = a.v + batch0 * a.kv_stride + kv_head * a.width;
    float    factor = a.scale * LOG2_E;
    uint32_t q[TILES][D / 16][4], dout[TILES][D / 16][4];
    float    dq[TILES][D / 8][4], log_sum[TILES][2], delta[TILES][2];

    tile_start<T, D, QUERIES>(q_tile, a.q + batch0 * a.q_stride + head * a.width, a.q_stride, first,
                              a.length, a.width);
    tile_start<T, D, QUERIES>(do_tile, a.dout + out0, out_stride, first, a.length, a.width);
    tile_start<T, D, KEYS>(k_tiles, k, a.kv_stride, 0, a.length, a.width);
    tile_start<T, D, KEYS>(v_tiles, v, a.kv_stride, 0, a.length, a.width);
    copies_commit();
    /* delta is computed from memory: `out` is read only here, and dout comes a second time from the
     * cache */
    for (int r = (int)threadIdx.x / LANES; r < QUERIES; r += THREADS / LANES) {
        int    c = (int)threadIdx.x % LANES * 8;
        float  x[8], d[8], dot = 0.0f;
        int    row = first + r;

        if (row < a.length && c < a.width) {
            vector_of<T, 8>::load(a.out + out0 + (size_t)row * out_stride + c, x);
            vector_of<T, 8>::load(a.dout + out0 + (size_t)row * out_stride + c, d);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                dot += x[i] * d[i];
            }
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) {
            dot += __shfl_xor_sync(WARP_ALL, dot, step);
        }
        if (threadIdx.x % LANES == 0) {
            row_deltas[r] = dot;
            if (row < a.length) {
                a.deltas[log0 + row] = dot;
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = own + m * 16 + g + r * 8;

            /* past the end, 2^(0 - inf) = 0 */
            log_sum[m][r] = row < a.length ? a.log_sums[log0 + row] * LOG2_E : INFINITY;
            delta[m][r]   = row_deltas[warp * ROWS + m * 16 + g + r * 8];
        }
    }
    zero(dq);

    for (int tile = 0; tile < tiles; tile++) {
        const int at = tile % STAGES * KEYS * LD;
        const T  *k_tile = k_tiles + at, *v_tile = v_tiles + at;
        int       key0   = tile * KEYS;

        keys_step<T, D, STAGES>(a, k_tiles, v_tiles, k, v, tile, tiles);
        if (tile == 0) {
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    matrices_load(q[m][d], left_at(q_tile, LD, warp * ROWS + m * 16, d * 16));
                    matrices_load(dout[m][d], left_at(do_tile, LD, warp * ROWS + m * 16, d * 16));
                }
            }
        }
        /* The loop takes sixteen keys at a time: their scores need few registers and are used at
         * once. */
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            int      key16 = key0 + step * 16;
            float    s[TILES][2][4], dp[TILES][2][4];
            uint32_t ds[TILES][4];

            if (key16 >= own + ROWS) {
                break; /* the queries do not see the keys that follow either */
            }
            scores_make<T, D, TILES>(s, dp, q, dout, k_tile, v_tile, step * 16);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    int   n = i / 4, r = i % 4 / 2;
                    float p = exp2_of(s[m][n][i % 4] * factor - log_sum[m][r]);

                    s[m][n][i % 4] = p * (dp[m][n][i % 4] - delta[m][r]);
                }
                if (key16 + 15 > own + m * 16) { /* the diagonal crosses this tile */
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        int key = key16 + i / 4 * 8 + 2 * t + i % 2;
                        int row = own + m * 16 + g + i % 4 / 2 * 8;

                        s[m][i / 4][i % 4] = key > row ? 0.0f : s[m][i / 4][i % 4];
                    }
                }
                left_make<T>(ds[m], s[m][0], s[m][1]);
            }
            rows_add<T, D, TILES>(dq, ds, k_tile, step * 16);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        tile_put<T, D>(q_tile + (warp * ROWS + m * 16) * LD, dq[m], a.scale, a.scale);
    }
    __syncwarp();
    rows_store<T, D, ROWS>(q_tile + warp * ROWS * LD, a.dq + batch0 * a.q_stride + head * a.width,
                           a.q_stride, own, a.length, a.width);
}

/* Computes dK and dV. The scores are transposed: keys are rows and queries are columns. */
template <typename T, int D, int TILES, int STAGES>
__global__ void __launch_bounds__(THREADS, (blocks_of_width<D>::back_kv)) flash_back_kv(const attention_typed<T> a)
{
    constexpr int ROWS = 16 * TILES, OWN_KEYS = WARPS * ROWS, LD = D + 8, QUERIES = 64;
    LLM_SHARED(shared);
    T     *k_tile = (T *)shared, *v_tile = k_tile + OWN_KEYS * LD, *q_tiles = v_tile + OWN_KEYS * LD;
    T     *do_tiles = q_tiles + STAGES * QUERIES * LD;
    /* the logarithms of one tile's queries, then their deltas */
    float *sums     = (float *)(do_tiles + STAGES * QUERIES * LD);
    int    warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    int    kv_head = (int)blockIdx.y, group = a.heads / a.kv_heads;
    int    first = (int)blockIdx.x * OWN_KEYS, own = first + warp * ROWS;
    size_t batch0 = (size_t)blockIdx.z * a.length, out_stride = (size_t)a.heads * a.width;
    size_t kv0    = batch0 * a.kv_stride + kv_head * a.width;
    int    tile0 = first / QUERIES, tiles = (a.length + QUERIES - 1) / QUERIES - tile0;
    float  factor = a.scale * LOG2_E;
    uint32_t k[TILES][D / 16][4], v[TILES][D / 16][4];
    float    dk[TILES][D / 8][4], dv[TILES][D / 8][4];

    /* Starts the copy of tile i; tiles are counted through all heads of the group. */
    auto queries_start = [&](int i) {
        int head = kv_head * group + i / tiles, slot = i % STAGES, row0 = (tile0 + i % tiles) * QUERIES;

        tile_start<T, D, QUERIES>(q_tiles + slot * QUERIES * LD,
                                  a.q + batch0 * a.q_stride + head * a.width, a.q_stride, row0, a.length,
                                  a.width);
        tile_start<T, D, QUERIES>(do_tiles + slot * QUERIES * LD,
                                  a.dout + (batch0 * a.heads + head) * a.width, out_stride, row0,
                                  a.length, a.width);
    };
    /* Reads the logarithm or delta of that tile that this thread fetches. */
    auto sum_get = [&](int i) {
        int    head = kv_head * group + i / tiles;
        int    row  = (tile0 + i % tiles) * QUERIES + (int)threadIdx.x % QUERIES;
        size_t at   = (blockIdx.z * (size_t)a.heads + head) * a.length + row;

        if (threadIdx.x < QUERIES) {
            return row < a.length ? a.log_sums[at] : INFINITY; /* past the end, 2^(0 - inf) = 0 */
        }
        return row < a.length ? a.deltas[at] : 0.0f;
    };
    float sum;

    static_assert(THREADS == 2 * QUERIES, "a thread a logarithm or a delta");
    tile_start<T, D, OWN_KEYS>(k_tile, a.k + kv0, a.kv_stride, first, a.length, a.width);
    tile_start<T, D, OWN_KEYS>(v_tile, a.v + kv0, a.kv_stride, first, a.length, a.width);
    queries_start(0);
    copies_commit();
    sum = sum_get(0);
    zero(dk);
    zero(dv);

    for (int tile = 0; tile < tiles * group; tile++) {
        int          slot = tile % STAGES, next = tile + STAGES - 1;
        const T     *q_tile = q_tiles + slot * QUERIES * LD, *do_tile = do_tiles + slot * QUERIES * LD;
        const float *log2s = sums, *drops = sums + QUERIES;
        int          row0 = (tile0 + tile % tiles) * QUERIES;

        /* It was read during the products before this one. The threads that use those have passed
         * the barrier at their end. */
        sums[threadIdx.x] = threadIdx.x < QUERIES ? sum * LOG2_E : sum;
        if (next > 0 && next < tiles * group) {
            queries_start(next);
            copies_commit();
            copies_wait<STAGES - 1>();
        } else {
            copies_wait<0>();
        }
        if (tile + 1 < tiles * group) {
            sum = sum_get(tile + 1);
        }
        __syncthreads();
        if (tile == 0) {
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    matrices_load(k[m][d], left_at(k_tile, LD, warp * ROWS + m * 16, d * 16));
                    matrices_load(v[m][d], left_at(v_tile, LD, warp * ROWS + m * 16, d * 16));
                }
            }
        }
#pragma unroll
        for (int step = 0; step < QUERIES / 16; step++) {
            int      row16 = row0 + step * 16;
            float    s[TILES][2][4], dp[TILES][2][4];
            uint32_t p[TILES][4], ds[TILES][4];
            bool     is_diagonal = own + ROWS - 1 > row16;

            if (row16 + 15 < own) {
                continue; /* none of these queries sees a key of this warp */
            }
            scores_make<T, D, TILES>(s, dp, k, v, q_tile, do_tile, step * 16);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                int   column = step * 16 + n * 8 + 2 * t;
                float log2_0 = log2s[column], log2_1 = log2s[column + 1];
                float drop_0 = drops[column], drop_1 = drops[column + 1];

#pragma unroll
                for (int m = 0; m < TILES; m++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float e = exp2_of(s[m][n][i] * factor - (i % 2 ? log2_1 : log2_0));

                        if (is_diagonal) {
                            int query = row16 + n * 8 + 2 * t + i % 2;
                            int key   = own + m * 16 + g + i / 2 * 8;

                            e = key > query ? 0.0f : e;
                        }
                        s[m][n][i]  = e;
                        dp[m][n][i] = e * (dp[m][n][i] - (i % 2 ? drop_1 : drop_0));
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                left_make<T>(p[m], s[m][0], s[m][1]);
                left_make<T>(ds[m], dp[m][0], dp[m][1]);
            }
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t b[4], c[4];

                matrices_load_flipped(b, right_flipped_at(do_tile, LD, step * 16, n * 16));
                matrices_load_flipped(c, right_flipped_at(q_tile, LD, step * 16, n * 16));
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    tile_multiply<T>(dv[m][2 * n], p[m], b[0], b[1]);
                    tile_multiply<T>(dv[m][2 * n + 1], p[m], b[2], b[3]);
                    tile_multiply<T>(dk[m][2 * n], ds[m], c[0], c[1]);
                    tile_multiply<T>(dk[m][2 * n + 1], ds[m], c[2], c[3]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        tile_put<T, D>(k_tile + (warp * ROWS + m * 16) * LD, dk[m], a.scale, a.scale);
        tile_put<T, D>(v_tile + (warp * ROWS + m * 16) * LD, dv[m], 1.0f, 1.0f);
    }
    __syncwarp();
    rows_store<T, D, ROWS>(k_tile + warp * ROWS * LD, a.dk + kv0, a.kv_stride, own, a.length, a.width);
    rows_store<T, D, ROWS>(v_tile + warp * ROWS * LD, a.dv + kv0, a.kv_stride, own, a.length, a.width);
}

/* ----------------------------------------------------------- launchers -- */

template <typename T, int D> static constexpr size_t forward_bytes(int tiles)
{
    return (size_t)(WARPS * 16 * tiles + 4 * KEYS) * (D + 8) * sizeof(T);
}

template <typename T, int D> static constexpr size_t back_q_bytes(int tiles, int stages)
{
    const size_t queries = (size_t)WARPS * 16 * tiles;

    return (2 * queries + 2 * (size_t)stages * KEYS) * (D + 8) * sizeof(T) + queries * sizeof(float);
}

template <typename T, int D> static constexpr size_t back_kv_bytes(int tiles, int stages)
{
    const size_t keys = (size_t)WARPS * 16 * tiles;

    return (2 * keys + 2 * (size_t)stages * 64) * (D + 8) * sizeof(T) + THREADS * sizeof(float);
}

/* A kernel and what its launch needs. */
template <typename T> struct flash_kernel {
    void (*run)(attention_typed<T>);
    size_t rows; /* rows of a block */
    size_t shared_bytes;
};

/* The kernels for heads of D columns, for each kind of tiles. */
template <typename T> struct flash_kernels {
    flash_kernel<T> forward, back_q, back_kv;
};

template <typename T, int D, typename TILES> static flash_kernels<T> kernels_of(void)
{
    return {{flash_forward<T, D, TILES::forward>, WARPS * 16 * TILES::forward, forward_bytes<T, D>(TILES::forward)},
            {flash_back_q<T, D, TILES::back_q, TILES::stages>, WARPS * 16 * TILES::back_q,
             back_q_bytes<T, D>(TILES::back_q, TILES::stages)},
            {flash_back_kv<T, D, TILES::back_kv, TILES::stages>, WARPS * 16 * TILES::back_kv,
             back_kv_bytes<T, D>(TILES::back_kv, TILES::stages)}};
}

template <typename T> static bool is_twice_there(const flash_kernel<T> &kernel, const shared_memory &memory)
{
    return kernel.shared_bytes <= memory.block_bytes &&
           2 * (kernel.shared_bytes + RESERVED_BYTES) <= memory.processor_bytes;
}

/* Chooses the large kernel, unless only the small one fits, or the small one fits twice and the
 * large one does not. */
template <typename T>
static flash_kernel<T> by_memory(const flash_kernel<T> &large, const flash_kernel<T> &small, const shared_memory &memory)
{
    bool is_better = is_twice_there(small, memory) && !is_twice_there(large, memory);

    return is_better || large.shared_bytes > memory.block_bytes ? small : large;
}

/* Chooses the kernels for heads of up to D columns on a device with this memory. */
template <typename T, int D> static flash_kernels<T> kernels_for(const shared_memory &memory)
{
    flash_kernels<T> large = kernels_of<T, D, tiles_of<D>>();

    if constexpr (has_small<D>) {
        flash_kernels<T> small = kernels_of<T, D, small_tiles_of<D>>();

        return {by_memory(large.forward, small.forward, memory), by_memory(large.back_q, small.back_q, memory),
                by_memory(large.back_kv, small.back_kv, memory)};
    } else {
        return large;
    }
}

/* Chooses the kernels for heads of this width. */
template <typename T> static flash_kernels<T> by_width(size_t width, const shared_memory &memory)
{
    switch ((width + 31) / 32) {
    case 1:
        return kernels_for<T, 32>(memory);
    case 2:
        return kernels_for<T, 64>(memory);
    case 3:
        return kernels_for<T, 96>(memory);
    default:
        return kernels_for<T, 128>(memory);
    }
}

template <typename T>
static void flash_queue(const flash_kernel<T> &kernel, const attention_launch *a, size_t heads,
                        cudaStream_t stream)
{
    LLM_LAUNCH(kernel.run,
               dim3(blocks_of(a->shape.length, kernel.rows), (unsigned)heads, (unsigned)a->shape.batch),
               dim3(THREADS), kernel.shared_bytes, stream, attention_typed<T>(a));
}

template <typename T> static void typed_queue(const attention_launch *a, cudaStream_t stream)
{
    const flash_kernels<T> kernels = by_width<T>(a->shape.width, a->memory);

    if (a->dout == NULL) {
        flash_queue(kernels.forward, a, a->shape.heads, stream);
    } else {
        flash_queue(kernels.back_q, a, a->shape.heads, stream);
        flash_queue(kernels.back_kv, a, a->shape.kv_heads, stream);
    }
}

/* Copies are of sixteen bytes, which are eight elements. So widths and strides must be multiples of
 * eight. */
static bool is_for_tensor_cores(const attention_launch *a)
{
    const heads_args *s = &a->shape;

    return a->dtype != SHERD_F32 && s->width <= 128 && s->width % 8 == 0 && s->q_stride % 8 == 0 &&
           s->kv_stride % 8 == 0;
}

void attention_queue(const attention_launch *args, cudaStream_t stream)
{
    if (!is_for_tensor_cores(args)) {
        attention_plain_queue(args, stream);
    } else if (args->dtype == SHERD_BF16) {
        typed_queue<bf16_t>(args, stream);
    } else {
        typed_queue<f16_t>(args, stream);
    }
}

template <typename T> static void flash_allow(const flash_kernel<T> &kernel, cudaError_t *error)
{
    if (*error == cudaSuccess) {
        *error = cudaFuncSetAttribute((const void *)kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)kernel.shared_bytes);
    }
}

template <typename T> static void typed_allow(const shared_memory &memory, cudaError_t *error)
{
    for (size_t width = 32; width <= 128; width += 32) {
        const flash_kernels<T> kernels = by_width<T>(width, memory);

        flash_allow(kernels.forward, error);
        flash_allow(kernels.back_q, error);
        flash_allow(kernels.back_kv, error);
    }
}

cudaError_t attention_prepare(shared_memory memory)
{
    cudaError_t error = attention_plain_prepare();

    typed_allow<bf16_t>(memory, &error);
    typed_allow<f16_t>(memory, &error);
    return error;
}
