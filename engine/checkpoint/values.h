/* Fingerprints of values on their way to and from a checkpoint. */
#ifndef SHERDI_ENGINE_CHECKPOINT_VALUES_H
#define SHERDI_ENGINE_CHECKPOINT_VALUES_H

#include "kernels/backend.h"

/** The mixes of `count` elements that have the indices from `index` on, as docs/numerics.md adds them up. */
static inline uint64_t sherdi_values_fingerprint(const sherdi_backend *host, uint64_t index,
                                                 size_t count, const float *values)
{
    sherdi_span span = {.count_elems = count, .first_index = index};
    uint64_t    sum  = 0;

    host->kernels->fingerprint(host, &span, 1, values, &sum);
    return sum;
}

/** What the sum of a part behind the master adds to the fingerprint of the state: parts that changed places show. */
static inline uint64_t sherdi_values_part_sum(int part, uint64_t sum)
{
    return sum * (2 * (uint64_t)part + 1);
}

#endif
