/* The arithmetic of sherd, per element, written once. The scalar kernels and the CUDA kernels call
 * these functions, and vector code equals them bit for bit. The updates of optimizers are in
 * kernels/updates/, the encodings of state in codecs.h; docs/numerics.md describes all of them.
 *
 * The C compiler and nvcc compile this file with contraction off, so that every variant gives the
 * same bits: explicit fma, correctly rounded sqrt and division, round to nearest even, no flush to
 * zero. Machines differ in the sign and payload of a NaN. Therefore one fixed NaN replaces any NaN
 * that arithmetic made, and a cast keeps only the sign of a NaN. */
#ifndef SHERDI_KERNELS_FORMULAS_H
#define SHERDI_KERNELS_FORMULAS_H

#include "sherd.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define SHERDI_FN static inline __host__ __device__
#else
#define SHERDI_FN static inline
#endif

/* ------------------------------------------------------- bits and casts -- */

SHERDI_FN uint32_t sherdi_bits_f32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

SHERDI_FN float sherdi_f32_from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The NaN of every result of arithmetic: 0x7fc00000. */
SHERDI_FN float sherdi_canonical_f32(float x)
{
    return x == x ? x : sherdi_f32_from_bits(0x7fc00000u);
}

/* A shift: it keeps all bits, those of a NaN as well. */
SHERDI_FN float sherdi_cast_bf16_f32(uint16_t x)
{
    return sherdi_f32_from_bits((uint32_t)x << 16);
}

