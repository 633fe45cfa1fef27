/* Memory of a world in host memory, also where the world has a device: sherdi_world_alloc gives the
 * device's there. */
#ifndef SHERDI_COLLECTIVES_HOST_MEMORY_H
#define SHERDI_COLLECTIVES_HOST_MEMORY_H

#include "collectives/world.h"

/** Allocates zeroed host memory on every rank, or on none, which the other ranks of the host read
 *  and write in place. Collective, blocking, with equal len_bytes on all ranks; 0 gives a valid
 *  pointer. It is freed with the world at the latest. E_NOMEM; E_NOTSUP: the transport moves device
 *  memory alone. */
sherd_status sherdi_world_alloc_host(sherd_world *world, size_t len_bytes, void **out);
/** Waits for queued calls, then frees the memory. Accepts NULL. Other ranks can use this rank's
 *  until they free theirs. */
void sherdi_world_free_host(sherd_world *world, void *memory);
/** Returns what lies on another rank at the place of `len_bytes` of this rank's memory, which
 *  sherdi_world_alloc_host gave; NULL: the rank is on another host. Also when that rank is gone. */
void *sherdi_world_host_of(const sherd_world *world, int rank, void *memory, size_t len_bytes);

#endif
