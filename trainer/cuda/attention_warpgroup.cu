/* Causal attention by warpgroups' products (warpgroup.cuh), for heads of 64 or 128 elements of 16
 * bits on compute capability 9.0. The method is that of attention.cu: probabilities are recomputed
 * from the logarithm of the sum, one kernel owns queries and one owns keys, and every sum has one
 * owner. The differences are how the tiles are copied and when the products are waited for (compare
 * FlashAttention-3, Shah et al. 2024).
 *
 * A block has warpgroups that compute and one that copies, and that gives registers to the others.
 * Each of those owns 64 rows; their right sides come by tiles of 64 rows, which all use: the copies
 * are up to STAGES steps ahead. Barriers in shared memory say which steps are there and which are
 * used up, so that the warpgroups need not be at the same step: while one computes exponentials,
 * the tensor cores have the products of another one. On an H100 more warps helped, and products
 * issued ahead did not.
 *
 * Each multiprocessor has one block, which takes one work item after another. The rows of block i
 * and those of block i from the end have, with the triangle of causal attention, together the same
 * number of steps for every i; so these two are one pair of works. Which multiprocessor does a work
 * changes no sum. In forward for heads of 128 there are few works for a block, and they are sorted
 * (works_sorted). */
#include "attention.cuh"
#include "kernels.h"
#include "launch.h"
#include "tiles.cuh"
#include "warpgroup_block.cuh"

#define ROWS TILE_ROWS /* of a warpgroup, and keys or queries of a step */
#define SORTED_ROWS ((size_t)1 << 16) /* of 128 keys and as many values in 16 bits: 32 MiB, which stay in an H100's cache */
static_assert(ROWS == ATTENTION_CHUNK, "sums of columns are those of a warpgroup's rows");

/* With the member that only these kernels know. */
template <typename T> struct group_typed : attention_typed<T> {
    float *columns;

    explicit group_typed(const attention_launch *a) : attention_typed<T>(a), columns(a->columns)
    {
    }
};

/* As many stages as fit, and as many groups as their registers allow; D is the width of a head. */
template <typename T, int D>
using forward_memory = std::conditional_t<D == 64, block_memory<T, 1, 4, 1, 6>, block_memory<T, 2, 3, 1, 4, 1>>;
template <typename T, int D>
using back_q_memory = std::conditional_t<D == 64, block_memory<T, 1, 2, 3, 6>, block_memory<T, 2, 2, 2, 3, 1>>;
template <typename T, int D>
using back_kv_memory = std::conditional_t<D == 64, block_memory<T, 1, 2, 2, 7>, block_memory<T, 2, 2, 2, 3, 1>>;

/* Copies the keys and values that the queries of a work item need, step by step. */
template <typename M, typename T>
__device__ __forceinline__ void keys_start(copying<M> &c, const attention_typed<T> &a, const work &w)
{
    const size_t first = (size_t)w.sequence * a.length * a.kv_stride + w.head / (a.heads / a.kv_heads) * (M::TILES * TILE_COLUMNS);

    for (int key0 = 0; key0 < w.first + M::OWN && key0 < a.length; key0 += ROWS) {
        auto *tiles = c.m->steps[c.step_begin()];

        rows_start<ROWS, M::TILES>(tiles[0], a.k + first, a.kv_stride, key0, a.length);
        rows_start<ROWS, M::TILES>(tiles[1], a.v + first, a.kv_stride, key0, a.length);
        c.step_end();
    }
}

/* -------------------------------------------------------- computing warps -- */

/* Returns how many tiles the rows before `end` are, of the length. */
__device__ __forceinline__ int tiles_before(int end, int length)
{
    return ((end < length ? end : length) + TILE_ROWS - 1) / TILE_ROWS;
}

