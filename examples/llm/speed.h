/* What a training step costs, what it takes, and what a GPU could do: for the share of the peak (MFU) that a run
 * reaches. */
#ifndef LLM_SPEED_H
#define LLM_SPEED_H

#include "models/arch.h"
#include "sherd.h"

#include <stddef.h>

/** Floating-point operations of forward and backward for one token: arch_flops_per_token(). */
double speed_flops_per_token(const arch *model, size_t length);

/** Dense peak of a GPU by its name, in operations per second, for products of this type with sums in fp32. 0: not
 *  known. */
double speed_peak_flops(const char *device, sherd_dtype dtype);

#define SPEED_WARM_STEPS                                                                           \
    5 /* libraries choose kernels, modules are loaded, memory is touched first */
#define SPEED_KEPT_STEPS 1024 /* that a median is of, at most */

/* What the last steps of a run took. All zeros: none yet. */
typedef struct speed_times {
    double seconds[SPEED_KEPT_STEPS]; /* a ring */
    size_t count;                     /* of all steps of the run */
} speed_times;

void speed_add(speed_times *times, double seconds);

/** Seconds of a median step after the first SPEED_WARM_STEPS, of a shorter run after its first half; 0: there was none. */
double speed_median(const speed_times *times);

#endif
