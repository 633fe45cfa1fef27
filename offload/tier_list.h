/* The tiers, a line each: the name that a configuration's "device" gives it, and its table. tier.h declares them from here.
 * The first is where nothing is offloaded to. */
SHERDI_TIER("none", sherdi_tier_device)
SHERDI_TIER("cpu", sherdi_tier_host)
SHERDI_TIER("nvme", sherdi_tier_nvme)
