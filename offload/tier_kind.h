/* The kinds of tiers that store data in a space: the properties that a plan needs before anything is
 * opened. tier.h has the tiers themselves. */
#ifndef SHERDI_OFFLOAD_TIER_KIND_H
#define SHERDI_OFFLOAD_TIER_KIND_H

#include "base/mem.h"
#include "base/status.h"
#include "offload/space.h"

typedef struct sherdi_tier        sherdi_tier;
typedef struct sherdi_tier_params sherdi_tier_params;

/* An extent in the tier's own space. Both numbers are multiples of SHERD_ALIGN_BYTES; extents
 * ascend and do not overlap. */
typedef struct sherdi_extent {
    size_t offset_bytes;
    size_t len_bytes;
} sherdi_extent;

/* A kind of tier: the properties of a tier before it is opened. Each kind has one table; all are
 * named in tier_list.h (tiers.h). */
typedef struct sherdi_tier_kind {
    sherdi_space space;
    int          has_files; /* in folders that the configuration names; transfers take a queue */
    /* Returns the bytes of the index of state with this number of extents; NULL: state in this tier
     * has no generations. */
    size_t (*index_bytes)(size_t num_extents);
    /* Opens a tier whose contents mean nothing after this process; an extent that was never written
     * reads as zero (tier.h). NULL: a tier of memory. */
    sherd_status (*open)(const sherdi_tier_params *params, sherdi_mem *mem, sherdi_tier **out);
} sherdi_tier_kind;

/* Nothing is offloaded. */
extern const sherdi_tier_kind sherdi_tier_device;

#endif
