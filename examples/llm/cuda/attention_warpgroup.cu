/* Causal attention by warpgroups' products (warpgroup.cuh), for heads of 64 elements of 16 bits on compute capability 9.0. The method
 * is that of attention.cu: probabilities are recomputed from the logarithm of the sum, one kernel owns queries and one owns keys, and
 * every sum has one owner. What differs is how the tiles come and when the products are waited for (compare FlashAttention-3, Shah et
 * al. 2024).
 *
 * A block has two warpgroups that compute and one that copies, and that gives registers to the others. Each warpgroup owns 64 rows; their right sides come by tiles of 64
 * rows, which both use: the copies are up to STAGES steps ahead. Barriers in shared memory say which steps are there and which
 * are used up, so that the warpgroups need not be at the same step: while one computes exponentials, the tensor cores have the
 * products of the other.
 *
 * There is one block for a multiprocessor, which takes one work after another. Block i of 128 rows and block i from the end have, with
 * the triangle of causal attention, the same number of steps for every i; so these two are one work. Which multiprocessor does a work
 * changes no sum. */
#include "attention.cuh"
#include "kernels.h"
#include "launch.h"
#include "tiles.cuh"
#include "warpgroup.cuh"

#define GROUPS  2
#define THREADS ((GROUPS + 1) * GROUP_THREADS) /* the last group copies */
#define ROWS    TILE_ROWS                     /* of a warpgroup */
#define OWN     (GROUPS * ROWS)
#define D       TILE_COLUMNS
#define LD      (D + 8) /* of rows on their way out */
#define STAGES  4
#define AHEAD   2 /* steps whose copies are under way at a time */

/* Registers of a thread: 168 at first, as many as there are for THREADS, then these. */
#define COPYING_REGISTERS   56
#define COMPUTING_REGISTERS 224

#define TILE_ELEMS (TILE_ROWS * TILE_COLUMNS)

/* The shared memory of a block: OWN_TILES matrices of the rows that it owns, for this work and the next, and the tiles of the steps. */
template <typename T, int OWN_TILES> struct block_memory {
    T        own[2][OWN_TILES][GROUPS][TILE_ELEMS];
    T        steps[STAGES][2][TILE_ELEMS];
    float    sums[STAGES][2][TILE_ROWS]; /* of back_kv: logarithms and deltas of a step's queries */
    T        leaving[GROUPS][ROWS][LD];
    uint64_t own_there[2], own_used[2], there[STAGES], used[STAGES];
};

template <typename T, int OWN_TILES> static constexpr size_t memory_bytes = sizeof(block_memory<T, OWN_TILES>) + TILE_ALIGN;

/* Makes the barriers. Blocks. */
template <typename M> __device__ __forceinline__ M *memory_begin(unsigned char *shared)
{
    M *m = (M *)(shared + (TILE_ALIGN - (uintptr_t)shared % TILE_ALIGN) % TILE_ALIGN);

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(&m->own_there[i], GROUP_THREADS);
            barrier_init(&m->own_used[i], GROUPS * 4); /* one lane of each warp that computes */
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&m->there[i], GROUP_THREADS);
            barrier_init(&m->used[i], GROUPS * 4);
        }
    }
    __syncthreads();
    return m;
}

/* The rows [first, first + OWN) of a head. `turn` counts the works of this block. */
typedef struct work {
    int turn, sequence, head, first;
} work;

/* Calls what(work) for each work of this block, the same in every thread. */
template <typename What> __device__ __forceinline__ void works(int batch, int heads, int length, const What &what)
{
    const int       blocks = (length + OWN - 1) / OWN, pairs = (blocks + 1) / 2;
    const long long all  = (long long)pairs * heads * batch;
    int             turn = 0;

    for (long long half = 0, i = blockIdx.x; i < all; half++, i += half % 2 == 0 ? gridDim.x : 0) {
        const int pair = (int)(i % pairs), block = half % 2 == 0 ? pair : blocks - 1 - pair;

        if (half % 2 == 0 || block != pair) {
            what(work{turn++, (int)(i / pairs / heads), (int)(i / pairs % heads), block * OWN});
        }
    }
}

