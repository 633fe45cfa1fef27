/* What the tiers share inside this folder. */
#ifndef SHERDI_OFFLOAD_TIER_IMPL_H
#define SHERDI_OFFLOAD_TIER_IMPL_H

#include "offload/tier.h"

/** Bytes that a stripe takes before the next folder has its turn. */
#define SHERDI_STRIPE_BYTES ((size_t)1 << 20)

/** E_INVAL when they are not as sherdi_extent says. */
sherd_status sherdi_extents_check(const sherdi_extent *extents, size_t num_extents);

/** Where extents lie in a file that keeps `slots` of each, one behind the other and without the gaps of
 *  their own space: in_file [num_extents], offset_bytes of the first slot. E_INVAL when the file were longer
 *  than a file can be. */
sherd_status sherdi_extents_lay_out(const sherdi_extent *extents, size_t num_extents, size_t slots,
                                    size_t start_bytes, sherdi_extent *in_file, size_t *end_out);

#endif
