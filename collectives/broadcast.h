/* Broadcasts of host memory to the ranks of a world. */
#ifndef SHERDI_COLLECTIVES_BROADCAST_H
#define SHERDI_COLLECTIVES_BROADCAST_H

#include "collectives/world.h"

/** Does what sherd_world_broadcast does, for a call that is noted already. */
sherd_status sherdi_world_broadcast(sherd_world *world, void *data, size_t len_bytes, int root);

#endif
