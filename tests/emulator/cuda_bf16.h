/* bfloat16 as the project's kernels use it; see emulator.h. Conversions round to nearest even; NaN
 * is 0x7fff, as on the device. */
#ifndef TESTS_EMULATOR_CUDA_BF16_H
#define TESTS_EMULATOR_CUDA_BF16_H

#include "cuda_runtime.h"

static inline unsigned short emulator_bf16_narrow(float x)
{
    unsigned bits = __float_as_uint(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fff;
    }
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct __nv_bfloat16 {
    unsigned short emulator_bits16;

    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : emulator_bits16(emulator_bf16_narrow(x))
    {
    }
    operator float() const
    {
        return __uint_as_float((unsigned)emulator_bits16 << 16);
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __nv_bfloat16(x);
}
#define __float2bfloat16_rn __float2bfloat16
static inline float __bfloat162float(__nv_bfloat16 x)
{
    return x;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    __nv_bfloat16 x;

    x.emulator_bits16 = bits;
    return x;
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.emulator_bits16;
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 x)
{
    return {x.x, x.y};
}

#endif
