/* Sums of integers over the ranks of a world. */
#ifndef SHERDI_COLLECTIVES_SUMS_H
#define SHERDI_COLLECTIVES_SUMS_H

#include "collectives/world.h"

/* Most values for each rank in one portion of a sum; a sum processes its values in portions of this
 * size. */
#define SHERDI_SUM_PORTION (SHERDI_TOLD_BYTES / (2 * sizeof(double)))

/* Returns the number of values of each rank in the next portion, with `left` to go. */
static inline size_t sherdi_sum_slice(int world_size, size_t left)
{
    size_t each = left / (size_t)world_size + (left % (size_t)world_size != 0);

    return each < SHERDI_SUM_PORTION ? each : SHERDI_SUM_PORTION;
}

static inline uint64_t sherdi_wire_sum_u64(int world_size, size_t count)
{
    uint64_t bytes = 0;

    while (count > 0 && world_size > 1) {
        size_t slice   = sherdi_sum_slice(world_size, count);
        size_t portion = slice * (size_t)world_size;

        bytes += 2 * sherdi_wire_all_gather(world_size, slice * sizeof(uint64_t));
        count -= portion < count ? portion : count;
    }
    return bytes;
}

/** Replaces values[i] by the sum over the ranks modulo 2^64, on all ranks. Host memory; `count`
 *  must be equal on all ranks. Meets. Blocking; allocates nothing. On the simulated world the
 *  values stay as they are. */
sherd_status sherdi_world_sum_u64(sherd_world *world, uint64_t *values, size_t count);

/** Adds elements of 8 bytes: dst[i] = the sum over k of srcs[k][i]; dst may be one of srcs. */
void sherdi_integers_add(const void *const *srcs, int num_srcs, void *dst, size_t count);

#endif
