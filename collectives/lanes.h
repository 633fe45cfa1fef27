/* What the lanes of an engine ask of a world, in addition to world.h. */
#ifndef SHERDI_COLLECTIVES_LANES_H
#define SHERDI_COLLECTIVES_LANES_H

#include "collectives/world.h"

/** Returns 1 when the call with this ticket is done. Never blocks. */
int sherdi_world_is_done(sherd_world *world, sherdi_ticket ticket);

#endif
