/* Causal attention by warpgroups' products (warpgroup.cuh), for heads of 64 elements of 16 bits on compute capability 9.0. The method
 * is that of attention.cu: probabilities are recomputed from the logarithm of the sum, one kernel owns queries and one owns keys, and
 * every sum has one owner. What differs is how the tiles come and when the products are waited for (compare FlashAttention-3, Shah et
 * al. 2024).
 *
 * A block has warpgroups that compute and one that copies, and that gives registers to the others. Each of those owns 64 rows; their
 * right sides come by tiles of 64 rows, which all use: the copies are up to STAGES steps ahead. Barriers in shared memory say which
 * steps are there and which are used up, so that the warpgroups need not be at the same step: while one computes exponentials, the
 * tensor cores have the products of another one. On an H100 more warps helped, and products given ahead did not.
 *
 * There is one block for a multiprocessor, which takes one work after another. The rows of block i and those of block i from the end
 * have, with the triangle of causal attention, together the same number of steps for every i; so these two are one pair of works.
 * Which multiprocessor does a work changes no sum. */
#include "attention.cuh"
#include "kernels.h"
#include "launch.h"
#include "tiles.cuh"
#include "warpgroup.cuh"

#define GROUP_WARPS       (GROUP_THREADS / 32)
#define TILE_ELEMS        (TILE_ROWS * TILE_COLUMNS)
#define ROWS              TILE_ROWS /* of a warpgroup */
#define D                 TILE_COLUMNS
#define LD                (D + 8) /* of rows on their way out */
#define AHEAD             2       /* steps whose copies are under way and not told at a time */
#define HELD              2       /* steps that a warpgroup has not given back when it waits for the second of them */
#define COPYING_REGISTERS 24      /* of a thread of the group that copies */

/* The shared memory of a block with GROUPS computing warpgroups: OWN_TILES matrices of the rows that it owns, for this work and the next,
 * and the tiles of STAGES steps. With fewer stages the group that copies would wait for itself; with more it is ahead of the others. */
template <typename T, int GROUPS_, int OWN_TILES, int STAGES_> struct block_memory {
    static constexpr int GROUPS = GROUPS_, STAGES = STAGES_;
    static constexpr int OWN = GROUPS * ROWS, THREADS = (GROUPS + 1) * GROUP_THREADS; /* the last group copies */
    static constexpr int BEGINNING_REGISTERS = 65536 / THREADS / 8 * 8; /* of a thread, as the block has one multiprocessor for itself */
    static constexpr int REGISTERS = ((GROUPS + 1) * BEGINNING_REGISTERS - COPYING_REGISTERS) / GROUPS / 8 * 8; /* of one that computes */
    static_assert(STAGES >= AHEAD + HELD, "the group that copies would wait for itself");

    T        own[2][OWN_TILES][GROUPS][TILE_ELEMS];
    T        steps[STAGES][2][TILE_ELEMS];
    float    sums[STAGES][2][TILE_ROWS]; /* of back_kv: logarithms and deltas of a step's queries */
    T        leaving[GROUPS][ROWS][LD];
    float    columns[2][GROUPS][2][GROUP_WARPS][D]; /* sums of the columns of each warp's rows, of this work and of the one before */
    uint64_t own_there[2], own_used[2], there[STAGES], used[STAGES], columns_there[GROUPS];
};

/* As many stages as fit, and as many groups as their registers allow. */
template <typename T> using forward_memory = block_memory<T, 4, 1, 6>;
template <typename T> using back_q_memory  = block_memory<T, 2, 3, 6>;
template <typename T> using back_kv_memory = block_memory<T, 2, 2, 7>;

template <typename M> static constexpr size_t memory_bytes = sizeof(M) + TILE_ALIGN;

/* Makes the barriers. Blocks. */
template <typename M> __device__ __forceinline__ M *memory_begin(unsigned char *shared)
{
    M *m = (M *)(shared + (TILE_ALIGN - (uintptr_t)shared % TILE_ALIGN) % TILE_ALIGN);

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(&m->own_there[i], GROUP_THREADS);
            barrier_init(&m->own_used[i], M::GROUPS * GROUP_WARPS); /* one lane of each warp that computes */
        }
        for (int i = 0; i < M::STAGES; i++) {
            barrier_init(&m->there[i], GROUP_THREADS);
            barrier_init(&m->used[i], M::GROUPS * GROUP_WARPS);
        }
        for (int i = 0; i < M::GROUPS; i++) {
            barrier_init(&m->columns_there[i], GROUP_WARPS);
        }
    }
    __syncthreads();
    return m;
}

