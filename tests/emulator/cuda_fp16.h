/* Half precision as the project's kernels use it; see emulator.h. Conversions round to nearest
 * even; NaN is 0x7fff, as on the device. */
#ifndef TESTS_EMULATOR_CUDA_FP16_H
#define TESTS_EMULATOR_CUDA_FP16_H

#include "cuda_runtime.h"

static inline float emulator_half_widen(unsigned short bits)
{
    unsigned sign = (bits & 0x8000u) << 16;
    unsigned magn = bits & 0x7fffu;

    if (magn > 0x7c00u) {
        return __uint_as_float(0x7fffffffu);
    }
    if (magn < 0x0400u) { /* denormal: in units of 2^-24 */
        return __uint_as_float(sign | __float_as_uint((float)magn * 0x1p-24f));
    }
    return __uint_as_float(sign | ((magn == 0x7c00u ? 0x3fc00u : magn + (112u << 10)) << 13));
}

static inline unsigned short emulator_half_narrow(float x)
{
    unsigned bits = __float_as_uint(x);
    unsigned sign = bits >> 16 & 0x8000u;
    unsigned magn = bits & 0x7fffffffu;

    if (magn > 0x7f800000u) {
        return 0x7fff;
    }
    if (magn >= 0x477ff000u) {
        return (unsigned short)(sign | 0x7c00u);
    }
    if (magn < 0x38800000u) { /* denormal: in units of 2^-24 */
        return (unsigned short)(sign | (unsigned)nearbyintf(__uint_as_float(magn) * 0x1p24f));
    }
    magn += 0xfffu + (magn >> 13 & 1u);
    return (unsigned short)(sign | ((magn >> 13) - (112u << 10)));
}

struct __half {
    unsigned short emulator_bits16;

    __half() = default;
    __half(float x) : emulator_bits16(emulator_half_narrow(x))
    {
    }
    operator float() const
    {
        return emulator_half_widen(emulator_bits16);
    }
};
typedef __half half;

struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

static inline __half __float2half(float x)
{
    return __half(x);
}
#define __float2half_rn __float2half
static inline float __half2float(__half x)
{
    return x;
}
static inline __half __ushort_as_half(unsigned short bits)
{
    __half x;

    x.emulator_bits16 = bits;
    return x;
}
static inline unsigned short __half_as_ushort(__half x)
{
    return x.emulator_bits16;
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return {__half(x), __half(y)};
}
static inline float2 __half22float2(__half2 x)
{
    return {x.x, x.y};
}

#endif
