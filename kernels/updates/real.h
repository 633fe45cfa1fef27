/* `real`: the numbers over which the updates' formulas are written. Here a real is a float, for
 * scalar.c, CUDA and all that computes single elements. In kernels/cpu/vector.inc.c it is a
 * register of floats. So every instruction set compiles the same text of a formula. A formula may
 * use + - * / and the functions below, each of which rounds once. real_of makes a real of a
 * coefficient. Branches depend on coefficients only, never on an element.
 *
 * A formula leaves NaN as it comes. The code that stores its results replaces NaN by the one fixed
 * NaN where the new master is NaN. So a part that may be NaN while the master is not has to pass
 * through real_canonical. */
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

/* Returns 1 or -1, with the sign of x; zero and NaN stay. */
REAL_FN real real_sign(real x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
}

/* Replaces NaN by the one that is stored. */
REAL_FN real real_canonical(real x)
{
    return sherdi_canonical_f32(x);
}

#endif