/* The rows [first, first + OWN) of a head. `turn` counts the works of this block. */
typedef struct work {
    int turn, sequence, head, first;
} work;

/* Calls what(work) for each work of this block, the same in every thread. Divides once, since a division takes long. */
template <typename M, typename What> __device__ __forceinline__ void works(int batch, int heads, int length, const What &what)
{
    const int blocks = (length + M::OWN - 1) / M::OWN, pairs = (blocks + 1) / 2, first = (int)blockIdx.x, by = (int)gridDim.x;
    const int by_pairs = by % pairs, by_heads = by / pairs % heads, by_sequences = by / pairs / heads;
    int       turn = 0, pair = first % pairs, head = first / pairs % heads, sequence = first / pairs / heads;
    bool      is_second = false;

    while (sequence < batch) {
        const int mirrored = blocks - 1 - pair;

        what(work{turn++, sequence, head, (is_second ? mirrored : pair) * M::OWN});
        is_second = !is_second && mirrored != pair;
        if (!is_second) {
            pair += by_pairs;
            head += by_heads + (pair >= pairs);
            pair -= pair >= pairs ? pairs : 0;
            sequence += by_sequences + (head >= heads);
            head -= head >= heads ? heads : 0;
        }
    }
}

/* Where a thread is in the ring of steps. `phase` counts the rounds. */
template <int STAGES> struct ring {
    int slot = 0, phase = 0;

    __device__ __forceinline__ void pass()
    {
        slot++;
        if (slot == STAGES) {
            slot = 0;
            phase++;
        }
    }
};

/* ---------------------------------------------------------- copying group - */

