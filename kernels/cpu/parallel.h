/* Work split over threads, for the kernels of the CPU. */
#ifndef SHERDI_KERNELS_CPU_PARALLEL_H
#define SHERDI_KERNELS_CPU_PARALLEL_H

#include "kernels/backend.h"

/** Does task `task` of `tasks`. Sums go to the shared context by atomic adds of
 *  integers, which no order can change. */
typedef void (*sherdi_task_fn)(void *ctx, int task, int tasks);

/* How one call is split. */
typedef struct sherdi_split {
    int    tasks;
    size_t bytes; /* that the call touches: what it costs */
} sherdi_split;

/* Less than this is not worth a second thread that stands ready; see team.c for one that sleeps. */
#define SHERDI_TASK_BYTES ((size_t)64 << 10)

/** At most one task for each of `units`, which are not cut. */
static inline sherdi_split sherdi_split_of(const sherdi_backend *backend, size_t units,
                                           size_t unit_bytes)
{
    size_t worth = units * unit_bytes / SHERDI_TASK_BYTES;

    worth = worth < units ? worth : units;
    return (sherdi_split){
        .tasks = worth < (size_t)backend->threads ? (int)worth : backend->threads,
        .bytes = units * unit_bytes,
    };
}

/** Runs fn for every task and returns when all are done: on the backend's team, or, while another
 *  thread has that, all on the caller's, which never waits for the other. Each task runs in the
 *  default floating-point environment (round to nearest, no flush to zero) whatever the caller's
 *  is, and leaves that as it was. */
void sherdi_parallel_run(const sherdi_backend *backend, sherdi_split split, sherdi_task_fn fn,
                         void *ctx);

#endif
