/* Tensor cores, used directly: products of 16 x 16 by 16 x 8 tiles in registers, loads of their
 * operands from shared memory, and copies into shared memory that overlap with the arithmetic (PTX
 * ISA 7.0: mma.sync.m16n8k16, ldmatrix, cp.async; every device from compute capability 8.0 on).
 *
 * Registers of a warp, lane = 4 * g + t:
 *   a[0] rows g, columns 2t, 2t + 1 a[1] rows g + 8, the same columns a[2] rows g, columns 2t + 8,
 *   + 9 a[3] rows g + 8, the same columns b[0] rows 2t, 2t + 1, column g b[1] rows 2t + 8, + 9,
 *   column g c[0], c[1] row g, columns 2t, 2t + 1 c[2], c[3] row g + 8, the same columns
 * So two neighbouring c tiles, rounded and joined, are the a of a product that follows: scores
 * become the left side of scores x values without leaving the registers. The emulator of the tests
 * has the same functions in plain C, from the tables of the PTX manual. */
#ifndef LLM_CUDA_TENSOR_CUH
#define LLM_CUDA_TENSOR_CUH

#include "elements.cuh"

#ifdef SHERD_EMULATOR

/* The values that the lanes of a warp exchange. The emulator executes all threads of a block on one
 * thread of the system. */
typedef struct warp_exchange {
    const void *at[32];
    float       a[32][4][2], b[32][2][2]; /* halves of words, converted once for all lanes */
} warp_exchange;

static inline warp_exchange *exchange_of_warp(void)
{
    static thread_local warp_exchange warps[32];

    return &warps[threadIdx.x / 32];
}

template <typename T>
static inline void tile_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    warp_exchange *x    = exchange_of_warp();
    int            lane = (int)threadIdx.x % 32;
    float          sums[4];

    memcpy(sums, c, sizeof(sums));
    for (int i = 0; i < 4; i++) {
        pair_of<T>::split(a[i], &x->a[lane][i][0], &x->a[lane][i][1]);
    }
    pair_of<T>::split(b0, &x->b[lane][0][0], &x->b[lane][0][1]);
    pair_of<T>::split(b1, &x->b[lane][1][0], &x->b[lane][1][1]);
    __syncwarp();
    /* four sums at a time, since each addition waits for the one before it */
    for (int k = 0; k < 16; k++) {
        int from = k % 8 / 2;

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            int row = lane / 4, column = lane % 4 * 2 + i % 2;

            sums[i] += x->a[row * 4 + from][i / 2 + k / 8 * 2][k % 2] *
                       x->b[column * 4 + from][k / 8][k % 2];
        }
    }
    memcpy(c, sums, sizeof(sums));
    __syncwarp();
}

/* Loads four 8 x 8 matrices. Lane l points to row l % 8 of matrix l / 8. */
static inline void matrices_load(uint32_t (&to)[4], const void *row)
{
    warp_exchange *x    = exchange_of_warp();
    int            lane = (int)threadIdx.x % 32;

    emulator_shared_at(row, 16);
    x->at[lane] = row;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        memcpy(&to[i], (const char *)x->at[i * 8 + lane / 4] + lane % 4 * 4, 4);
    }
    __syncwarp();
}

static inline void matrices_load_flipped(uint32_t (&to)[4], const void *row)
{
    warp_exchange *x    = exchange_of_warp();
    int            lane = (int)threadIdx.x % 32;

    emulator_shared_at(row, 16);
    x->at[lane] = row;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        for (int half = 0; half < 2; half++) {
            memcpy((char *)&to[i] + 2 * half,
                   (const char *)x->at[i * 8 + lane % 4 * 2 + half] + lane / 4 * 2, 2);
        }
    }
    __syncwarp();
}

static inline void copy_start(void *to, const void *from, bool is_there)
{
    emulator_copy_start(to, from, 16, is_there);
}

static inline void copies_commit(void)
{
    emulator_copies_commit();
}

template <int PENDING> static inline void copies_wait(void)
{
    emulator_copies_wait(PENDING);
}

#else

/* c += a . b */
template <typename T>
__device__ __forceinline__ void tile_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1);

template <>
__device__ __forceinline__ void tile_multiply<bf16_t>(float (&c)[4], const uint32_t (&a)[4],
                                                      uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void tile_multiply<f16_t>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads four 8 x 8 matrices. Lane l points to row l % 8 of matrix l / 8. to[i] receives row g,
 * columns 2t and 2t + 1 of matrix i.
 */
__device__ __forceinline__ void matrices_load(uint32_t (&to)[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/* The same, transposed: to[i] receives rows 2t and 2t + 1, column g of matrix i. */
__device__ __forceinline__ void matrices_load_flipped(uint32_t (&to)[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/* Starts a copy of sixteen bytes to shared memory, which overlaps with the work of this thread. If
 * is_there is false, zeros are written; `from` is not read then, but must be a valid address. */
__device__ __forceinline__ void copy_start(void *to, const void *from, bool is_there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(at), "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}

/* Ends a group of copies. */
__device__ __forceinline__ void copies_commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Waits until at most PENDING groups of this thread are not complete. */
template <int PENDING> __device__ __forceinline__ void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

#endif

/* Returns where this lane points to load the four registers of an a tile at (row, column) of a
 * row-major matrix in shared memory. The four matrices begin at (0, 0), (8, 0), (0, 8) and (8, 8)
 * of the tile. */
template <typename T> __device__ __forceinline__ const T *left_at(const T *tile, int stride, int row, int column)
{
    int lane = (int)threadIdx.x % 32;

    return tile + (row + lane % 16) * stride + column + lane / 16 * 8;
}

/* The same for the b of two neighbouring products, if the columns of b are rows of the matrix, so
 * that k is along the memory. The four matrices begin at (0, 0), (0, 8), (8, 0) and (8, 8).
 * Registers 0 and 1 are for the first product, 2 and 3 for the second. */
template <typename T> __device__ __forceinline__ const T *right_at(const T *tile, int stride, int row, int column)
{
    int lane = (int)threadIdx.x % 32;

    return tile + (row + lane / 16 * 8 + lane % 8) * stride + column + lane / 8 % 2 * 8;
}

/* The same if the rows of b are rows of the matrix, which matrices_load_flipped transposes. The
 * four matrices begin at (0, 0), (8, 0), (0, 8) and (8, 8). */
template <typename T>
__device__ __forceinline__ const T *right_flipped_at(const T *tile, int stride, int row, int column)
{
    return left_at(tile, stride, row, column);
}

#endif
