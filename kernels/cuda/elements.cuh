/* Shared by all kernels: vectors of four elements of any type, sums over the threads of a thread
 * block, launches.
 *
 * Element types are known at run time and are the same for all threads. So choosing a load by the
 * type is a predicate, and one kernel serves all types. Kernels issue the loads of several vectors
 * before they use the first one. */
#ifndef SHERDI_KERNELS_CUDA_ELEMENTS_CUH
#define SHERDI_KERNELS_CUDA_ELEMENTS_CUH

#include "kernels/cuda/launch.h"

/* Threads of a thread block, for every kernel. */
#define BLOCK_THREADS 256
#define BLOCK_WARPS   (BLOCK_THREADS / 32)
#define ALL_LANES     0xffffffffu
/* Elements of one access: 16 bytes of fp32, 8 of the others. */
#define VECTOR_ELEMS 4

/* The type of integers that atomics add: 64 bits, on the device and on the host. Indices are
 * size_t. */
typedef unsigned long long bin_t;

/* ----------------------------------------------------------- elements -- */

/* The bits of four elements; those of a 16-bit type are in the first two words. */
typedef uint4 packed4;

static inline __device__ packed4 packed_load(const void *array, sherd_dtype dtype, size_t index)
{
    packed4 x = {0, 0, 0, 0};

    if (dtype == SHERD_F32) {
        x = *(const uint4 *)((const uint32_t *)array + index);
    } else {
        uint2 two = *(const uint2 *)((const uint16_t *)array + index);

        x.x = two.x;
        x.y = two.y;
    }
    return x;
}

static inline __device__ float half_widen(uint32_t bits, sherd_dtype dtype)
{
    return dtype == SHERD_BF16 ? sherdi_cast_bf16_f32((uint16_t)bits)
                               : sherdi_cast_f16_f32((uint16_t)bits);
}

/* One branch serves all four elements. */
static inline __device__ float4 packed_widen(packed4 x, sherd_dtype dtype)
{
    if (dtype == SHERD_F32) {
        return make_float4(sherdi_f32_from_bits(x.x), sherdi_f32_from_bits(x.y),
                           sherdi_f32_from_bits(x.z), sherdi_f32_from_bits(x.w));
    }
    if (dtype == SHERD_BF16) {
        return make_float4(sherdi_cast_bf16_f32((uint16_t)(x.x & 0xffffu)),
                           sherdi_cast_bf16_f32((uint16_t)(x.x >> 16)),
                           sherdi_cast_bf16_f32((uint16_t)(x.y & 0xffffu)),
                           sherdi_cast_bf16_f32((uint16_t)(x.y >> 16)));
    }
    return make_float4(sherdi_cast_f16_f32((uint16_t)(x.x & 0xffffu)),
                       sherdi_cast_f16_f32((uint16_t)(x.x >> 16)),
                       sherdi_cast_f16_f32((uint16_t)(x.y & 0xffffu)),
                       sherdi_cast_f16_f32((uint16_t)(x.y >> 16)));
}

static inline __device__ uint32_t half_narrow(float x, sherd_dtype dtype)
{
    return dtype == SHERD_BF16 ? sherdi_cast_f32_bf16(x) : sherdi_cast_f32_f16(x);
}

static inline __device__ uint32_t pair_of(uint16_t low, uint16_t high)
{
    return low | (uint32_t)high << 16;
}

/* Stores four elements, rounded to `dtype`, at a multiple of their size. */
static inline __device__ void vector_store(void *array, sherd_dtype dtype, size_t index, float4 x)
{
    if (dtype == SHERD_F32) {
        *(float4 *)((float *)array + index) = x;
    } else if (dtype == SHERD_BF16) {
        *(uint2 *)((uint16_t *)array + index) =
            make_uint2(pair_of(sherdi_cast_f32_bf16(x.x), sherdi_cast_f32_bf16(x.y)),
                       pair_of(sherdi_cast_f32_bf16(x.z), sherdi_cast_f32_bf16(x.w)));
    } else {
        *(uint2 *)((uint16_t *)array + index) =
            make_uint2(pair_of(sherdi_cast_f32_f16(x.x), sherdi_cast_f32_f16(x.y)),
                       pair_of(sherdi_cast_f32_f16(x.z), sherdi_cast_f32_f16(x.w)));
    }
}

