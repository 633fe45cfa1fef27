/* Simulated worlds: one rank of a described machine, for the plans of large worlds. They move
 * nothing; sherd_world_simulate makes them for a program. */
#ifndef SHERDI_COLLECTIVES_SIMULATED_H
#define SHERDI_COLLECTIVES_SIMULATED_H

#include "collectives/world.h"

/** Makes a simulated world without a backend, for a dry engine: it answers the messages of ranks,
 *  and moves nothing. E_NOMEM. */
sherd_status sherdi_world_dry(int rank, int world_size, sherd_world **out);

#endif