/* Issues c = left . right', as a separate group; both have rows of D elements. */
template <int D, typename T> __device__ __forceinline__ void scores_give(float (&c)[ROWS / 8][4], const T *left, const T *right)
{
    group_begin(c);
    group_multiply<T, false>(c, left, right, 0);
#pragma unroll
    for (int step = 1; step < D / 16; step++) {
        const int tile = step * 16 / TILE_COLUMNS * TILE_ELEMS;

        group_multiply<T, true>(c, left + tile, right + tile, step % (TILE_COLUMNS / 16));
    }
    group_commit();
}

/* Gives sum += a . right, as a group of its own. */
template <typename T, int N>
__device__ __forceinline__ void rows_give(float (&sum)[N][4], uint32_t (&a)[ROWS / 16][4], const T *right)
{
    left_settle(a);
    group_begin(sum);
#pragma unroll
    for (int step = 0; step < ROWS / 16; step++) {
        group_add<T>(sum, a[step], right, step);
    }
    group_commit();
}

/* Rounds a tile of 64 x 64 to the left side of a product. */
template <typename T> __device__ __forceinline__ void tile_round(uint32_t (&a)[ROWS / 16][4], const float (&c)[ROWS / 8][4])
{
#pragma unroll
    for (int d = 0; d < ROWS / 16; d++) {
        left_make<T>(a[d], c[2 * d], c[2 * d + 1]);
    }
}

template <int N> __device__ __forceinline__ void tile_zero(float (&x)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0.0f;
    }
}

/* Exchanges with the lane that is WITH lanes away: the lower lane keeps `low` and has the other's
 * in `high`, the upper one keeps `high` and has the other's in `low`. */
template <int WITH> __device__ __forceinline__ void words_exchange(uint32_t *low, uint32_t *high)
{
    bool     is_high = (threadIdx.x & WITH) != 0;
    uint32_t given = is_high ? *low : *high, had = __shfl_xor_sync(WARP_ALL, given, WITH);

    *low  = is_high ? had : *low;
    *high = is_high ? *high : had;
}

/* Stores row `row` of a thread's sums, times `factor`: r is 0 for row g and 1 for row g + 8. The
 * four lanes of a row exchange their elements of 32 columns, so that each stores eight of them at
 * once. */