static inline __device__ float element_load(const void *array, sherd_dtype dtype, size_t index)
{
    return dtype == SHERD_F32 ? ((const float *)array)[index]
                              : half_widen(((const uint16_t *)array)[index], dtype);
}

static inline __device__ void element_store(void *array, sherd_dtype dtype, size_t index, float x)
{
    if (dtype == SHERD_F32) {
        ((float *)array)[index] = x;
    } else {
        ((uint16_t *)array)[index] = (uint16_t)half_narrow(x, dtype);
    }
}

/* Rounds to the nearest value of `dtype`. */
static inline __device__ float element_round(float x, sherd_dtype dtype)
{
    return dtype == SHERD_F32 ? x : half_widen(half_narrow(x, dtype), dtype);
}

/* Returns whether vectors may start at element 0 of an array. */
static inline int is_vector_start(const void *array, sherd_dtype dtype)
{
    return (uintptr_t)array % (VECTOR_ELEMS * (dtype == SHERD_F32 ? 4 : 2)) == 0;
}

/* ----------------------------------------------------------- sums -- */

/* Returns the sum over the threads of a group of `group` neighbours in a warp, to each of them. All
 * threads of the warp call it. */
static inline __device__ bin_t lanes_sum(bin_t x, int group)
{
    for (int by = group / 2; by > 0; by /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, by);
    }
    return x;
}

/* Adds every thread's share to *sum, modulo 2^64, by one atomic addition of integers per thread
 * block. All threads of the thread block call it. A second call in a kernel needs a barrier
 * before. */
static inline __device__ void block_sum(bin_t share, bin_t *sum)
{
    __shared__ bin_t warps[BLOCK_WARPS];

    share = lanes_sum(share, 32);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = share;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bin_t total = 0;

        for (int i = 0; i < BLOCK_WARPS; i++) {
            total += warps[i];
        }
        if (total != 0 && sum != NULL) {
            atomicAdd(sum, total);
        }
    }
}

/* ----------------------------------------------------------- launches -- */

template <typename T> struct same_type {
    typedef T type;
};

template <typename... P>
static void kernel_launch(void (*kernel)(P...), size_t blocks, sherdi_cuda_target target,
                          typename same_type<P>::type... args)
{
#ifdef SHERD_EMULATOR
    sherdi_cuda_launched(target.backend,
                         emulator_launch(kernel, dim3((unsigned)blocks), dim3(BLOCK_THREADS), 0,
                                         target.stream, args...));
#else
    void *pointers[] = {(void *)&args...};

    /* Not <<<>>>: its error would come from cudaGetLastError, which may return an error of the
     * caller instead. */
    sherdi_cuda_launched(target.backend,
                         cudaLaunchKernel((const void *)kernel, dim3((unsigned)blocks),
                                          dim3(BLOCK_THREADS), pointers, 0, target.stream));
#endif
}

/* Returns the thread blocks that are resident at once when `each` fit on a processor. They take the
 * tiles in turn. */
static inline size_t blocks_of_machine(sherdi_cuda_target target, int each)
{
    return (size_t)target.processors * (size_t)each;
}

/* Returns the same, but no more than there are tiles. */
static inline size_t blocks_of(sherdi_cuda_target target, int each, size_t count, size_t tile)
{
    size_t tiles = count / tile + (count % tile != 0);
    size_t most  = blocks_of_machine(target, each);

    return tiles < most ? tiles : most;
}

#endif