/* Round to nearest even; NaN becomes 0x7fc0 with the sign kept. */
SHERDI_FN uint16_t sherdi_cast_f32_bf16(float x)
{
    uint32_t bits = sherdi_bits_f32(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(((bits >> 16) & 0x8000u) | 0x7fc0u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* IEEE binary16, denormals included; NaN becomes 0x7fc00000 with the sign kept. */
SHERDI_FN float sherdi_cast_f16_f32(uint16_t x)
{
    uint32_t sign     = (uint32_t)(x & 0x8000u) << 16;
    uint32_t exponent = (x >> 10) & 0x1fu;
    uint32_t fraction = x & 0x3ffu;

    if (exponent == 0x1fu) {
        return sherdi_f32_from_bits(sign | (fraction != 0 ? 0x7fc00000u : 0x7f800000u));
    }
    if (exponent == 0) { /* zero or denormal: fraction * 2^-24, exact */
        float magnitude = (float)fraction * 0x1p-24f;
        return sherdi_f32_from_bits(sign | sherdi_bits_f32(magnitude));
    }
    return sherdi_f32_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

/* Round to nearest even; too large becomes Inf; NaN becomes 0x7e00 with the sign kept. */
SHERDI_FN uint16_t sherdi_cast_f32_f16(float x)
{
    uint32_t bits = sherdi_bits_f32(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magn = bits & 0x7fffffffu;

    if (magn > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (magn >= 0x477ff000u) { /* 65520 and more round to Inf */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magn < 0x38800000u) { /* below 2^-14: the sum leaves fraction * 2^-24, rounded */
        float shifted = sherdi_f32_from_bits(magn) + 0.5f;
        return (uint16_t)(sign | (sherdi_bits_f32(shifted) - 0x3f000000u));
    }
    magn += 0xfffu + ((magn >> 13) & 1u);
    return (uint16_t)(sign | ((magn >> 13) - (112u << 10)));
}

/* ---------------------------------------------------------- fingerprint -- */

/* The mix of an element is a 32 x 32 -> 64 bit product of (bits xor key) and an odd multiplier.
 * Both key and multiplier depend on the element's global index. If one bit b of a weight changes,
 * the product changes by 2^b * multiplier, which is never 0 modulo 2^64, so the fingerprint always
 * shows it. It shows values that change places because their keys differ. (Multiply-shift hashing
 * of Dietzfelbinger et al. 1997, applied per element.) */
SHERDI_FN uint32_t sherdi_mix_key(uint64_t index)
{
    return (uint32_t)index * 0x9e3779b1u + (uint32_t)(index >> 32) * 0x85ebca77u;
}

SHERDI_FN uint32_t sherdi_mix_multiplier(uint64_t index)
{
    return ((uint32_t)index * 0xc2b2ae3du + (uint32_t)(index >> 32) * 0x27d4eb2fu) | 1u;
}

SHERDI_FN uint64_t sherdi_mix_element(uint64_t index, float value)
{
    uint32_t keyed = sherdi_bits_f32(value) ^ sherdi_mix_key(index);

    return (uint64_t)keyed * sherdi_mix_multiplier(index);
}

/* ----------------------------------------------------------------- norm -- */

/* A sum of squares that does not depend on the order. Inside a chunk of 64 elements of one
 * parameter, a fixed tree adds in double, where squares of fp32 are exact. Over chunks the sum is
 * exact: a chunk's sum is cut into 32-bit digits, and each digit is added to a 64-bit bin. The
 * digits reach from 2^-352 to 2^288; a chunk's sum of squares of fp32 numbers is 0 or between
 * 2^-298 and 2^262. A bin has room for 2^32 chunks (2^38 elements) between two normalisations.
 * Chunks with Inf or NaN are counted apart. */
#define SHERDI_NORM_BINS         20
#define SHERDI_NORM_LOW_EXPONENT (-352) /* bin 0 holds multiples of 2^this */

typedef struct sherdi_norm_acc {
    uint64_t bins[SHERDI_NORM_BINS]; /* digit k counts 2^(LOW_EXPONENT + 32 k) */
    uint64_t nonfinite;              /* chunks whose sum was Inf or NaN */
} sherdi_norm_acc;

/* The fixed tree: each of 8 lanes adds 8 rows in order, then the lanes are added 4+4, 2+2, 1+1. */
SHERDI_FN double sherdi_norm_chunk(const float *x)
{
    double lanes[8] = {0, 0, 0, 0, 0, 0, 0, 0};

    for (int row = 0; row < 8; row++) {
        for (int lane = 0; lane < 8; lane++) {
            double value = x[row * 8 + lane];
            lanes[lane]  = fma(value, value, lanes[lane]);
        }
    }
    for (int lane = 0; lane < 4; lane++) {
        lanes[lane] = lanes[lane] + lanes[lane + 4];
    }
    lanes[0] = lanes[0] + lanes[2];
    lanes[1] = lanes[1] + lanes[3];
    return lanes[0] + lanes[1];
}

/* Cuts a chunk's sum into the digits of bins *bin to *bin + 2 and returns 1. Returns 0: the sum is
 * zero and has no digits; -1: it is Inf or NaN. */
SHERDI_FN int sherdi_norm_split(double sum, unsigned *bin, uint64_t digits[3])
{
    uint64_t bits;
    int      exponent;
    uint64_t fraction;
    unsigned low_bit;
    unsigned shift;

    memcpy(&bits, &sum, sizeof(bits));
    exponent = (int)(bits >> 52); /* a sum of squares has no sign; its NaN may */
    if ((exponent & 0x7ff) == 0x7ff) {
        return -1;
    }
    if (exponent == 0) { /* zero: sums of squares of fp32 are never denormal doubles */
        return 0;
    }
    fraction = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    low_bit  = (unsigned)(exponent - 1075 - SHERDI_NORM_LOW_EXPONENT);
    shift    = low_bit % 32;
    *bin     = low_bit / 32;
    /* 53 bits shifted by up to 31: digits 0 and 1 from the low 64, digit 2 from the rest. */
    digits[0] = (fraction << shift) & 0xffffffffu;
    digits[1] = (fraction << shift) >> 32;
    digits[2] = shift == 0 ? 0 : fraction >> (64 - shift);
    return 1;
}

/* Adds the sum of one chunk, exactly. */
SHERDI_FN void sherdi_norm_add(sherdi_norm_acc *acc, double sum)
{
    uint64_t digits[3];
    unsigned bin;
    int      kind = sherdi_norm_split(sum, &bin, digits);

    if (kind < 0) {
        acc->nonfinite++;
    } else if (kind > 0) {
        acc->bins[bin] += digits[0];
        acc->bins[bin + 1] += digits[1];
        acc->bins[bin + 2] += digits[2];
    }
}

/* Carries, so that every bin but the last is below 2^32: equal sums then have equal bins. */
SHERDI_FN void sherdi_norm_normalise(sherdi_norm_acc *acc)
{
    uint64_t carry = 0;

    for (int i = 0; i < SHERDI_NORM_BINS - 1; i++) {
        /* A full bin and the carry may pass 2^64: split before adding. */
        uint64_t low = (acc->bins[i] & 0xffffffffu) + (carry & 0xffffffffu);

        carry        = (acc->bins[i] >> 32) + (carry >> 32) + (low >> 32);
        acc->bins[i] = low & 0xffffffffu;
    }
    acc->bins[SHERDI_NORM_BINS - 1] += carry;
}

/* Adds another accumulator (a thread's, a rank's), exactly. The result is normalised, so no bin
 * overflows, however many accumulators are added. */
SHERDI_FN void sherdi_norm_merge(sherdi_norm_acc *acc, const sherdi_norm_acc *other)
{
    sherdi_norm_acc addend = *other;

    sherdi_norm_normalise(acc);
    sherdi_norm_normalise(&addend);
    for (int i = 0; i < SHERDI_NORM_BINS; i++) {
        acc->bins[i] += addend.bins[i];
    }
    acc->nonfinite += addend.nonfinite;
    sherdi_norm_normalise(acc);
}

/* Returns the sum of squares, rounded once; NaN when nonfinite is not 0. It takes the 64 bits from
 * the leading one down and gathers all lower bits in the last of them, so the conversion to double
 * rounds the exact sum. */
SHERDI_FN double sherdi_norm_value(const sherdi_norm_acc *acc)
{
    sherdi_norm_acc sum = *acc;
    uint64_t        digits[SHERDI_NORM_BINS + 1];
    uint64_t        lead;
    int             top = SHERDI_NORM_BINS;
    int             shift;

    if (acc->nonfinite != 0) {
        return (double)NAN;
    }
    sherdi_norm_normalise(&sum);
    for (int i = 0; i < SHERDI_NORM_BINS; i++) {
        digits[i] = sum.bins[i] & 0xffffffffu;
    }
    digits[SHERDI_NORM_BINS] = sum.bins[SHERDI_NORM_BINS - 1] >> 32;
    while (top > 0 && digits[top] == 0) {
        top--;
    }
    if (top == 0) { /* zero, or below any square of fp32 */
        return ldexp((double)digits[0], SHERDI_NORM_LOW_EXPONENT);
    }
    lead  = digits[top] << 32 | digits[top - 1];
    shift = 0;
    while ((lead >> (63 - shift)) == 0) { /* shift stays below 32: the upper half is not zero */
        shift++;
    }
    if (top >= 2) {
        lead = lead << shift | (digits[top - 2] << shift) >> 32;
        for (int i = top - 2; i >= 0; i--) {
            uint64_t below = i == top - 2 ? digits[i] << shift & 0xffffffffu : digits[i];

            lead |= below != 0;
        }
    } else {
        lead <<= shift;
    }
    return ldexp((double)lead, SHERDI_NORM_LOW_EXPONENT + 32 * (top - 1) - shift);
}

/* ---------------------------------------------------------- fixed point -- */

/* The deterministic mode adds gradients as 64-bit integers: fixed.h. */
typedef struct sherdi_fixed_counts {
    uint64_t nonfinite;    /* Inf and NaN: an overflow, for the loss scaler */
    uint64_t out_of_range; /* finite, 2^13 or more after unscaling: an error of its own */
} sherdi_fixed_counts;

/* Of a deterministic reduction; lives until it is done. */
typedef struct sherdi_fixed_sink {
    double               multiplier;
    double               limit;
    sherdi_fixed_counts *counts; /* added to */
} sherdi_fixed_sink;

#endif
