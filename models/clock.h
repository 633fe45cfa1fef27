/* The time of the trainer, the command and the benchmarks. */
#ifndef SHERD_MODELS_CLOCK_H
#define SHERD_MODELS_CLOCK_H

#include <time.h>

/** Returns the seconds of the monotonic clock. */
static inline double clock_now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
