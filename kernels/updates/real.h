/* The numbers that the updates' formulas are written over. Here one is a float: for scalar.c, CUDA and whoever computes
 * a single element. kernels/cpu/vector.h makes it a register of floats, so every instruction set compiles the
 * text of a formula itself, and there is no copy of it. What a formula may use: + - * / and the functions below, each
 * rounded once. A coefficient becomes a real by real_of; branches ask coefficients alone, never an element.
 *
 * A formula leaves NaN as it comes, and who stores its results makes it the one NaN where the new master is NaN. So a part that
 * may be NaN beside a master that is not has to pass through real_canonical. */
#ifndef SHERDI_KERNELS_UPDATES_REAL_H
#define SHERDI_KERNELS_UPDATES_REAL_H

#include "kernels/formulas.h"

typedef float real;

#define REAL_FN SHERDI_FN

REAL_FN real real_of(float x)
{
    return x;
}

/* a * b + c, rounded once. */
REAL_FN real real_fma(real a, real b, real c)
{
    return fmaf(a, b, c);
}

REAL_FN real real_sqrt(real x)
{
    return sqrtf(x);
}

/* 1 with the sign of x; zero and NaN are themselves. */
REAL_FN real real_sign(real x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
}

/* NaN is the one that is stored. */
REAL_FN real real_canonical(real x)
{
    return sherdi_canonical_f32(x);
}

#endif