/* ---------------------------------------------------------- copying group - */

/* What a thread of the copying group has begun and has not told yet. */
template <typename M> struct copying {
    M  *m;
    int begun = 0, told = 0; /* steps */
    int own_at = -1, own_slot = 0; /* the step with which the own rows are told, and where they are */

    /* Tells the oldest step that was not told, when at most PENDING younger ones are under way. */
    template <int PENDING> __device__ __forceinline__ void tell()
    {
        copies_wait<PENDING>();
        copies_show();
        if (told == own_at) {
            barrier_arrive(&m->own_there[own_slot]);
        }
        barrier_arrive(&m->there[told % STAGES]);
        told++;
    }

    /* Waits until the rows of the work before the last have been used, and returns where those of this work go. */
    __device__ __forceinline__ int own_begin(int turn)
    {
        if (told <= own_at) { /* there is one step to remember */
            end();
        }
        own_slot = turn % 2;
        own_at   = begun;
        barrier_wait(&m->own_used[own_slot], turn / 2 - 1);
        return own_slot;
    }

    /* Waits until the tiles of the next step can be overwritten, and returns their number. */
    __device__ __forceinline__ int step_begin()
    {
        barrier_wait(&m->used[begun % STAGES], begun / STAGES - 1);
        return begun % STAGES;
    }

    __device__ __forceinline__ void step_end()
    {
        copies_commit();
        begun++;
        if (begun - told > AHEAD) {
            tell<AHEAD>();
        }
    }

    __device__ __forceinline__ void end()
    {
        while (told < begun) {
            tell<0>();
        }
    }
};

/* Starts copying rows [first, first + COUNT) of a matrix into tiles that follow each other. Rows past the length are zeros. */
template <int COUNT, typename T>
__device__ __forceinline__ void rows_start(T *to, const T *from, size_t stride, int first, int length)
{
    /* sixteen rows at a time, eight threads a row: `c` and the order in a row are the same in all of a thread's rows */
    const int thread = (int)threadIdx.x % GROUP_THREADS, r0 = thread / 8, c = thread % 8;
    const T  *row = from + (size_t)(first + r0) * stride + c * 8;

    to += swizzled(r0, c);
#pragma unroll
    for (int r = 0; r < COUNT; r += GROUP_THREADS / 8) {
        bool is_there = first + r0 + r < length;

        copy_start(to + r * TILE_COLUMNS, is_there ? row : from, is_there);
        row += stride * (GROUP_THREADS / 8);
    }
}

/* The same for a number a row, by half of the threads: the first or the second. */
__device__ __forceinline__ void numbers_start(float *to, const float *from, int first, int length, int half)
{
    int  r        = (int)threadIdx.x % TILE_ROWS;
    bool is_there = first + r < length;

    if ((int)threadIdx.x % GROUP_THREADS / TILE_ROWS == half) {
        word_copy_start(to + r, is_there ? from + first + r : from, is_there);
    }
}

/* Copies what the queries of a work need of keys and values, step by step. */
template <typename M, typename T>
__device__ __forceinline__ void keys_start(copying<M> &c, const attention_typed<T> &a, const work &w)
{
    const size_t first = (size_t)w.sequence * a.length * a.kv_stride + w.head / (a.heads / a.kv_heads) * D;

    for (int key0 = 0; key0 < w.first + OWN && key0 < a.length; key0 += TILE_ROWS) {
        T(*tiles)[TILE_ELEMS] = c.m->steps[c.step_begin()];

        rows_start<TILE_ROWS>(tiles[0], a.k + first, a.kv_stride, key0, a.length);
        rows_start<TILE_ROWS>(tiles[1], a.v + first, a.kv_stride, key0, a.length);
        c.step_end();
    }
}

/* -------------------------------------------------------- computing warps -- */

/* Says, for this warp, that it has used what the barrier is for. */
__device__ __forceinline__ void warp_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(barrier);
    }
}

/* Returns how many tiles the rows before `end` are, of the length. */
__device__ __forceinline__ int tiles_before(int end, int length)
{
    return ((end < length ? end : length) + TILE_ROWS - 1) / TILE_ROWS;
}

