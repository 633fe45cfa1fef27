/* The formulas of the deterministic mode, per element, and its kernels. */
#ifndef SHERDI_KERNELS_FIXED_H
#define SHERDI_KERNELS_FIXED_H

#include "kernels/backend.h"
#include "kernels/formulas.h"

/* The deterministic mode adds gradients as 64-bit integers, so their order does not matter: round(g
 * / loss scale * 2^(50 - L)), L = ceil(log2 G), for G micro-batches in the global batch. The sum of
 * G values below 2^13 stays below 2^63. Larger finite values are counted apart, and so are Inf and
 * NaN; all of these are zeros in the sum. */
#define SHERDI_FIXED_BITS  50
#define SHERDI_FIXED_RANGE 0x1p13

/* The kernels. reduce_fixed: dst[i] (+)= the sum over k of the integers of srcs[k][i], where dst is
 * int64_t; of the args it reads the sources, their weights, dst, count_elems and accumulate. A
 * weight multiplies the multiplier of the source's integers. Without accumulate the old contents are
 * overwritten. fixed_to_f32: dst[i] = sherdi_fixed_f32(acc[i]); not
 * overlapping. */

/* Rounds to the nearest integer, ties to even, for |x| < 2^63. x is split into an upper part in
 * units of 2^32 and the exact rest. Adding 1.5 * 2^52 rounds each of them. These are plain
 * operations, which every compiler may vectorise and none can change. */
SHERDI_FN int64_t sherdi_fixed_round(double x)
{
    const double magic        = 0x1.8p52;
    double       shifted_high = x * 0x1p-32 + magic;
    double       high         = shifted_high - magic;
    double       shifted_low  = (x - high * 0x1p32) + magic;
    uint64_t     high_bits;
    uint64_t     low_bits;
    uint64_t     magic_bits;

    memcpy(&high_bits, &shifted_high, sizeof(high_bits));
    memcpy(&low_bits, &shifted_low, sizeof(low_bits));
    memcpy(&magic_bits, &magic, sizeof(magic_bits));
    return (int64_t)(((high_bits - magic_bits) << 32) + (low_bits - magic_bits));
}

/* Returns one gradient element as an integer. The host makes multiplier = 2^(50 - L) / loss scale
 * and limit = 2^(63 - L). */
SHERDI_FN int64_t sherdi_fixed_element(float grad, double multiplier, double limit,
                                       sherdi_fixed_counts *counts)
{
    double x           = (double)grad * multiplier;
    int    is_finite   = fabs(x) < HUGE_VAL;
    int    is_in_range = fabs(x) < limit;

    counts->nonfinite += (uint64_t)!is_finite;
    counts->out_of_range += (uint64_t)(is_finite & !is_in_range);
    return sherdi_fixed_round(is_in_range ? x : 0.0);
}

/* Returns the multiplier of a source of a reduction. */
static inline double sherdi_fixed_multiplier(const sherdi_reduce_args *args, int k,
                                             const sherdi_fixed_sink *sink)
{
    return args->weights == NULL ? sink->multiplier : sink->multiplier * args->weights[k];
}

/* Returns the sum as fp32, still in units of 2^-(50 - L). It is rounded twice, everywhere in the
 * same way. */
SHERDI_FN float sherdi_fixed_f32(int64_t sum)
{
    return (float)(double)sum;
}

#endif
