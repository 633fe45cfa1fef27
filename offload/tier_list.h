/* The tiers, one per line: the name that a configuration's "device" gives a tier, and its table.
 * tiers.h declares them from this list. The first means that nothing is offloaded. */
#include "sherd_build.h"

SHERDI_TIER("none", sherdi_tier_device)
SHERDI_IN_OFFLOAD(SHERDI_TIER("cpu", sherdi_tier_host))
SHERDI_IN_OFFLOAD(SHERDI_TIER("nvme", sherdi_tier_nvme))
