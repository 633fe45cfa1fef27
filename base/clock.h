/* The monotonic clock, in nanoseconds. */
#ifndef SHERDI_BASE_CLOCK_H
#define SHERDI_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t sherdi_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