template <typename T, int N>
__device__ __forceinline__ void sums_leave(const float (&acc)[N][4], int r, float factor, T *to, size_t stride, int row, int length)
{
    int t = (int)threadIdx.x % 4;

#pragma unroll
    for (int n = 0; n < N; n += 4) {
        uint32_t x[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = pair_of<T>::join(acc[n + i][2 * r] * factor, acc[n + i][2 * r + 1] * factor);
        }
        words_exchange<1>(&x[0], &x[1]);
        words_exchange<1>(&x[2], &x[3]);
        words_exchange<2>(&x[0], &x[2]);
        words_exchange<2>(&x[1], &x[3]);
        if (row < length) {
            *(uint4 *)(to + (size_t)row * stride + (n + t) * 8) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* Copies the warp's sums, times `factor` and `factor8`, to rows [first, ...) of a matrix: through
 * shared memory where the block has room for rows that leave. */
template <typename M, typename T, int N>
__device__ __forceinline__ void sums_store(M *m, int group, const float (&acc)[N][4], float factor, float factor8, T *to, size_t stride,
                                           int first, int length)
{
    if constexpr (M::TILES == 1) {
        T *leaving = m->out.leaving[group][(int)threadIdx.x % GROUP_THREADS / 32 * 16];

        tile_put<T, N * 8>(leaving, acc, factor, factor8);
        __syncwarp();
        rows_store<T, N * 8, 16>(leaving, to, stride, first, length, N * 8);
        __syncwarp(); /* the next sums overwrite the rows */
    } else {
        int row = first + (int)threadIdx.x % 32 / 4;

        sums_leave(acc, 0, factor, to, stride, row, length);
        sums_leave(acc, 1, factor8, to, stride, row + 8, length);
    }
}

/* Exchanges with the lane that is WITH lanes away, and adds: of 2 HALF pairs each lane keeps the
 * sums of those that its bit says. */
template <int HALF, int WITH> __device__ __forceinline__ void pairs_fold(float (&x)[TILE_COLUMNS / 8][2])
{
    bool is_high = (threadIdx.x & WITH) != 0;

#pragma unroll
    for (int n = 0; n < HALF; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float given = is_high ? x[n][i] : x[n + HALF][i], kept = is_high ? x[n + HALF][i] : x[n][i];

            x[n][i] = kept + __shfl_xor_sync(WARP_ALL, given, WITH);
        }
    }
}

/* Stores the sums of the columns of the warp's rows, as they are after the store of the rows: times
 * `factor`, and rounded. */
template <typename T>
__device__ __forceinline__ void columns_give(float *columns, const float (&acc)[TILE_COLUMNS / 8][4], float factor)
{
    float x[TILE_COLUMNS / 8][2];

#pragma unroll
    for (int n = 0; n < TILE_COLUMNS / 8; n++) {
        float low, high, low8, high8;

        pair_of<T>::split(pair_of<T>::join(acc[n][0] * factor, acc[n][1] * factor), &low, &high);
        pair_of<T>::split(pair_of<T>::join(acc[n][2] * factor, acc[n][3] * factor), &low8, &high8);
        x[n][0] = low + low8;
        x[n][1] = high + high8;
    }
    pairs_fold<4, 16>(x);
    pairs_fold<2, 8>(x);
    pairs_fold<1, 4>(x);
    /* lane 4 n + t has columns 8 n + 2 t on */
    *(float2 *)(columns + (int)threadIdx.x % 32 * 2) = float2{x[0][0], x[0][1]};
}

/* The sums of columns that the warps of a group give for a work, of COUNT matrices. A warp stores
 * its share of the sums after it has those of the next work item. By then all warps have written
 * theirs, so none waits. */
template <typename M, int COUNT> struct summing {
    M     *m;
    int    group, apart; /* apart: elements from the sums of a matrix to those of the next one */
    int    turn = 0;     /* work items that were issued */
    float *to   = NULL;  /* destination of the last issued ones; NULL: they have been stored */

    /* Returns where this warp gives its sums of a matrix. The sums of the work item before have
     * been stored. */
    __device__ __forceinline__ float *room(int matrix) const
    {
        return m->out.columns[turn % 2][group][matrix][(int)threadIdx.x % GROUP_THREADS / 32];
    }

    __device__ __forceinline__ void given(float *next)
    {
        warp_arrive(&m->columns_there[group]);
        turn++;
        to = next;
    }

    __device__ __forceinline__ void store()
    {
        int lane = (int)threadIdx.x % 32, column = (int)threadIdx.x % GROUP_THREADS / 32 * 16 + lane;

        if (to == NULL) {
            return;
        }
        barrier_wait(&m->columns_there[group], turn - 1);
        if (lane < 16) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const float(*of)[TILE_COLUMNS] = m->out.columns[(turn - 1) % 2][group][i];

                to[i * apart + column] = of[0][column] + of[1][column] + of[2][column] + of[3][column];
            }
        }
        to = NULL;
    }
};

/* Returns where the sums of the columns of a head are, for the group whose rows begin with
 * `own`. */
template <typename T>
__device__ __forceinline__ float *columns_of(const group_typed<T> &a, const work &w, int own, int head)
{
    int chunks = (a.length + ROWS - 1) / ROWS;

    return a.columns + ((size_t)w.sequence * chunks + own / ROWS) * a.q_stride + head * TILE_COLUMNS;
}

/* ---------------------------------------------------------------- forward -- */

/* Calls what(work) for each work of this block. */
template <typename M, typename T, typename What>
__device__ __forceinline__ void forward_works(const attention_typed<T> &a, int batch, const What &what)
{
    if constexpr (M::TILES == 1) {
        works<M>(batch, a.heads, a.length, what);
    } else {
        works_sorted<M>(batch, a.heads, a.length, (size_t)batch * a.kv_heads * a.length <= SORTED_ROWS, what);
    }
}

