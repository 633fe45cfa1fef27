/* Products by warpgroups: four warps give the tensor cores a product of 64 x 64 elements and go on
 * with other work until they wait for it. Also barriers in shared memory, by which warps that copy
 * and warps that compute meet without stopping the whole block (PTX ISA 8.0: wgmma, mbarrier;
 * compute capability 9.0 alone, compiled as sm_90a).
 *
 * The sums are in registers, in the layout of tensor.cuh; warp w of the group has rows [16 w, 16 w
 * + 16). So is a left side that the group has just computed. A left side that is constant for many
 * products is in shared memory like right sides (ptxas 12.9 and 13.0 were seen to assign its
 * registers to other values). In shared memory a side is a tile of 64 rows of 64 elements that
 * begins at a multiple of 1024 bytes; rows of 128 elements are two tiles, one after the other, of
 * which the second has the elements from 64 on. In row r of a tile, the eight elements from 8 c on
 * are at 8 (c ^ r % 8), so that neither a column of them nor a row meets one bank twice (the layout
 * that PTX calls 128-byte swizzling).
 *
 * A group of products: group_begin, multiplications, group_commit. Until group_wait<N> has said
 * that the group is over (all but the last N are), its sums are not there, and its tiles and left
 * sides must stay as they are. The emulator of the tests computes a product when it is waited for,
 * from what its tile has then. */
#ifndef LLM_CUDA_WARPGROUP_CUH
#define LLM_CUDA_WARPGROUP_CUH

#include "tensor.cuh"

#include <type_traits>

#define GROUP_THREADS 128
#define TILE_ROWS     64
#define TILE_COLUMNS  64
#define TILE_ELEMS    (TILE_ROWS * TILE_COLUMNS)
#define TILE_ALIGN    1024 /* bytes */

/* Returns where the eight elements from 8 * c on of row r are, in elements from the beginning of
 * the tile. */
__device__ __forceinline__ int swizzled(int r, int c)
{
    return r * TILE_COLUMNS + ((c ^ r % 8) * 8);
}

/* Returns where this lane points to load the four registers of an a tile at (row, 16 * step) of a
 * tile (left_at in tensor.cuh). */
template <typename T> __device__ __forceinline__ const T *left_swizzled_at(const T *tile, int row, int step)
{
    int lane = (int)threadIdx.x % 32;

    return tile + swizzled(row + lane % 16, step * 2 + lane / 16);
}

/* Returns the number of this thread's warpgroup, as a number that is known to be the same in its
 * warp. */
__device__ __forceinline__ int group_of_thread(void)
{
    return __shfl_sync(WARP_ALL, (int)threadIdx.x / GROUP_THREADS, 0);
}

#ifdef SHERD_EMULATOR

#define GROUP_MOST_THREADS  512
#define GROUP_MOST_PRODUCTS 64

typedef struct group_product {
    float (*c)[4];
    int         columns; /* of c: of one tile or of two */
    uint32_t    a[4];
    const void *left; /* NULL: a */
    const void *tile;
    int         step;
    bool        is_flipped, is_added;
    void (*compute)(const struct group_product *p);
} group_product;

/* The products that one thread has issued and not waited for. */
typedef struct group_pending {
    group_product products[GROUP_MOST_PRODUCTS];
    unsigned      given, groups, ends[GROUP_MOST_PRODUCTS];
} group_pending;

/* The sides of a product as floats, converted once for all lanes of a warp. */
typedef struct group_sides {
    float left[16][16], right[16][2 * TILE_COLUMNS];
} group_sides;

static inline group_pending *group_pending_of_thread(void)
{
    static thread_local group_pending threads[GROUP_MOST_THREADS];

    return &threads[threadIdx.x];
}

