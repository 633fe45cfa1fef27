/* Fingerprints of the values that a checkpoint saves and loads. */
#ifndef SHERDI_ENGINE_CHECKPOINT_VALUES_H
#define SHERDI_ENGINE_CHECKPOINT_VALUES_H

#include "kernels/backend.h"

/** Returns the sum of the mixes of `count` elements with the global indices from `index` on
 *  (docs/numerics.md). */
static inline uint64_t sherdi_values_fingerprint(const sherdi_backend *host, uint64_t index,
                                                 size_t count, const float *values)
{
    sherdi_span span = {.count_elems = count, .first_index = index};
    uint64_t    sum  = 0;

    host->kernels->fingerprint(host, &span, 1, values, &sum);
    return sum;
}

/** Returns the contribution of a part after the master to the state's fingerprint, from the sum of
 *  its mixes. Each part has another factor, so parts that changed places show. */
static inline uint64_t sherdi_values_part_sum(int part, uint64_t sum)
{
    return sum * (2 * (uint64_t)part + 1);
}

#endif