template <typename T, int D>
__global__ void __launch_bounds__(forward_memory<T, D>::THREADS, 1) group_forward(const group_typed<T> a, int batch)
{
    typedef forward_memory<T, D> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread();

    if (group == memory::GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        forward_works<memory>(a, batch, [&](const work &w) {
            auto *own = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length;

            rows_start<memory::OWN, memory::TILES>(own[0][0], a.q + row0 * a.q_stride + w.head * D, a.q_stride, w.first, a.length);
            keys_start(c, a, w);
        });
        c.end();
        return;
    }

    registers_take<memory::REGISTERS>();
    int      warp = (int)threadIdx.x % GROUP_THREADS / 32;
    int      g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    computing<memory> steps{m};
    float    factor = a.scale * LOG2_E; /* scores are kept as exponents of 2 */
    uint32_t p[ROWS / 16][4];
    float    s[ROWS / 8][4], y[D / 8][4];

    forward_works<memory>(a, batch, [&](const work &w) {
        /* the first row of the group; `row` is the thread's first */
        int   own = w.first + group * ROWS;
        int   row = own + warp * 16 + g;
        int   seen = tiles_before(own + ROWS, a.length), tiles = tiles_before(w.first + memory::OWN, a.length);
        float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

        const T *q = m->own[w.turn % 2][0][group];

        barrier_wait(&m->own_there[w.turn % 2], w.turn / 2);
        tile_zero(s);
        tile_zero(y);
        for (int tile = 0; tile < seen; tile++) {
            int key0 = tile * ROWS;

            steps.wait();
            scores_give<D>(s, q, m->steps[steps.now][0]);
            group_wait<0>(s);
            group_wait<0>(y); /* of the step before, if there was one */
            if (tile > 0) {
                steps.give_back(steps.before);
            }
            if (key0 + ROWS > own) { /* the diagonal crosses this tile */
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        s[n][i] = key0 + n * 8 + 2 * t + i % 2 > row + i / 2 * 8 ? -INFINITY : s[n][i];
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float tile_most = most[r], tile_sum = 0.0f, shrink, offset;

#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
                    tile_most = fmaxf(tile_most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                }
                tile_most = quad_max(tile_most); /* never -inf, since all queries see key 0 */
                offset    = tile_most * factor;
                shrink    = exp2_of(most[r] * factor - offset);
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
                    s[n][2 * r]     = exp2_of(s[n][2 * r] * factor - offset);
                    s[n][2 * r + 1] = exp2_of(s[n][2 * r + 1] * factor - offset);
                    tile_sum += s[n][2 * r] + s[n][2 * r + 1];
                }
                most[r] = tile_most;
                sum[r]  = sum[r] * shrink + tile_sum;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    y[n][2 * r] *= shrink;
                    y[n][2 * r + 1] *= shrink;
                }
            }
            tile_round<T>(p, s);
            rows_give(y, p, m->steps[steps.now][1]);
        }
        group_wait<0>(y);
        warp_arrive(&m->own_used[w.turn % 2]);
        steps.give_back(steps.now); /* all queries see key 0 */
        steps.pass(tiles - seen);

        float  low = quad_sum(sum[0]), high = quad_sum(sum[1]);
        size_t at = ((size_t)w.sequence * a.heads + w.head) * a.length + row;

        if (t == 0 && row < a.length) {
            a.log_sums[at] = most[0] * a.scale + logf(low);
        }
        if (t == 0 && row + 8 < a.length) {
            a.log_sums[at + 8] = most[1] * a.scale + logf(high);
        }
        sums_store(m, group, y, 1.0f / low, 1.0f / high,
                   a.y + ((size_t)w.sequence * a.length * a.heads + w.head) * D, (size_t)a.heads * D, own + warp * 16, a.length);
    });
}

