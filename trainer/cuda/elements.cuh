/* Elements of the three types read and written as floats: one at a time, two in a 32-bit word, or
 * sixteen bytes at once. Also sums over a warp. Rounding is always to the nearest, ties to even. */
#ifndef LLM_CUDA_ELEMENTS_CUH
#define LLM_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef __nv_bfloat16 bf16_t;
typedef __half        f16_t;

__device__ __forceinline__ float float_get(float x)
{
    return x;
}
__device__ __forceinline__ float float_get(bf16_t x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float float_get(f16_t x)
{
    return __half2float(x);
}

__device__ __forceinline__ void float_put(float *to, float x)
{
    *to = x;
}
__device__ __forceinline__ void float_put(bf16_t *to, float x)
{
    *to = __float2bfloat16_rn(x);
}
__device__ __forceinline__ void float_put(f16_t *to, float x)
{
    *to = __float2half_rn(x);
}

__device__ __forceinline__ float float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Two elements of a 16-bit type in one word, the first in the lower half. */
template <typename T> struct pair_of;

template <> struct pair_of<bf16_t> {
    static __device__ __forceinline__ void split(uint32_t word, float *low, float *high)
    {
        *low  = float_of_bits(word << 16);
        *high = float_of_bits(word & 0xffff0000u);
    }
    static __device__ __forceinline__ uint32_t join(float low, float high)
    {
        uint32_t word;
#ifdef SHERD_EMULATOR
        bf16_t halves[2] = {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};

        memcpy(&word, halves, sizeof(word));
#else
        __nv_bfloat162 halves = __floats2bfloat162_rn(low, high);

        memcpy(&word, &halves, sizeof(word));
#endif
        return word;
    }
};

template <> struct pair_of<f16_t> {
    static __device__ __forceinline__ void split(uint32_t word, float *low, float *high)
    {
#ifdef SHERD_EMULATOR
        f16_t halves[2];

        memcpy(halves, &word, sizeof(word));
        *low  = __half2float(halves[0]);
        *high = __half2float(halves[1]);
#else
        __half2 halves;
        float2  both;

        memcpy(&halves, &word, sizeof(word));
        both  = __half22float2(halves);
        *low  = both.x;
        *high = both.y;
#endif
    }
    static __device__ __forceinline__ uint32_t join(float low, float high)
    {
        uint32_t word;
#ifdef SHERD_EMULATOR
        f16_t halves[2] = {__float2half_rn(low), __float2half_rn(high)};

        memcpy(&word, halves, sizeof(word));
#else
        __half2 halves = __floats2half2_rn(low, high);

        memcpy(&word, &halves, sizeof(word));
#endif
        return word;
    }
};

/* N elements at `at`: one element, or sixteen bytes that begin at a multiple of sixteen. `split`
 * converts sixteen bytes that were read before and take fewer registers than their elements as
 * floats. After `store_rounded` x has the stored value. */
template <typename T, int N> struct vector_of;

template <typename T> struct vector_of<T, 1> {
    static __device__ __forceinline__ void load(const T *at, float *x)
    {
        x[0] = float_get(at[0]);
    }
    static __device__ __forceinline__ void store(T *at, const float *x)
    {
        float_put(at, x[0]);
    }
};

template <> struct vector_of<float, 4> {
    static __device__ __forceinline__ void split(const uint4 &all, float *x)
    {
        x[0] = float_of_bits(all.x);
        x[1] = float_of_bits(all.y);
        x[2] = float_of_bits(all.z);
        x[3] = float_of_bits(all.w);
    }
    static __device__ __forceinline__ void load(const float *at, float *x)
    {
        float4 all = *(const float4 *)at;

        x[0] = all.x;
        x[1] = all.y;
        x[2] = all.z;
        x[3] = all.w;
    }
    static __device__ __forceinline__ void store(float *at, const float *x)
    {
        *(float4 *)at = make_float4(x[0], x[1], x[2], x[3]);
    }
    static __device__ __forceinline__ void store_rounded(float *at, float *x)
    {
        store(at, x);
    }
};

template <typename T> struct vector_of<T, 8> {
    static __device__ __forceinline__ void split(const uint4 &all, float *x)
    {
        pair_of<T>::split(all.x, &x[0], &x[1]);
        pair_of<T>::split(all.y, &x[2], &x[3]);
        pair_of<T>::split(all.z, &x[4], &x[5]);
        pair_of<T>::split(all.w, &x[6], &x[7]);
    }
    static __device__ __forceinline__ void load(const T *at, float *x)
    {
        split(*(const uint4 *)at, x);
    }
    static __device__ __forceinline__ void store(T *at, const float *x)
    {
        *(uint4 *)at = make_uint4(pair_of<T>::join(x[0], x[1]), pair_of<T>::join(x[2], x[3]),
                                  pair_of<T>::join(x[4], x[5]), pair_of<T>::join(x[6], x[7]));
    }
    static __device__ __forceinline__ void store_rounded(T *at, float *x)
    {
        uint4 all = make_uint4(pair_of<T>::join(x[0], x[1]), pair_of<T>::join(x[2], x[3]),
                               pair_of<T>::join(x[4], x[5]), pair_of<T>::join(x[6], x[7]));

        *(uint4 *)at = all;
        split(all, x);
    }
};

/* How many elements sixteen bytes hold. */
template <typename T> struct wide_of {
    static const int elems = 16 / (int)sizeof(T);
};

/* Returns 2^x, within 2 units in the last place of fp32. Results below 2^-126 are 0. */
__device__ __forceinline__ float exp2_of(float x)
{
#ifdef SHERD_EMULATOR
    return exp2f(x);
#else
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Returns e^x, as exact as T, the type of the result, needs. */
template <typename T> __device__ __forceinline__ float exp_of(float x)
{
    return exp2_of(x * 1.44269504f);
}
template <> __device__ __forceinline__ float exp_of<float>(float x)
{
    return expf(x);
}

#define WARP_ALL 0xffffffffu

/* Returns the same sum in all lanes, since both sides of an exchange add the same two numbers. */
__device__ __forceinline__ float warp_sum(float x)
{
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(WARP_ALL, x, step);
    }
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
    for (int step = 16; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    }
    return x;
}

#endif