/* Passes `count` steps by, whose tiles this group does not use. Returns count. */
template <typename M> __device__ __forceinline__ int steps_pass(M *m, int step, int count)
{
    for (int i = step; i < step + count; i++) {
        barrier_wait(&m->there[i % STAGES], i / STAGES);
        warp_arrive(&m->used[i % STAGES]);
    }
    return count;
}

/* Gives c = left . tile', as a group of its own. */
template <typename T> __device__ __forceinline__ void scores_give(float (&c)[D / 8][4], const T *left, const T *tile)
{
    group_begin(c);
    group_multiply<T, false>(c, left, tile, 0);
#pragma unroll
    for (int step = 1; step < D / 16; step++) {
        group_multiply<T, true>(c, left, tile, step);
    }
    group_commit();
}

/* Gives sum += a . tile, as a group of its own. */
template <typename T>
__device__ __forceinline__ void rows_give(float (&sum)[D / 8][4], uint32_t (&a)[D / 16][4], const T *tile)
{
    left_settle(a);
    group_begin(sum);
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        group_add<T>(sum, a[step], tile, step);
    }
    group_commit();
}

/* Rounds a tile of 64 x 64 to the left side of a product. */
template <typename T> __device__ __forceinline__ void tile_round(uint32_t (&a)[D / 16][4], const float (&c)[D / 8][4])
{
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        left_make<T>(a[d], c[2 * d], c[2 * d + 1]);
    }
}

__device__ __forceinline__ void tile_zero(float (&x)[D / 8][4])
{
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0.0f;
    }
}

/* Copies the warp's sums, times `factor` and `factor8`, to rows [first, ...) of a matrix. */
template <typename T>
__device__ __forceinline__ void sums_store(T *leaving, const float (&acc)[D / 8][4], float factor, float factor8, T *to,
                                           size_t stride, int first, int length)
{
    tile_put<T, D>(leaving, acc, factor, factor8);
    __syncwarp();
    rows_store<T, D, 16>(leaving, to, stride, first, length, D);
    __syncwarp(); /* the next sums overwrite the rows */
}

/* ---------------------------------------------------------------- forward -- */

