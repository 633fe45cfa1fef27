/* A group of a world's ranks that the caller knows without asking them. */
#ifndef SHERDI_COLLECTIVES_GROUP_H
#define SHERDI_COLLECTIVES_GROUP_H

#include "collectives/world.h"

/** Makes the world of the ranks first, first + stride, ...: `count` of them, this rank too; it
 *  connects them as sherd_world_split does. Every rank of `world` calls it, with its own group, and
 *  the groups have no rank in common. Collective, blocking. A simulated world gives another one.
 *  Errors: those of sherd_world_split. */
sherd_status sherdi_world_group(sherd_world *world, int first, int stride, int count,
                                sherd_world **out);

#endif
