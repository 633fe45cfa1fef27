/* A block of warpgroups on one multiprocessor, which takes one work after another: one group copies
 * tiles to shared memory, the others compute with them. Barriers in shared memory say which tiles
 * are there and which are used up. The kernel decides the contents of the tiles. */
#ifndef LLM_CUDA_WARPGROUP_BLOCK_CUH
#define LLM_CUDA_WARPGROUP_BLOCK_CUH

#include "warpgroup.cuh"

#define GROUP_WARPS       (GROUP_THREADS / 32)
#define LEAVING_COLUMNS   (TILE_COLUMNS + 8) /* of rows on their way out, so that they meet other banks */
#define HELD              2                  /* steps that a warpgroup has not released when it waits for the second of them */
#define COPYING_REGISTERS 24                 /* of a thread of the group that copies */

/* Arrays for which only blocks with one tile per row have room. */
template <typename T, int TILES, int GROUPS> struct block_leaving {
};

template <typename T, int GROUPS> struct block_leaving<T, 1, GROUPS> {
    T leaving[GROUPS][TILE_ROWS][LEAVING_COLUMNS];
    /* Sums of the columns of each warp's rows, of this work and of the one before, for two
     * matrices. */
    float columns[2][GROUPS][2][GROUP_WARPS][TILE_COLUMNS];
};

/* The shared memory of a block with GROUPS computing warpgroups, for rows of TILES tiles: OWN_TILES
 * matrices of the rows that it owns, for this work and the next, and two matrices of 64 rows for
 * each of STAGES steps. At most AHEAD steps have copies that are in flight and not signalled. With
 * fewer stages the group that copies would wait for itself; with more it is ahead of the others. */
template <typename T, int TILES_, int GROUPS_, int OWN_TILES, int STAGES_, int AHEAD_ = 2> struct block_memory {
    static constexpr int TILES = TILES_, GROUPS = GROUPS_, STAGES = STAGES_, AHEAD = AHEAD_;
    /* the last group copies */
    static constexpr int OWN = GROUPS * TILE_ROWS, THREADS = (GROUPS + 1) * GROUP_THREADS;
    /* of a thread, as the block has one multiprocessor for itself */
    static constexpr int BEGINNING_REGISTERS = 65536 / THREADS / 8 * 8;
    static constexpr int REGISTERS = ((GROUPS + 1) * BEGINNING_REGISTERS - COPYING_REGISTERS) / GROUPS / 8 * 8; /* of one that computes */
    /* forward has no room for those that it does not use */
    static constexpr bool HAS_SUMS = TILES == 1 || OWN_TILES > 1;
    static constexpr bool HAS_FEW_STAGES = STAGES <= AHEAD + HELD + 1;
    static_assert(STAGES >= AHEAD + HELD, "the group that copies would wait for itself");

    T        own[2][OWN_TILES][GROUPS][TILES * TILE_ELEMS];
    T        steps[STAGES][2][TILES * TILE_ELEMS];
    float    sums[HAS_SUMS ? STAGES : 1][2][TILE_ROWS]; /* two numbers for each row of a step */
    block_leaving<T, TILES, GROUPS> out;

    uint64_t own_there[2], own_used[2], there[STAGES], used[STAGES], columns_there[GROUPS];
};

template <typename M> static constexpr size_t memory_bytes = sizeof(M) + TILE_ALIGN;

