/* What the plan has to know of the machine. */
#ifndef SHERDI_ENGINE_MACHINE_H
#define SHERDI_ENGINE_MACHINE_H

#include "collectives/world.h"
#include "engine/plan/plan.h"

/** Measures what this host has; gives the same on all ranks. Collective. */
sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out);
/** Gives the bytes that this process can still take on this host, at least 1: what is free there,
 *  or less by the limit of a control group, of the process, or of SHERD_MEMORY_LIMIT; and which of
 *  them it is. 0: unknown. E_INVAL: that variable is no number. */
sherd_status sherdi_machine_free_memory(size_t *out, sherdi_memory_bound *bound_out);
/** Returns the bytes left under a control group's limit, from the files of either version; the
 *  group's page cache that can be reclaimed counts as left. SIZE_MAX: no limit. */
size_t sherdi_machine_group_left(const char *folder);

#endif
