/* Splits the calls of the CPU's kernels into tasks for threads. table.inc.c uses it; team.c has the
 * threads. */
#ifndef SHERDI_KERNELS_CPU_PARALLEL_H
#define SHERDI_KERNELS_CPU_PARALLEL_H

#include "kernels/backend.h"

/** Does task `task` of `tasks`. It adds sums to the shared context by atomic additions of integers,
 *  whose order does not matter. */
typedef void (*sherdi_task_fn)(void *ctx, int task, int tasks);

extern const sherdi_device_ops sherdi_device_cpu;     /* device.c */
extern const sherdi_kernel_ops sherdi_kernels_scalar; /* scalar.c */

/* How one call is split. */
typedef struct sherdi_split {
    int    tasks;
    size_t bytes; /* that the call touches: a measure of its cost */
} sherdi_split;

/* Fewer bytes are not worth a second thread, even one that is awake. WAKE_BYTES in team.c is the
 * limit for threads that sleep. */
#define SHERDI_TASK_BYTES ((size_t)64 << 10)

/** Splits a call into at most one task for each of its `units`, of unit_bytes each; a unit is never
 *  divided. */
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

/** Executes fn for every task and returns when all are done. The backend's team runs the tasks.
 *  While another thread has the team, the caller executes all tasks itself and does not wait for
 *  the other thread. Each task runs in the default floating-point environment (round to nearest, no
 *  flush to zero); the caller's environment is restored afterwards. */
void sherdi_parallel_run(const sherdi_backend *backend, sherdi_split split, sherdi_task_fn fn,
                         void *ctx);

#endif
