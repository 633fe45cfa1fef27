/* The tier where data rests that is not offloaded. */
#include "offload/tier_kind.h"

const sherdi_tier_kind sherdi_tier_device = {.space = SHERDI_SPACE_DEVICE};