template <typename T> static inline void group_compute(const group_product *p)
{
    static thread_local group_sides warps[GROUP_MOST_THREADS / 32];
    group_sides *sides = &warps[threadIdx.x / 32];
    int          lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

    for (int i = 0; i < 4; i++) {
        int      row = g + i % 2 * 8, column = 2 * t + i / 2 * 8;
        float   *to  = &sides->left[row][column];
        uint32_t a   = p->a[i];

        if (p->left != NULL) {
            row += (int)threadIdx.x % GROUP_THREADS / 32 * 16;
            column += p->step * 16;
            memcpy(&a, (const T *)p->left + swizzled(row, column / 8) + column % 8, sizeof(a));
        }
        pair_of<T>::split(a, &to[0], &to[1]);
    }
    for (int i = lane; i < 16 * p->columns; i += 32) {
        int      k = i / p->columns, n = i % p->columns;
        int      row = p->is_flipped ? p->step * 16 + k : n, column = p->is_flipped ? n : p->step * 16 + k;
        const T *tile = (const T *)p->tile + column / TILE_COLUMNS * TILE_ELEMS;

        sides->right[k][n] = float_get(tile[swizzled(row, column % TILE_COLUMNS / 8) + column % 8]);
    }
    __syncwarp();
    for (int n = 0; n < p->columns / 8; n++) {
        for (int i = 0; i < 4; i++) {
            float sum = p->is_added ? p->c[n][i] : 0.0f;

            for (int k = 0; k < 16; k++) {
                sum += sides->left[g + i / 2 * 8][k] * sides->right[k][n * 8 + 2 * t + i % 2];
            }
            p->c[n][i] = sum;
        }
    }
    __syncwarp();
}

template <int N> static inline void group_begin(float (&)[N][4])
{
}

static inline void left_settle(uint32_t (&)[4][4])
{
}

static inline void group_give(const group_product *p)
{
    group_pending *mine = group_pending_of_thread();

    assert(mine->given < GROUP_MOST_PRODUCTS && (uintptr_t)p->tile % TILE_ALIGN == 0 && (uintptr_t)p->left % TILE_ALIGN == 0);
    emulator_shared_at(p->tile, TILE_ALIGN);
    mine->products[mine->given++] = *p;
}

template <typename T, int N>
static inline void group_add(float (&c)[N][4], const uint32_t (&a)[4], const T *tile, int step)
{
    group_product p = {c, N * 8, {a[0], a[1], a[2], a[3]}, NULL, tile, step, true, true, group_compute<T>};

    group_give(&p);
}

template <typename T, bool IS_ADDED>
static inline void group_multiply(float (&c)[8][4], const T *left, const T *tile, int step)
{
    group_product p = {c, TILE_COLUMNS, {}, left, tile, step, false, IS_ADDED, group_compute<T>};

    emulator_shared_at(left, TILE_ALIGN);
    group_give(&p);
}

static inline void group_commit(void)
{
    group_pending *mine = group_pending_of_thread();

    mine->ends[mine->groups++] = mine->given;
}

template <int PENDING, int N> static inline void group_wait(float (&)[N][4])
{
    group_pending *mine = group_pending_of_thread();
    unsigned       over = mine->groups > PENDING ? mine->groups - PENDING : 0;
    unsigned       end  = over > 0 ? mine->ends[over - 1] : 0;

    for (unsigned i = 0; i < end; i++) {
        mine->products[i].compute(&mine->products[i]);
    }
    for (unsigned i = end; i < mine->given; i++) {
        mine->products[i - end] = mine->products[i];
    }
    for (unsigned i = over; i < mine->groups; i++) {
        mine->ends[i - over] = mine->ends[i] - end;
    }
    mine->given -= end;
    mine->groups -= over;
}

template <int REGISTERS> static inline void registers_give_up(void)
{
}

template <int REGISTERS> static inline void registers_take(void)
{
}

static inline void barrier_init(uint64_t *barrier, unsigned arrivals)
{
    emulator_mbarrier_init(barrier, arrivals);
}

static inline void barrier_arrive(uint64_t *barrier)
{
    emulator_mbarrier_arrive(barrier);
}

