/* Simulated worlds: one rank of a described machine, for the plans of large worlds. They move
 * nothing; sherd_world_simulate makes them for a program. */
#ifndef SHERDI_COLLECTIVES_SIMULATED_H
#define SHERDI_COLLECTIVES_SIMULATED_H

#include "collectives/world.h"

/* The machine that a simulated rank stands for. A size of 0 is unknown. */
typedef struct sherdi_simulated {
    int    has_device;  /* device memory is not the host's */
    int    has_receive; /* reductions are received into room of the world's own */
    int    is_on_lane;  /* collectives are ordered on the device */
    int    ranks_per_host;
    size_t device_bytes, host_bytes;
} sherdi_simulated;
/** Returns that machine; NULL for a world that is real. */
const sherdi_simulated *sherdi_world_simulated(const sherd_world *world);

/** Makes a simulated world without a backend, for a dry engine: it answers the messages of ranks,
 *  and moves nothing. E_NOMEM. */
sherd_status sherdi_world_dry(int rank, int world_size, sherd_world **out);

#endif