/* What a thread of the copying group has begun and has not told yet. */
template <typename M> struct copying {
    M               *m;
    ring<M::STAGES> begun = {}, told = {};
    int             under_way = 0; /* steps that were begun and not told */
    int             own_slot = 0, own_behind = 0; /* own rows are told with the step behind so many of these; 0: they are told */

    /* Tells the oldest step that was not told, when at most PENDING younger ones are under way. */
    template <int PENDING> __device__ __forceinline__ void tell()
    {
        copies_wait<PENDING>();
        copies_show();
        if (own_behind > 0 && --own_behind == 0) {
            barrier_arrive(&m->own_there[own_slot]);
        }
        barrier_arrive(&m->there[told.slot]);
        told.pass();
        under_way--;
    }

    /* Waits until the rows of the work before the last have been used, and returns where those of this work go. */
    __device__ __forceinline__ int own_begin(int turn)
    {
        if (own_behind > 0) { /* there is one step to remember */
            end();
        }
        own_slot   = turn % 2;
        own_behind = under_way + 1;
        barrier_wait(&m->own_used[own_slot], turn / 2 - 1);
        return own_slot;
    }

    /* Waits until the tiles of the next step can be overwritten, and returns their number. */
    __device__ __forceinline__ int step_begin()
    {
        barrier_wait(&m->used[begun.slot], begun.phase - 1);
        return begun.slot;
    }

    __device__ __forceinline__ void step_end()
    {
        copies_commit();
        begun.pass();
        under_way++;
        if (under_way > AHEAD) {
            tell<AHEAD>();
        }
    }

    __device__ __forceinline__ void end()
    {
        while (under_way > 0) {
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

    for (int key0 = 0; key0 < w.first + M::OWN && key0 < a.length; key0 += TILE_ROWS) {
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

/* The steps of a computing warp. */
template <typename M> struct computing {
    M              *m;
    ring<M::STAGES> next = {};
    int             before = 0, now = 0; /* where the tiles are of the last two steps */

    /* Waits for the next step. */
    __device__ __forceinline__ void wait()
    {
        barrier_wait(&m->there[next.slot], next.phase);
        before = now;
        now    = next.slot;
        next.pass();
    }

    __device__ __forceinline__ void give_back(int slot)
    {
        warp_arrive(&m->used[slot]);
    }

    /* Passes steps by whose tiles this group does not use. */
    __device__ __forceinline__ void pass(int count)
    {
        for (int i = 0; i < count; i++) {
            wait();
            give_back(now);
        }
    }
};

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

/* Exchanges with the lane that is WITH lanes away, and adds: of 2 HALF pairs each lane keeps the sums of those that its bit says. */
template <int HALF, int WITH> __device__ __forceinline__ void pairs_fold(float (&x)[D / 8][2])
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

/* Gives the sums of the columns of the warp's rows, as they are when they have left: times `factor`, and rounded. */
template <typename T>
__device__ __forceinline__ void columns_give(float *columns, const float (&acc)[D / 8][4], float factor)
{
    float x[D / 8][2];

#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        float low, high, low8, high8;

        pair_of<T>::split(pair_of<T>::join(acc[n][0] * factor, acc[n][1] * factor), &low, &high);
        pair_of<T>::split(pair_of<T>::join(acc[n][2] * factor, acc[n][3] * factor), &low8, &high8);
        x[n][0] = low + low8;
        x[n][1] = high + high8;
    }
    pairs_fold<4, 16>(x);
    pairs_fold<2, 8>(x);
    pairs_fold<1, 4>(x);
    *(float2 *)(columns + (int)threadIdx.x % 32 * 2) = float2{x[0][0], x[0][1]}; /* lane 4 n + t has columns 8 n + 2 t on */
}

/* The sums of columns that the warps of a group give for a work, of COUNT matrices. A warp stores its share of them when it has the
 * next work's, since by then all warps have given theirs; so none waits. */
template <typename M, int COUNT> struct summing {
    M     *m;
    int    group, apart; /* apart: elements from the sums of a matrix to those of the next one */
    int    turn = 0;     /* works that were given */
    float *to   = NULL;  /* where those go that were given last; NULL: they have been stored */

    /* Returns where this warp gives its sums of a matrix. Those of the work before have been stored. */
    __device__ __forceinline__ float *room(int matrix) const
    {
        return m->columns[turn % 2][group][matrix][(int)threadIdx.x % GROUP_THREADS / 32];
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
                const float(*of)[D] = m->columns[(turn - 1) % 2][group][i];

                to[i * apart + column] = of[0][column] + of[1][column] + of[2][column] + of[3][column];
            }
        }
        to = NULL;
    }
};

/* Returns where the sums of the columns of a head are, for the group whose rows begin with `own`. */
template <typename T>
__device__ __forceinline__ float *columns_of(const attention_typed<T> &a, const work &w, int own, int head)
{
    int chunks = (a.length + ROWS - 1) / ROWS;

    return a.columns + ((size_t)w.sequence * chunks + own / ROWS) * a.q_stride + head * D;
}

/* ---------------------------------------------------------------- forward -- */

template <typename T> __global__ void __launch_bounds__(forward_memory<T>::THREADS, 1) group_forward(const attention_typed<T> a, int batch)
{
    typedef forward_memory<T> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread();

    if (group == memory::GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works<memory>(batch, a.heads, a.length, [&](const work &w) {
            T(*own)[memory::GROUPS][TILE_ELEMS] = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length;

            rows_start<memory::OWN>(own[0][0], a.q + row0 * a.q_stride + w.head * D, a.q_stride, w.first, a.length);
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
    uint32_t p[D / 16][4];
    float    s[D / 8][4], y[D / 8][4];

    works<memory>(batch, a.heads, a.length, [&](const work &w) {
        int   own = w.first + group * ROWS; /* the first row of the group; `row` is the thread's first */
        int   row = own + warp * 16 + g;
        int   seen = tiles_before(own + ROWS, a.length), tiles = tiles_before(w.first + memory::OWN, a.length);
        float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

        const T *q = m->own[w.turn % 2][0][group];

        barrier_wait(&m->own_there[w.turn % 2], w.turn / 2);
        tile_zero(s);
        tile_zero(y);
        for (int tile = 0; tile < seen; tile++) {
            int key0 = tile * TILE_ROWS;

            steps.wait();
            scores_give(s, q, m->steps[steps.now][0]);
            group_wait<0>(s);
            group_wait<0>(y); /* of the step before, if there was one */
            if (tile > 0) {
                steps.give_back(steps.before);
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
        sums_store(m->leaving[group][warp * 16], y, 1.0f / low, 1.0f / high,
                   a.y + ((size_t)w.sequence * a.length * a.heads + w.head) * D, (size_t)a.heads * D, own + warp * 16, a.length);
    });
}

/* --------------------------------------------------------------- backward -- */

/* Computes dQ, and for each row delta = sum of dout * out, which back_kv reads. */
template <typename T> __global__ void __launch_bounds__(back_q_memory<T>::THREADS, 1) group_back_q(const attention_typed<T> a, int batch)
{
    typedef back_q_memory<T> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread();
    size_t  out_stride  = (size_t)a.heads * D;

    if (group == memory::GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works<memory>(batch, a.heads, a.length, [&](const work &w) {
            T(*own)[memory::GROUPS][TILE_ELEMS] = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length;

            rows_start<memory::OWN>(own[0][0], a.q + row0 * a.q_stride + w.head * D, a.q_stride, w.first, a.length);
            rows_start<memory::OWN>(own[1][0], a.dout + row0 * out_stride + w.head * D, out_stride, w.first, a.length);
            rows_start<memory::OWN>(own[2][0], a.out + row0 * out_stride + w.head * D, out_stride, w.first, a.length);
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
    uint32_t ds[D / 16][4];
    float    s[D / 8][4], dp[D / 8][4], dq[D / 8][4];

    works<memory>(batch, a.heads, a.length, [&](const work &w) {
        int    own = w.first + group * ROWS, row = own + warp * 16 + g;
        int    seen = tiles_before(own + ROWS, a.length), tiles = tiles_before(w.first + memory::OWN, a.length);
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
        tile_zero(s);
        tile_zero(dp);
        tile_zero(dq);
        for (int tile = 0; tile < seen; tile++) {
            int key0 = tile * TILE_ROWS;

            steps.wait();
            scores_give(s, q, m->steps[steps.now][0]);
            scores_give(dp, dout, m->steps[steps.now][1]);
            group_wait<2>(dq); /* of the step before */
            if (tile > 0) {
                steps.give_back(steps.before);
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
            rows_give(dq, ds, m->steps[steps.now][0]);
        }
        group_wait<0>(dq);
        warp_arrive(&m->own_used[w.turn % 2]);
        steps.give_back(steps.now);
        steps.pass(tiles - seen);
        sums_store(m->leaving[group][warp * 16], dq, a.scale, a.scale,
                   a.dq + (size_t)w.sequence * a.length * a.q_stride + w.head * D, a.q_stride, own + warp * 16, a.length);
        if (a.columns != NULL && own < a.length) {
            sums.store();
            columns_give<T>(sums.room(0), dq, a.scale);
            sums.given(columns_of(a, w, own, w.head));
        }
    });
    sums.store();
}

/* Computes dK and dV. The scores are transposed: keys are rows and queries are columns. Zeros past the length add nothing. */
template <typename T> __global__ void __launch_bounds__(back_kv_memory<T>::THREADS, 1) group_back_kv(const attention_typed<T> a, int batch)
{
    typedef back_kv_memory<T> memory;
    LLM_SHARED(shared);
    memory *m     = memory_begin<memory>(shared);
    int     group = group_of_thread(), readers = a.heads / a.kv_heads; /* heads that read a key */
    size_t  out_stride  = (size_t)a.heads * D;

    if (group == memory::GROUPS) {
        copying<memory> c{m};

        registers_give_up<COPYING_REGISTERS>();
        works<memory>(batch, a.kv_heads, a.length, [&](const work &w) {
            T(*own)[memory::GROUPS][TILE_ELEMS] = m->own[c.own_begin(w.turn)];
            const size_t row0 = (size_t)w.sequence * a.length, kv0 = row0 * a.kv_stride + w.head * D;

            rows_start<memory::OWN>(own[0][0], a.k + kv0, a.kv_stride, w.first, a.length);
            rows_start<memory::OWN>(own[1][0], a.v + kv0, a.kv_stride, w.first, a.length);
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

    registers_take<memory::REGISTERS>();
    int      warp = (int)threadIdx.x % GROUP_THREADS / 32;
    int      g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    computing<memory>  steps{m};
    summing<memory, 2> sums{m, group, a.kv_heads * D};
    float    factor = a.scale * LOG2_E;
    uint32_t p[D / 16][4], ds[D / 16][4];
    float    s[D / 8][4], dp[D / 8][4], dk[D / 8][4], dv[D / 8][4];

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

                int          query0 = w.first + tile * TILE_ROWS;
                const T     *q_tile = m->steps[steps.now][0], *do_tile = m->steps[steps.now][1];
                const float *logs = m->sums[steps.now][0] + 2 * t, *deltas = m->sums[steps.now][1] + 2 * t;

                scores_give(s, k, q_tile);
                scores_give(dp, v, do_tile);
                group_wait<2>(dv); /* of the step before */
                group_wait<2>(dk);
                if (tile > unseen) {
                    steps.give_back(steps.before);
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
                steps.give_back(steps.now);
            }
        }
        warp_arrive(&m->own_used[w.turn % 2]);

        T *leaving = m->leaving[group][warp * 16];

        sums_store(leaving, dk, a.scale, a.scale, a.dk + kv0, a.kv_stride, own + warp * 16, a.length);
        sums_store(leaving, dv, 1.0f, 1.0f, a.dv + kv0, a.kv_stride, own + warp * 16, a.length);
        if (a.columns != NULL && own < a.length) {
            sums.store();
            columns_give<T>(sums.room(0), dk, a.scale);
            columns_give<T>(sums.room(1), dv, 1.0f);
            sums.given(columns_of(a, w, own, a.heads + w.head));
        }
    });
    sums.store();
}

/* -------------------------------------------------------------- launchers -- */

template <typename M, typename T>
static void group_queue(void (*kernel)(attention_typed<T>, int), const attention_launch *a, size_t heads, cudaStream_t stream)
{
    size_t   blocks = blocks_of(a->shape.length, M::OWN), works = (blocks + 1) / 2 * heads * a->shape.batch;
    unsigned grid = (unsigned)(works < a->processors ? works : a->processors);

    LLM_LAUNCH(kernel, dim3(grid), dim3(M::THREADS), memory_bytes<M>, stream, attention_typed<T>(a), (int)a->shape.batch);
}

template <typename T> static void typed_queue(const attention_launch *a, cudaStream_t stream)
{
    if (a->dout == NULL) {
        group_queue<forward_memory<T>>(group_forward<T>, a, a->shape.heads, stream);
    } else {
        group_queue<back_q_memory<T>>(group_back_q<T>, a, a->shape.heads, stream);
        group_queue<back_kv_memory<T>>(group_back_kv<T>, a, a->shape.kv_heads, stream);
    }
}

bool attention_warpgroup_takes(const attention_launch *args)
{
    const heads_args *s = &args->shape;

    return args->dtype != SHERD_F32 && s->width == D && s->q_stride % 8 == 0 && s->kv_stride % 8 == 0;
}

bool attention_warpgroup_sums(const attention_launch *args)
{
    const heads_args *s = &args->shape;
    size_t            q_columns = s->heads * D, kv_columns = s->kv_heads * D, columns = q_columns + 2 * kv_columns, at = sherd_dtype_bytes(args->dtype);

    return attention_warpgroup_takes(args) && s->q_stride == columns && s->kv_stride == columns &&
           (char *)args->dk == (char *)args->dq + q_columns * at && (char *)args->dv == (char *)args->dk + kv_columns * at;
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
    return memory_bytes<forward_memory<bf16_t>> <= memory.block_bytes && memory_bytes<back_q_memory<bf16_t>> <= memory.block_bytes &&
           memory_bytes<back_kv_memory<bf16_t>> <= memory.block_bytes;
}

template <typename M, typename T> static void group_allow(void (*kernel)(attention_typed<T>, int), cudaError_t *error)
{
    if (*error == cudaSuccess) {
        *error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)memory_bytes<M>);
    }
}

template <typename T> static void typed_allow(cudaError_t *error)
{
    group_allow<forward_memory<T>>(group_forward<T>, error);
    group_allow<back_q_memory<T>>(group_back_q<T>, error);
    group_allow<back_kv_memory<T>>(group_back_kv<T>, error);
}

cudaError_t attention_warpgroup_prepare(void)
{
    cudaError_t error = cudaSuccess;

    typed_allow<bf16_t>(&error);
    typed_allow<f16_t>(&error);
    return error;
}
