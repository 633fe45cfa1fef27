/* Memory of a device that a world takes before its first call. A world without a device takes
 * none. */
#ifndef SHERDI_COLLECTIVES_ROOM_H
#define SHERDI_COLLECTIVES_ROOM_H

#include "collectives/world.h"

/* sherdi_world_reserve. A transport that cannot sum in the order of ranks receives the other ranks'
 * slices and sums them itself. The engine reserves once, at seal, for the largest gradient that is
 * reduced.
 *
 *  Units       whole_bytes is the bytes of world_size * slice_elems elements of send_dtype: the
 *              send buffer of the call.
 *  Collective  With equal whole_bytes on all ranks. Does nothing where it is not more than before,
 *              or not needed.
 *  Ownership   The room is the world's; its overhead_bytes count
 *              sherdi_world_reserve_bytes of it.
 *  Errors      E_NOMEM on all ranks. A reduction for which too little was reserved is E_NOMEM, with
 *              the numbers.
 *
 * sherdi_world_warm lets the transport take the device memory that it takes at its first calls
 * (buffers of each peer), by making a small call of each kind. The memory that is free afterwards is
 * for the engine. Call it once; it does nothing on most transports. The log and
 * its taken_bytes say how much was allocated, including allocations of other processes on
 * the device in the meantime.
 *
 *  Collective  Blocks until all ranks are through. `has_vendor_sums`: SHERDI_COLL_VENDOR_SUM will
 *              be asked for.
 *  Errors      E_NOMEM on all ranks; E_DEVICE, E_PEER_LOST as for every call. */

sherd_status sherdi_world_reserve(sherd_world *world, size_t whole_bytes);
sherd_status sherdi_world_warm(sherd_world *world, int has_vendor_sums);
/** Returns the bytes that a reservation holds on this rank, for the plan: 0 on most transports. */
size_t sherdi_world_reserve_bytes(const sherd_world *world, size_t whole_bytes);

#endif
