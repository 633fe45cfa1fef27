/* Shared by the tiers inside this folder. */
#ifndef SHERDI_OFFLOAD_TIER_IMPL_H
#define SHERDI_OFFLOAD_TIER_IMPL_H

#include "offload/tier.h"

/** Lays out extents in a file, one after the other, without the gaps of the extents' own space:
 *  in_file [num_extents] gets their positions. Errors: E_INVAL when they are not as sherdi_extent
 *  requires, or the file would be longer than a file can be. */
sherd_status sherdi_extents_lay_out(const sherdi_extent *extents, size_t num_extents,
                                    sherdi_extent *in_file, size_t *end_out);

#endif