static inline void barrier_wait(uint64_t *barrier, int phase)
{
    emulator_mbarrier_wait(barrier, phase);
}

static inline bool barrier_is_over(uint64_t *barrier, int phase)
{
    return emulator_mbarrier_is_over(barrier, phase);
}

static inline void copies_show(void)
{
}

static inline void word_copy_start(void *to, const void *from, bool is_there)
{
    emulator_copy_start(to, from, 4, is_there);
}

#else

#define GROUP_SUMS(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define GROUP_ALL_SUMS(c)                                                                                                      \
    GROUP_SUMS(c, 0), GROUP_SUMS(c, 1), GROUP_SUMS(c, 2), GROUP_SUMS(c, 3), GROUP_SUMS(c, 4), GROUP_SUMS(c, 5), GROUP_SUMS(c, 6), \
        GROUP_SUMS(c, 7)
#define GROUP_ALL_WIDE_SUMS(c)                                                                                                 \
    GROUP_ALL_SUMS(c), GROUP_SUMS(c, 8), GROUP_SUMS(c, 9), GROUP_SUMS(c, 10), GROUP_SUMS(c, 11), GROUP_SUMS(c, 12),            \
        GROUP_SUMS(c, 13), GROUP_SUMS(c, 14), GROUP_SUMS(c, 15)

/* Keeps the compiler from moving what it does with the registers of sums across this line. */
template <int N> __device__ __forceinline__ void sums_settle(float (&c)[N][4])
{
    static_assert(N == 8 || N == 16, "64 columns or 128");
    if constexpr (N == 8) {
        asm volatile("" : GROUP_ALL_SUMS(c) : : "memory");
    } else {
        asm volatile("" : GROUP_ALL_WIDE_SUMS(c) : : "memory");
    }
}

/* Begins a group: the values that this thread wrote to the registers of sums are visible to its
 * products. */
template <int N> __device__ __forceinline__ void group_begin(float (&c)[N][4])
{
    sums_settle(c);
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

/* The same for left sides that were computed; goes before group_begin. */
__device__ __forceinline__ void left_settle(uint32_t (&a)[4][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]) : : "memory");
    }
}

/* Returns the description of a tile as a side: its begin, in units of 16 bytes, swizzled by 128
 * bytes, eight rows 1024 bytes after the eight before them. The field between says how far 64
 * columns are from the next 64: a tile, where columns of both tiles are the columns of a product;
 * it is not used elsewhere. */
template <int TILES = 1> __device__ __forceinline__ uint64_t side_described(const void *at)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(at);
    uint64_t apart   = TILES == 1 ? 1 : TILE_ELEMS * 2 >> 4;

    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | apart << 16 | (address & 0x3ffff) >> 4;
}

/* A product whose left side are the operands `left`, "%32" and so on; `rest` are those after the
 * right side. */
#define GROUP_PRODUCT(type, left, right, rest)                                                                                 \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "                                                            \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                                  \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " left ", " right ", " rest ";"
#define GROUP_WIDE_PRODUCT(type, left, right, rest)                                                                            \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                                  \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                                         \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                         \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " left ", " right ", " rest ";"
#define GROUP_ADD(type)                                                                                                        \
    asm volatile(GROUP_PRODUCT(type, "{%32, %33, %34, %35}", "%36", "1, 1, 1, 1")                                              \
                 : GROUP_ALL_SUMS(c)                                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right)                                                      \
                 : "memory")
#define GROUP_WIDE_ADD(type)                                                                                                   \
    asm volatile(GROUP_WIDE_PRODUCT(type, "{%64, %65, %66, %67}", "%68", "1, 1, 1, 1")                                         \
                 : GROUP_ALL_WIDE_SUMS(c)                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right)                                                      \
                 : "memory")
#define GROUP_MULTIPLY(type)                                                                                                   \
    asm volatile("{.reg .pred is_added;\n"                                                                                     \
                 "setp.ne.b32 is_added, %34, 0;\n" GROUP_PRODUCT(type, "%32", "%33", "is_added, 1, 1, 0, 0") "}\n"             \
                 : GROUP_ALL_SUMS(c)                                                                                           \
                 : "l"(a), "l"(b), "r"(IS_ADDED ? 1 : 0)                                    \
                 : "memory")