/* --------------------------------------------------------------- backward -- */

/* Computes dQ, and for each row delta = sum of dout * out, which back_kv reads. */
template <typename T, int D>
__global__ void __launch_bounds__(back_q_memory<T, D>::THREADS, 1) group_back_q(const group_typed<T> a, int batch)
{
    typedef back_q_memory<T, D> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread();
    size_t  out_stride  = (size_t)a.heads * D;

    if (group == memory::GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works<memory>(batch, a.heads, a.length, [&](const work &w) {
            auto *own = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length;

            rows_start<memory::OWN, memory::TILES>(own[0][0], a.q + row0 * a.q_stride + w.head * D, a.q_stride, w.first, a.length);
            rows_start<memory::OWN, memory::TILES>(own[1][0], a.dout + row0 * out_stride + w.head * D, out_stride, w.first, a.length);
            if constexpr (memory::TILES == 1) {
                rows_start<memory::OWN, memory::TILES>(own[2][0], a.out + row0 * out_stride + w.head * D, out_stride, w.first, a.length);
            } else { /* they are used once: a step of their own, before the keys */
                rows_start<memory::OWN, memory::TILES>(m->steps[c.step_begin()][0], a.out + row0 * out_stride + w.head * D, out_stride,
                                                       w.first, a.length);
                c.step_end();
            }
            keys_start(c, a, w);
        });
        c.end();
        return;
    }

    registers_take<memory::REGISTERS>();
    int      warp = (int)threadIdx.x % GROUP_THREADS / 32;
    int      g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    computing<memory>  steps{m};
    summing<memory, 1> sums{m, group, 0};
    float    factor = a.scale * LOG2_E;
    uint32_t ds[ROWS / 16][4];
    float    s[ROWS / 8][4], dp[ROWS / 8][4], dq[D / 8][4];

    works<memory>(batch, a.heads, a.length, [&](const work &w) {
        int    own = w.first + group * ROWS, row = own + warp * 16 + g;
        int    seen = tiles_before(own + ROWS, a.length), tiles = tiles_before(w.first + memory::OWN, a.length);
        size_t at   = ((size_t)w.sequence * a.heads + w.head) * a.length + row;
        float  log_sum[2], delta[2] = {0.0f, 0.0f};

#pragma unroll
        for (int r = 0; r < 2; r++) { /* past the end, 2^(0 - inf) = 0 */
            log_sum[r] = row + r * 8 < a.length ? a.log_sums[at + r * 8] * LOG2_E : INFINITY;
        }
        const T *q = m->own[w.turn % 2][0][group], *dout = m->own[w.turn % 2][1][group], *out;

        barrier_wait(&m->own_there[w.turn % 2], w.turn / 2);
        if constexpr (memory::TILES == 1) {
            out = m->own[w.turn % 2][2][group];
        } else {
            static_assert(memory::GROUPS == 2, "a step has the rows of two groups");
            steps.wait();
            out = m->steps[steps.now][group];
        }
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            const int tile = d * 16 / TILE_COLUMNS * TILE_ELEMS;
            uint32_t  x[4], dx[4];

            matrices_load(x, left_swizzled_at(out + tile, warp * 16, d % (TILE_COLUMNS / 16)));
            matrices_load(dx, left_swizzled_at(dout + tile, warp * 16, d % (TILE_COLUMNS / 16)));
#pragma unroll
            for (int i = 0; i < 4; i++) { /* registers 0 and 2 are of row g, 1 and 3 of row g + 8 */
                float low, high, dlow, dhigh;

                pair_of<T>::split(x[i], &low, &high);
                pair_of<T>::split(dx[i], &dlow, &dhigh);
                delta[i % 2] += low * dlow + high * dhigh;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            delta[r] = quad_sum(delta[r]);
            if (t == 0 && row + r * 8 < a.length) {
                a.deltas[at + r * 8] = delta[r];
            }
        }
        if constexpr (memory::TILES > 1) {
            steps.give_back(steps.now);
        }
        tile_zero(s);
        tile_zero(dp);
        tile_zero(dq);
        for (int tile = 0; tile < seen; tile++) {
            int key0 = tile * ROWS;

            steps.wait();
            scores_give<D>(s, q, m->steps[steps.now][0]);
            scores_give<D>(dp, dout, m->steps[steps.now][1]);
            group_wait<2>(dq); /* of the step before */
            if (tile > 0) {
                steps.give_back(steps.before);
            }
            group_wait<1>(s);
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] = exp2_of(s[n][i] * factor - log_sum[i / 2]);
                }
            }
            if (key0 + ROWS > own) { /* the diagonal crosses this tile */
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        s[n][i] = key0 + n * 8 + 2 * t + i % 2 > row + i / 2 * 8 ? 0.0f : s[n][i];
                    }
                }
            }
            group_wait<0>(dp);
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] *= dp[n][i] - delta[i / 2];
                }
            }
            tile_round<T>(ds, s);
            rows_give(dq, ds, m->steps[steps.now][0]);
        }
        group_wait<0>(dq);
        warp_arrive(&m->own_used[w.turn % 2]);
        steps.give_back(steps.now);
        steps.pass(tiles - seen);
        sums_store(m, group, dq, a.scale, a.scale,
                   a.dq + (size_t)w.sequence * a.length * a.q_stride + w.head * D, a.q_stride, own + warp * 16, a.length);
        if constexpr (memory::TILES == 1) {
            if (a.columns != NULL && own < a.length) {
                sums.store();
                columns_give<T>(sums.room(0), dq, a.scale);
                sums.given(columns_of(a, w, own, w.head));
            }
        }
    });
    if constexpr (memory::TILES == 1) {
        sums.store();
    }
}

