/* What listens to a world: its failure, and the words of other ranks (world_listener). */
#ifndef SHERDI_COLLECTIVES_LISTENERS_H
#define SHERDI_COLLECTIVES_LISTENERS_H

#include "collectives/world_impl.h"

/** A transport passes on here what another rank said about an ending or a split. Any thread may
 *  call it. */
void sherdi_world_told(sherd_world *world, uint64_t key, int is_agreed);
/** Adds a listener, which the world drops at its end. */
void sherdi_world_listen(sherd_world *world, world_listener *listener);
/** Returns the listener with this table; NULL: there is none. */
world_listener *sherdi_world_listener(const sherd_world *world, const world_listener_ops *ops);

#endif
