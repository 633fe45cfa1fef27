/* Arithmetic on sizes that reports overflow, and rounding. */
#ifndef SHERDI_BASE_CHECKED_H
#define SHERDI_BASE_CHECKED_H

#include <stddef.h>
#include <stdint.h>

/** Sets *out to a * b and returns 1; when that does not fit, sets *out to SIZE_MAX and returns
 *  0. */
static inline int sherdi_mul_fits(size_t a, size_t b, size_t *out)
{
    if (__builtin_mul_overflow(a, b, out)) {
        *out = SIZE_MAX;
        return 0;
    }
    return 1;
}

static inline int sherdi_add_fits(size_t a, size_t b, size_t *out)
{
    if (__builtin_add_overflow(a, b, out)) {
        *out = SIZE_MAX;
        return 0;
    }
    return 1;
}

static inline size_t sherdi_div_up(size_t value, size_t unit)
{
    return value / unit + (value % unit != 0);
}

/** Rounds up to a multiple of `unit`. The caller knows that the result fits. */
static inline size_t sherdi_round_up(size_t value, size_t unit)
{
    return sherdi_div_up(value, unit) * unit;
}

static inline size_t sherdi_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t sherdi_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

#endif
