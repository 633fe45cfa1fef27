/* What the tiers share inside this folder. */
#ifndef SHERDI_OFFLOAD_TIER_IMPL_H
#define SHERDI_OFFLOAD_TIER_IMPL_H

#include "offload/tier.h"

/** Bytes of a stripe before the next folder's turn. */
#define SHERDI_STRIPE_BYTES ((size_t)1 << 20)

/** Returns E_INVAL when the extents are not as sherdi_extent requires. */
sherd_status sherdi_extents_check(const sherdi_extent *extents, size_t num_extents);

/** Lays out extents in a file that keeps `slots` of each, one behind the other, without the gaps of the extents' own space.
 *  in_file [num_extents] gets the position of the first slot. Errors: E_INVAL when the file would be longer than a file can
 *  be. */
sherd_status sherdi_extents_lay_out(const sherdi_extent *extents, size_t num_extents, size_t slots,
                                    size_t start_bytes, sherdi_extent *in_file, size_t *end_out);

#endif
