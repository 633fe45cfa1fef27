/* Sums of integers over the ranks of a world. */
#ifndef SHERDI_COLLECTIVES_SUMS_H
#define SHERDI_COLLECTIVES_SUMS_H

#include "collectives/world.h"

/** Replaces values[i] by the sum over the ranks modulo 2^64, on all ranks. Host memory; `count`
 *  must be equal on all ranks. Meets. Blocking; allocates nothing. On the simulated world the
 *  values stay as they are. */
sherd_status sherdi_world_sum_u64(sherd_world *world, uint64_t *values, size_t count);

/** Adds elements of 8 bytes: dst[i] = the sum over k of srcs[k][i]; dst may be one of srcs. */
void sherdi_integers_add(const void *const *srcs, int num_srcs, void *dst, size_t count);

#endif