template <typename T> __global__ void __launch_bounds__(THREADS, 1) group_forward(const attention_typed<T> a, int batch)
{
    typedef block_memory<T, 1> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread();

    if (group == GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works(batch, a.heads, a.length, [&](const work &w) {
            T(*own)[GROUPS][TILE_ELEMS] = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length;

            rows_start<OWN>(own[0][0], a.q + row0 * a.q_stride + w.head * D, a.q_stride, w.first, a.length);
            keys_start(c, a, w);
        });
        c.end();
        return;
    }

    registers_take<COMPUTING_REGISTERS>();
    int      warp = (int)threadIdx.x % GROUP_THREADS / 32;
    int      g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4, step = 0;
    float    factor = a.scale * LOG2_E; /* scores are kept as exponents of 2 */
    uint32_t p[D / 16][4];
    float    s[D / 8][4], y[D / 8][4];

    tile_zero(s);
    works(batch, a.heads, a.length, [&](const work &w) {
        int   own = w.first + group * ROWS; /* the first row of the group; `row` is the thread's first */
        int   row = own + warp * 16 + g;
        int   seen = tiles_before(own + ROWS, a.length), tiles = tiles_before(w.first + OWN, a.length);
        float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

        const T *q = m->own[w.turn % 2][0][group];

        barrier_wait(&m->own_there[w.turn % 2], w.turn / 2);
        tile_zero(y);
        for (int tile = 0; tile < seen; tile++, step++) {
            int slot = step % STAGES, key0 = tile * TILE_ROWS;

            barrier_wait(&m->there[slot], step / STAGES);
            scores_give(s, q, m->steps[slot][0]);
            group_wait<0>(s);
            group_wait<0>(y); /* of the step before, if there was one */
            if (tile > 0) {
                warp_arrive(&m->used[(step - 1) % STAGES]);
            }
            if (key0 + TILE_ROWS > own) { /* the diagonal crosses this tile */
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
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
                for (int n = 0; n < D / 8; n++) {
                    tile_most = fmaxf(tile_most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                }
                tile_most = quad_max(tile_most); /* never -inf, since all queries see key 0 */
                offset    = tile_most * factor;
                shrink    = exp2_of(most[r] * factor - offset);
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
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
            rows_give(y, p, m->steps[slot][1]);
        }
        group_wait<0>(y);
        warp_arrive(&m->own_used[w.turn % 2]);
        warp_arrive(&m->used[(step - 1) % STAGES]); /* all queries see key 0 */
        step += steps_pass(m, step, tiles - seen);

        float  low = quad_sum(sum[0]), high = quad_sum(sum[1]);
        size_t at = ((size_t)w.sequence * a.heads + w.head) * a.length + row;

        if (t == 0 && row < a.length) {
            a.log_sums[at] = most[0] * a.scale + logf(low);
        }
        if (t == 0 && row + 8 < a.length) {
            a.log_sums[at + 8] = most[1] * a.scale + logf(high);
        }
        sums_store(m->leaving[group][warp * 16], y, 1.0f / low, 1.0f / high,
                   a.y + ((size_t)w.sequence * a.length * a.heads + w.head) * D, (size_t)a.heads * D, own + warp * 16, a.length);
    });
}

/* --------------------------------------------------------------- backward -- */

/* Computes dQ, and for each row delta = sum of dout * out, which back_kv reads. */
template <typename T> __global__ void __launch_bounds__(THREADS, 1) group_back_q(const attention_typed<T> a, int batch)
{
    typedef block_memory<T, 3> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread();
    size_t  out_stride  = (size_t)a.heads * D;

    if (group == GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works(batch, a.heads, a.length, [&](const work &w) {
            T(*own)[GROUPS][TILE_ELEMS] = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length;

            rows_start<OWN>(own[0][0], a.q + row0 * a.q_stride + w.head * D, a.q_stride, w.first, a.length);
            rows_start<OWN>(own[1][0], a.dout + row0 * out_stride + w.head * D, out_stride, w.first, a.length);
            rows_start<OWN>(own[2][0], a.out + row0 * out_stride + w.head * D, out_stride, w.first, a.length);
            keys_start(c, a, w);
        });
        c.end();
        return;
    }

    registers_take<COMPUTING_REGISTERS>();
    int      warp = (int)threadIdx.x % GROUP_THREADS / 32;
    int      g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4, step = 0;
    float    factor = a.scale * LOG2_E;
    uint32_t ds[D / 16][4];
    float    s[D / 8][4], dp[D / 8][4], dq[D / 8][4];

    tile_zero(s);
    tile_zero(dp);
    works(batch, a.heads, a.length, [&](const work &w) {
        int    own = w.first + group * ROWS, row = own + warp * 16 + g;
        int    seen = tiles_before(own + ROWS, a.length), tiles = tiles_before(w.first + OWN, a.length);
        size_t at   = ((size_t)w.sequence * a.heads + w.head) * a.length + row;
        float  log_sum[2], delta[2] = {0.0f, 0.0f};

#pragma unroll
        for (int r = 0; r < 2; r++) { /* past the end, 2^(0 - inf) = 0 */
            log_sum[r] = row + r * 8 < a.length ? a.log_sums[at + r * 8] * LOG2_E : INFINITY;
        }
        const T *q = m->own[w.turn % 2][0][group], *dout = m->own[w.turn % 2][1][group], *out = m->own[w.turn % 2][2][group];

        barrier_wait(&m->own_there[w.turn % 2], w.turn / 2);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t x[4], dx[4];

            matrices_load(x, left_swizzled_at(out, warp * 16, d));
            matrices_load(dx, left_swizzled_at(dout, warp * 16, d));
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
        tile_zero(dq);
        for (int tile = 0; tile < seen; tile++, step++) {
            int slot = step % STAGES, key0 = tile * TILE_ROWS;

            barrier_wait(&m->there[slot], step / STAGES);
            scores_give(s, q, m->steps[slot][0]);
            scores_give(dp, dout, m->steps[slot][1]);
            group_wait<2>(dq); /* of the step before */
            if (tile > 0) {
                warp_arrive(&m->used[(step - 1) % STAGES]);
            }
            group_wait<1>(s);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] = exp2_of(s[n][i] * factor - log_sum[i / 2]);
                }
            }
            if (key0 + TILE_ROWS > own) { /* the diagonal crosses this tile */
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        s[n][i] = key0 + n * 8 + 2 * t + i % 2 > row + i / 2 * 8 ? 0.0f : s[n][i];
                    }
                }
            }
            group_wait<0>(dp);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] *= dp[n][i] - delta[i / 2];
                }
            }
            tile_round<T>(ds, s);
            rows_give(dq, ds, m->steps[slot][0]);
        }
        group_wait<0>(dq);
        warp_arrive(&m->own_used[w.turn % 2]);
        warp_arrive(&m->used[(step - 1) % STAGES]);
        step += steps_pass(m, step, tiles - seen);
        sums_store(m->leaving[group][warp * 16], dq, a.scale, a.scale,
                   a.dq + (size_t)w.sequence * a.length * a.q_stride + w.head * D, a.q_stride, own + warp * 16, a.length);
    });
}

