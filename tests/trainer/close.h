/* How near a device's results are to the CPU's. */
#ifndef TESTS_EXAMPLES_CLOSE_H
#define TESTS_EXAMPLES_CLOSE_H

#include "sherd.h"

#include <stddef.h>

/* How far a device's result may be from the CPU's: a share of the largest element, and of each. The
 * 16-bit types round what is stored, and what goes into a product, to 8 or 11 bits. */
typedef struct tolerance {
    double of_most, of_each;
    double least; /* what counts as the largest where all are smaller: zeros are differences too */
} tolerance;

/** fp32 to another type, and back. */
void narrow(sherd_dtype dtype, const float *from, void *to, size_t count);
void widen(sherd_dtype dtype, const void *from, float *to, size_t count);

/** Counts a failure of `what` where `got` is further from `want` than `t` says. */
void close_check(const char *what, const float *want, const float *got, size_t count, tolerance t);

#endif
