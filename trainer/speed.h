/* The work of a training step, the time that it takes, and the peak of a GPU. Together they give
 * the share of the peak (MFU) that a run reaches. */
#ifndef LLM_SPEED_H
#define LLM_SPEED_H

#include "models/arch.h"
#include "sherd.h"

#include <stddef.h>

/** Returns the floating-point operations of forward and backward for one token:
 *  arch_flops_per_token(). */
double speed_flops_per_token(const arch *model, size_t length);

/** Returns the dense peak of the GPU with this name, in operations per second, for products of this
 *  type with sums in fp32; 0: not known. */
double speed_peak_flops(const char *device, sherd_dtype dtype);

/* The first steps are slower: libraries choose kernels, modules are loaded, memory is touched for
 * the first time. */
#define SPEED_WARM_STEPS 5
#define SPEED_KEPT_STEPS 1024 /* most steps over which the median goes */

/* The durations of the last steps of a run. All zeros: no step yet. */
typedef struct speed_times {
    double seconds[SPEED_KEPT_STEPS]; /* a ring */
    size_t count;                     /* of all steps of the run */
} speed_times;

void speed_add(speed_times *times, double seconds);

/** Returns the median seconds of the steps after the first SPEED_WARM_STEPS, in a shorter run of
 *  those after its first half; 0: no step was made. */
double speed_median(const speed_times *times);

#endif