/* Computes dK and dV. The scores are transposed: keys are rows and queries are columns. Zeros past the length add nothing. */
template <typename T> __global__ void __launch_bounds__(THREADS, 1) group_back_kv(const attention_typed<T> a, int batch)
{
    typedef block_memory<T, 2> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread(), readers = a.heads / a.kv_heads; /* heads that read a key */
    size_t  out_stride  = (size_t)a.heads * D;

    if (group == GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works(batch, a.kv_heads, a.length, [&](const work &w) {
            T(*own)[GROUPS][TILE_ELEMS] = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length, kv0 = row0 * a.kv_stride + w.head * D;

            rows_start<OWN>(own[0][0], a.k + kv0, a.kv_stride, w.first, a.length);
            rows_start<OWN>(own[1][0], a.v + kv0, a.kv_stride, w.first, a.length);
            for (int head = w.head * readers; head < (w.head + 1) * readers; head++) {
                size_t sum0 = ((size_t)w.sequence * a.heads + head) * a.length;

                for (int query0 = w.first; query0 < a.length; query0 += TILE_ROWS) {
                    int slot = c.step_begin();

                    rows_start<TILE_ROWS>(m->steps[slot][0], a.q + row0 * a.q_stride + head * D, a.q_stride, query0, a.length);
                    rows_start<TILE_ROWS>(m->steps[slot][1], a.dout + row0 * out_stride + head * D, out_stride, query0, a.length);
                    numbers_start(m->sums[slot][0], a.log_sums + sum0, query0, a.length, 0);
                    numbers_start(m->sums[slot][1], a.deltas + sum0, query0, a.length, 1);
                    c.step_end();
                }
            }
        });
        c.end();
        return;
    }

    registers_take<COMPUTING_REGISTERS>();
    int      warp = (int)threadIdx.x % GROUP_THREADS / 32;
    int      g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4, step = 0;
    float    factor = a.scale * LOG2_E;
    uint32_t p[D / 16][4], ds[D / 16][4];
    float    s[D / 8][4], dp[D / 8][4], dk[D / 8][4], dv[D / 8][4];

    tile_zero(s);
    tile_zero(dp);
    works(batch, a.kv_heads, a.length, [&](const work &w) {
        int    own = w.first + group * ROWS, row = own + warp * 16 + g;
        int    tiles = tiles_before(a.length - w.first, a.length), unseen = group < tiles ? group : tiles;
        size_t kv0 = (size_t)w.sequence * a.length * a.kv_stride + w.head * D;

        const T *k = m->own[w.turn % 2][0][group], *v = m->own[w.turn % 2][1][group];

        barrier_wait(&m->own_there[w.turn % 2], w.turn / 2);
        tile_zero(dk);
        tile_zero(dv);
        for (int head = 0; head < readers; head++) {
            step += steps_pass(m, step, unseen); /* queries before the group's keys */
            for (int tile = unseen; tile < tiles; tile++, step++) {
                int          slot = step % STAGES, query0 = w.first + tile * TILE_ROWS;
                const T     *q_tile = m->steps[slot][0], *do_tile = m->steps[slot][1];
                const float *logs = m->sums[slot][0] + 2 * t, *deltas = m->sums[slot][1] + 2 * t;

                barrier_wait(&m->there[slot], step / STAGES);
                scores_give(s, k, q_tile);
                scores_give(dp, v, do_tile);
                group_wait<2>(dv); /* of the step before */
                group_wait<2>(dk);
                if (tile > unseen) {
                    warp_arrive(&m->used[(step - 1) % STAGES]);
                }
                group_wait<1>(s);
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    float log2_0 = logs[n * 8] * LOG2_E, log2_1 = logs[n * 8 + 1] * LOG2_E;

#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        s[n][i] = exp2_of(s[n][i] * factor - (i % 2 ? log2_1 : log2_0));
                    }
                }
                if (query0 < own + ROWS) { /* the diagonal crosses this tile */
#pragma unroll
                    for (int n = 0; n < D / 8; n++) {
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
                for (int n = 0; n < D / 8; n++) {
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
                warp_arrive(&m->used[(step - 1) % STAGES]);
            }
        }
        warp_arrive(&m->own_used[w.turn % 2]);

        T *leaving = m->leaving[group][warp * 16];

        sums_store(leaving, dk, a.scale, a.scale, a.dk + kv0, a.kv_stride, own + warp * 16, a.length);
        sums_store(leaving, dv, 1.0f, 1.0f, a.dv + kv0, a.kv_stride, own + warp * 16, a.length);
    });
}

/* -------------------------------------------------------------- launchers -- */

template <typename T, int OWN_TILES>
static void group_queue(void (*kernel)(attention_typed<T>, int), const attention_launch *a, size_t heads, cudaStream_t stream)
{
    size_t   blocks = blocks_of(a->shape.length, OWN), works = (blocks + 1) / 2 * heads * a->shape.batch;
    unsigned grid = (unsigned)(works < a->processors ? works : a->processors);

    LLM_LAUNCH(kernel, dim3(grid), dim3(THREADS), (memory_bytes<T, OWN_TILES>), stream, attention_typed<T>(a), (int)a->shape.batch);
}

template <typename T> static void typed_queue(const attention_launch *a, cudaStream_t stream)
{
    if (a->dout == NULL) {
        group_queue<T, 1>(group_forward<T>, a, a->shape.heads, stream);
    } else {
        group_queue<T, 3>(group_back_q<T>, a, a->shape.heads, stream);
        group_queue<T, 2>(group_back_kv<T>, a, a->shape.kv_heads, stream);
    }
}

bool attention_warpgroup_takes(const attention_launch *args)
{
    const heads_args *s = &args->shape;

    return args->dtype != SHERD_F32 && s->width == D && s->q_stride % 8 == 0 && s->kv_stride % 8 == 0;
}

void attention_warpgroup_queue(const attention_launch *args, cudaStream_t stream)
{
    if (args->dtype == SHERD_BF16) {
        typed_queue<bf16_t>(args, stream);
    } else {
        typed_queue<f16_t>(args, stream);
    }
}

bool attention_warpgroup_fits(shared_memory memory)
{
    return memory_bytes<bf16_t, 3> <= memory.block_bytes; /* backward of queries owns most */
}

template <typename T, int OWN_TILES> static void group_allow(void (*kernel)(attention_typed<T>, int), cudaError_t *error)
{
    if (*error == cudaSuccess) {
        *error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)memory_bytes<T, OWN_TILES>);
    }
}

template <typename T> static void typed_allow(cudaError_t *error)
{
    group_allow<T, 1>(group_forward<T>, error);
    group_allow<T, 3>(group_back_q<T>, error);
    group_allow<T, 2>(group_back_kv<T>, error);
}

cudaError_t attention_warpgroup_prepare(void)
{
    cudaError_t error = cudaSuccess;

    typed_allow<bf16_t>(&error);
    typed_allow<f16_t>(&error);
    return error;
}
