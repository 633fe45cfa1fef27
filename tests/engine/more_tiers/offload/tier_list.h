/* The library's tiers, and a line more. */
#include_next "offload/tier_list.h"
SHERDI_TIER("cupboard", test_tier_cupboard)