/* Computes dK and dV. The scores are transposed: keys are rows and queries are columns. Zeros past
 * the length add nothing. */
template <typename T, int D>
__global__ void __launch_bounds__(back_kv_memory<T, D>::THREADS, 1) group_back_kv(const group_typed<T> a, int batch)
{
    typedef back_kv_memory<T, D> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread(), readers = a.heads / a.kv_heads; /* heads that read a key */
    size_t  out_stride  = (size_t)a.heads * D;

    if (group == memory::GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works<memory>(batch, a.kv_heads, a.length, [&](const work &w) {
            auto *own = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length, kv0 = row0 * a.kv_stride + w.head * D;

            rows_start<memory::OWN, memory::TILES>(own[0][0], a.k + kv0, a.kv_stride, w.first, a.length);
            rows_start<memory::OWN, memory::TILES>(own[1][0], a.v + kv0, a.kv_stride, w.first, a.length);
            for (int head = w.head * readers; head < (w.head + 1) * readers; head++) {
                size_t sum0 = ((size_t)w.sequence * a.heads + head) * a.length;

                for (int query0 = w.first; query0 < a.length; query0 += ROWS) {
                    int slot = c.step_begin();

                    rows_start<ROWS, memory::TILES>(m->steps[slot][0], a.q + row0 * a.q_stride + head * D, a.q_stride, query0, a.length);
                    rows_start<ROWS, memory::TILES>(m->steps[slot][1], a.dout + row0 * out_stride + head * D, out_stride, query0, a.length);
                    numbers_start(m->sums[slot][0], a.log_sums + sum0, query0, a.length, 0);
                    numbers_start(m->sums[slot][1], a.deltas + sum0, query0, a.length, 1);
                    c.step_end();
                }
            }
        });
        c.end();
        return;
    }

    registers_take<memory::REGISTERS>();
    int      warp = (int)threadIdx.x % GROUP_THREADS / 32;
    int      g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    computing<memory>  steps{m};
    summing<memory, 2> sums{m, group, a.kv_heads * D};
    float    factor = a.scale * LOG2_E;
    uint32_t p[ROWS / 16][4], ds[ROWS / 16][4];
    float    s[ROWS / 8][4], dp[ROWS / 8][4], dk[D / 8][4], dv[D / 8][4];

    works<memory>(batch, a.kv_heads, a.length, [&](const work &w) {
        int    own = w.first + group * ROWS, row = own + warp * 16 + g;
        int    tiles = tiles_before(a.length - w.first, a.length), unseen = group < tiles ? group : tiles;
        size_t kv0 = (size_t)w.sequence * a.length * a.kv_stride + w.head * D;

        const T *k = m->own[w.turn % 2][0][group], *v = m->own[w.turn % 2][1][group];

        barrier_wait(&m->own_there[w.turn % 2], w.turn / 2);
        tile_zero(s);
        tile_zero(dp);
        tile_zero(dk);
        tile_zero(dv);
        for (int head = 0; head < readers; head++) {
            steps.pass(unseen); /* queries before the group's keys */
            for (int tile = unseen; tile < tiles; tile++) {
                steps.wait();

                int          query0 = w.first + tile * ROWS;
                const T     *q_tile = m->steps[steps.now][0], *do_tile = m->steps[steps.now][1];
                const float *logs = m->sums[steps.now][0] + 2 * t, *deltas = m->sums[steps.now][1] + 2 * t;

                scores_give<D>(s, k, q_tile);
                if constexpr (memory::TILES == 1) {
                    scores_give<D>(dp, v, do_tile);
                    group_wait<2>(dv); /* of the step before */
                    group_wait<2>(dk);
                } else { /* its left sides and dp do not fit into registers at the same time */
                    group_wait<1>(dv);
                    group_wait<1>(dk);
                    scores_give<D>(dp, v, do_tile);
                }
                if (tile > unseen) {
                    steps.give_back(steps.before);
                }
                group_wait<1>(s);
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
                    float log2_0 = logs[n * 8] * LOG2_E, log2_1 = logs[n * 8 + 1] * LOG2_E;

#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        s[n][i] = exp2_of(s[n][i] * factor - (i % 2 ? log2_1 : log2_0));
                    }
                }
                if (query0 < own + ROWS) { /* the diagonal crosses this tile */
#pragma unroll
                    for (int n = 0; n < ROWS / 8; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            s[n][i] = row + i / 2 * 8 > query0 + n * 8 + 2 * t + i % 2 ? 0.0f : s[n][i];
                        }
                    }
                }
                tile_round<T>(p, s);
                rows_give(dv, p, do_tile);
                group_wait<1>(dp);
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
                    float drop_0 = deltas[n * 8], drop_1 = deltas[n * 8 + 1];

#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        s[n][i] *= dp[n][i] - (i % 2 ? drop_1 : drop_0);
                    }
                }
                tile_round<T>(ds, s);
                rows_give(dk, ds, q_tile);
            }
            group_wait<0>(dv);
            group_wait<0>(dk);
            if (unseen < tiles) {
                steps.give_back(steps.now);
            }
        }
        warp_arrive(&m->own_used[w.turn % 2]);

        sums_store(m, group, dk, a.scale, a.scale, a.dk + kv0, a.kv_stride, own + warp * 16, a.length);
        sums_store(m, group, dv, 1.0f, 1.0f, a.dv + kv0, a.kv_stride, own + warp * 16, a.length);
        if constexpr (memory::TILES == 1) {
            if (a.columns != NULL && own < a.length) {
                sums.store();
                columns_give<T>(sums.room(0), dk, a.scale);
                columns_give<T>(sums.room(1), dv, 1.0f);
                sums.given(columns_of(a, w, own, a.heads + w.head));
            }
        }
    });
    if constexpr (memory::TILES == 1) {
        sums.store();
    }
}

