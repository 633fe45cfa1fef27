/* The kinds of tiers that a build has, by number and by name. */
#ifndef SHERDI_OFFLOAD_TIERS_H
#define SHERDI_OFFLOAD_TIERS_H

#include "offload/tier_kind.h"

#define SHERDI_TIER(name, table) extern const sherdi_tier_kind table;
#include "offload/tier_list.h"
#undef SHERDI_TIER

/** "|none|cpu|nvme": the choices of a "device" key; without the first bar, choice i is tier i. */
extern const char sherdi_tier_choices[];

const sherdi_tier_kind *sherdi_tier_at(size_t index);
size_t                  sherdi_tier_index(const sherdi_tier_kind *kind);
/** Returns the kind of that name; NULL: there is none. */
const sherdi_tier_kind *sherdi_tier_find(const char *name);
const char             *sherdi_tier_name(const sherdi_tier_kind *kind);
/** Returns the first kind of that space. */
const sherdi_tier_kind *sherdi_tier_of(sherdi_space space);

#endif