/* Makes the barriers. Blocks. */
template <typename M> __device__ __forceinline__ M *memory_begin(unsigned char *shared)
{
    M *m = (M *)(shared + (TILE_ALIGN - (uintptr_t)shared % TILE_ALIGN) % TILE_ALIGN);

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(&m->own_there[i], GROUP_THREADS);
            /* one lane of each warp that computes */
            barrier_init(&m->own_used[i], M::GROUPS * GROUP_WARPS);
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

/* Calls what(work) for each work of this block, the same in every thread. Divides once, since a
 * division takes long. */
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

/* The same where a block has few works, so that one more or less is a large part: the last rows of
 * all heads, which take longest, come first, and of those that come at the same time the blocks
 * take theirs in one order and then in the other. So all heads come at once; where the rows that
 * they read are too many to stay in the cache, `is_sorted` is false, and pairs come one after the
 * other as above. */
template <typename M, typename What>
__device__ __forceinline__ void works_sorted(int batch, int heads, int length, bool is_sorted, const What &what)
{
    const int blocks = (length + M::OWN - 1) / M::OWN, pairs = (blocks + 1) / 2, b = (int)blockIdx.x, by = (int)gridDim.x;
    const int end = batch * heads * (is_sorted ? blocks : pairs);

    for (int turn = 0, at = b, is_second = 0; at < end; turn++) {
        const int each = is_sorted ? batch * heads : pairs, high = at / each, low = at % each;
        /* a head, and which work or pair of it */
        const int row = is_sorted ? low : high, of_row = is_sorted ? high : low;
        const int mirrored = blocks - 1 - of_row, block = is_sorted || is_second ? mirrored : of_row;

        what(work{turn, row / heads, row % heads, block * M::OWN});
        if (is_sorted) {
            at += turn % 2 ? 2 * b + 1 : 2 * (by - b) - 1;
        } else if (is_second || mirrored == of_row) {
            is_second = 0;
            at += by;
        } else {
            is_second = 1;
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

/* The steps that a thread of the copying group has begun and not signalled yet. */
template <typename M> struct copying {
    M               *m;
    ring<M::STAGES> begun = {}, signalled = {};
    int             under_way = 0; /* steps that were begun and not signalled */
    /* own rows are signalled with the step after this number of them; 0: they are signalled */
    int             own_slot = 0, own_behind = 0;

    /* Signals the oldest step that is not signalled, when at most PENDING younger ones are in
     * flight. */
    template <int PENDING> __device__ __forceinline__ void signal()
    {
        copies_wait<PENDING>();
        copies_show();
        if (own_behind > 0 && --own_behind == 0) {
            barrier_arrive(&m->own_there[own_slot]);
        }
        barrier_arrive(&m->there[signalled.slot]);
        signalled.pass();
        under_way--;
    }

    /* Waits until the rows of the work before the last have been used, and returns where those of
     * this work go. */
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

    /* Waits until the tiles of the next step can be overwritten, and returns their number. With few
     * stages, the steps before are signalled first: the warps that have to consume these tiles may
     * be waiting for one of them. */
    __device__ __forceinline__ int step_begin()
    {
        if (M::HAS_FEW_STAGES && !__all_sync(WARP_ALL, barrier_is_over(&m->used[begun.slot], begun.phase - 1))) {
            end();
        }
        barrier_wait(&m->used[begun.slot], begun.phase - 1);
        return begun.slot;
    }

    __device__ __forceinline__ void step_end()
    {
        copies_commit();
        begun.pass();
        under_way++;
        if (under_way > M::AHEAD) {
            signal<M::AHEAD>();
        }
    }

    __device__ __forceinline__ void end()
    {
        while (under_way > 0) {
            signal<0>();
        }
    }
};

/* Starts copying rows [first, first + COUNT) of a matrix, of TILES tiles each, 64 rows after the
 * other. Rows past the length are zeros. */
template <int COUNT, int TILES, typename T>
__device__ __forceinline__ void rows_start(T *to, const T *from, size_t stride, int first, int length)
{
    /* sixteen rows at a time, eight threads a row: `c` and the order in a row are the same in all
     * of a thread's rows */
    const int thread = (int)threadIdx.x % GROUP_THREADS, r0 = thread / 8, c = thread % 8;
    const T  *row = from + (size_t)(first + r0) * stride + c * 8;

    to += swizzled(r0, c);
#pragma unroll
    for (int r = 0; r < COUNT; r += GROUP_THREADS / 8) {
        bool is_there = first + r0 + r < length;

#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            copy_start(to + (r / TILE_ROWS * TILES + tile) * TILE_ELEMS + r % TILE_ROWS * TILE_COLUMNS,
                       is_there ? row + tile * TILE_COLUMNS : from, is_there);
        }
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

/* -------------------------------------------------------- computing warps -- */

/* Signals for this warp that it has consumed the tiles of the barrier. */
__device__ __forceinline__ void warp_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(barrier);
    }
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

#endif