/* -------------------------------------------------------------- launchers -- */

template <typename M, typename T>
static void group_queue(void (*kernel)(group_typed<T>, int), const attention_launch *a, size_t heads, cudaStream_t stream)
{
    size_t   blocks = blocks_of(a->shape.length, M::OWN), works = (blocks + 1) / 2 * heads * a->shape.batch;
    unsigned grid = (unsigned)(works < a->processors ? works : a->processors);

    LLM_LAUNCH(kernel, dim3(grid), dim3(M::THREADS), memory_bytes<M>, stream, group_typed<T>(a), (int)a->shape.batch);
}

template <typename T, int D> static void typed_queue(const attention_launch *a, cudaStream_t stream)
{
    if (a->dout == NULL) {
        group_queue<forward_memory<T, D>>(group_forward<T, D>, a, a->shape.heads, stream);
    } else {
        group_queue<back_q_memory<T, D>>(group_back_q<T, D>, a, a->shape.heads, stream);
        group_queue<back_kv_memory<T, D>>(group_back_kv<T, D>, a, a->shape.kv_heads, stream);
    }
}

bool attention_warpgroup_takes(const attention_launch *args)
{
    const heads_args *s = &args->shape;

    return args->dtype != SHERD_F32 && (s->width == 64 || s->width == 128) && s->q_stride % 8 == 0 && s->kv_stride % 8 == 0;
}