/* Gives c += a . b: a are sixteen columns that the registers hold, b are rows 16 * step to 16 *
 * step + 15 of the tile, or of two. */
template <typename T, int N>
__device__ __forceinline__ void group_add(float (&c)[N][4], const uint32_t (&a)[4], const T *tile, int step)
{
    uint64_t right = side_described<N / 8>(tile) + step * (16 * TILE_COLUMNS * 2 >> 4);

    if constexpr (N == 8 && std::is_same<T, bf16_t>::value) {
        GROUP_ADD("bf16");
    } else if constexpr (N == 8) {
        GROUP_ADD("f16");
    } else if constexpr (std::is_same<T, bf16_t>::value) {
        GROUP_WIDE_ADD("bf16");
    } else {
        GROUP_WIDE_ADD("f16");
    }
}

/* Gives c = a . b' or, if IS_ADDED, c += a . b': a and b are columns 16 * step to 16 * step + 15 of
 * the tiles. */
template <typename T, bool IS_ADDED>
__device__ __forceinline__ void group_multiply(float (&c)[8][4], const T *left, const T *tile, int step)
{
    uint64_t a = side_described(left) + step * (16 * 2 >> 4), b = side_described(tile) + step * (16 * 2 >> 4);

    if constexpr (std::is_same<T, bf16_t>::value) {
        GROUP_MULTIPLY("bf16");
    } else {
        GROUP_MULTIPLY("f16");
    }
}

/* Ends a group. */
__device__ __forceinline__ void group_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

/* Waits until at most PENDING groups of this thread are not over. c: sums of a group that is over
 * then, which is used after this. */
template <int PENDING, int N> __device__ __forceinline__ void group_wait(float (&c)[N][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(PENDING) : "memory");
    sums_settle(c); /* nobody reads them before */
}

/* Every thread of a warpgroup retains this number of registers, a multiple of 8, and returns the
 * rest to the block. */
template <int REGISTERS> __device__ __forceinline__ void registers_give_up(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

/* Waits until the block has them, so that every thread of a warpgroup has this number of them. */
template <int REGISTERS> __device__ __forceinline__ void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

/* A barrier has phases, from 0 on. A phase is over when `arrivals` threads have arrived in it. One
 * thread initialises the barrier, and others use it after __syncthreads. */
__device__ __forceinline__ void barrier_init(uint64_t *barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(barrier)), "r"(arrivals)
                 : "memory");
}

/* Arrives: the earlier writes of this thread are visible to threads that wait for the phase. */
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(barrier))
                 : "memory");
}

/* Waits until this phase is over; it is the current one or the one before. So a wait for phase -1
 * of a new barrier is over at once. */
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, int phase)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier), is_over;

    do {
        asm volatile("{.reg .pred is_over;\n"
                     "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 is_over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, is_over;}\n"
                     : "=r"(is_over)
                     : "r"(at), "r"(phase & 1)
                     : "memory");
    } while (is_over == 0);
}

/* Returns whether the phase is over, without waiting. */
__device__ __forceinline__ bool barrier_is_over(uint64_t *barrier, int phase)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier), is_over;

    asm volatile("{.reg .pred is_over;\n"
                 "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 is_over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, is_over;}\n"
                 : "=r"(is_over)
                 : "r"(at), "r"(phase & 1)
                 : "memory");
    return is_over != 0;
}

/* Shows the copies that this thread has waited for to the products of those who wait for its next
 * arrival. */
__device__ __forceinline__ void copies_show(void)
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* The same as copy_start for four bytes. */
__device__ __forceinline__ void word_copy_start(void *to, const void *from, bool is_there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(at), "l"(from), "r"(is_there ? 4 : 0) : "memory");
}

#endif

#endif
