/* Work split over threads, for the kernels of the CPU. */
#ifndef SHERDI_KERNELS_CPU_PARALLEL_H
#define SHERDI_KERNELS_CPU_PARALLEL_H

/** Does part `part` of `parts`. Sums go to the shared context by atomic adds of
 *  integers, which no order can change. */
typedef void (*sherdi_part_fn)(void *ctx, int part, int parts);

/** Runs fn for every part and returns when all are done. One part runs on the caller's
 *  thread and touches no OpenMP. Each runs in the default floating-point environment
 *  (round to nearest, no flush to zero) whatever the caller's is, and leaves that as it was. */
void sherdi_parallel_run(int parts, sherdi_part_fn fn, void *ctx);

#endif
