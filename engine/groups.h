/* Parameter groups, as the configuration and the program together say. */
#ifndef SHERDI_ENGINE_GROUPS_H
#define SHERDI_ENGINE_GROUPS_H

#include "engine/optimizers/optimizer.h"

/** Joins sherd.groups with the groups that the program has declared. E_INVAL (they contradict each
 *  other, or no parameter is in a group), E_NOMEM. */
sherd_status sherdi_groups_settle(sherd_engine *engine);
/** Finds the optimizer that a group names. E_NOTSUP: there is none of that name. E_INVAL: it does
 *  not go with the engine's own. */
sherd_status sherdi_group_optimizer_find(const sherd_engine *engine, const char *group,
                                         const char *name, const sherdi_optimizer **out);

#endif