bool attention_warpgroup_sums_columns(const attention_launch *args)
{
    const heads_args *s = &args->shape;
    size_t            q_columns = s->heads * s->width, kv_columns = s->kv_heads * s->width, columns = q_columns + 2 * kv_columns;
    size_t            at = sherd_dtype_bytes(args->dtype);

    return attention_warpgroup_takes(args) && s->width == 64 && s->q_stride == columns && s->kv_stride == columns &&
           (char *)args->dk == (char *)args->dq + q_columns * at && (char *)args->dv == (char *)args->dk + kv_columns * at;
}

template <typename T> static void width_queue(const attention_launch *a, cudaStream_t stream)
{
    if (a->shape.width == 64) {
        typed_queue<T, 64>(a, stream);
    } else {
        typed_queue<T, 128>(a, stream);
    }
}

void attention_warpgroup_queue(const attention_launch *args, cudaStream_t stream)
{
    if (args->dtype == SHERD_BF16) {
        width_queue<bf16_t>(args, stream);
    } else {
        width_queue<f16_t>(args, stream);
    }
}

template <int D> static constexpr size_t most_bytes()
{
    size_t of_q = memory_bytes<back_q_memory<bf16_t, D>>, of_kv = memory_bytes<back_kv_memory<bf16_t, D>>;
    size_t most = of_q > of_kv ? of_q : of_kv;

    return most > memory_bytes<forward_memory<bf16_t, D>> ? most : memory_bytes<forward_memory<bf16_t, D>>;
}

static_assert(most_bytes<64>() <= 227 << 10 && most_bytes<128>() <= 227 << 10, "compute capability 9.0 has 227 KiB for a block");

bool attention_warpgroup_fits(shared_memory memory)
{
    return most_bytes<64>() <= memory.block_bytes && most_bytes<128>() <= memory.block_bytes;
}

template <typename M, typename T> static void group_allow(void (*kernel)(group_typed<T>, int), cudaError_t *error)
{
    if (*error == cudaSuccess) {
        *error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)memory_bytes<M>);
    }
}

template <typename T, int D> static void typed_allow(cudaError_t *error)
{
    group_allow<forward_memory<T, D>>(group_forward<T, D>, error);
    group_allow<back_q_memory<T, D>>(group_back_q<T, D>, error);
    group_allow<back_kv_memory<T, D>>(group_back_kv<T, D>, error);
}

cudaError_t attention_warpgroup_prepare(void)
{
    cudaError_t error = cudaSuccess;

    typed_allow<bf16_t, 64>(&error);
    typed_allow<bf16_t, 128>(&error);
    typed_allow<f16_t, 64>(&error);
    typed_allow<f16_t, 128>(&error);
    return error;
}
