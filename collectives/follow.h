/* What the caller does with the ticket of a call. */
#ifndef SHERDI_COLLECTIVES_FOLLOW_H
#define SHERDI_COLLECTIVES_FOLLOW_H

#include "collectives/world.h"

/** Blocks until the call with this ticket is done. Returns its failure, or that of an earlier
 *  call. */
sherd_status sherdi_world_wait(sherd_world *world, sherdi_ticket ticket);
/** Makes later work on `lane` run after the call with this ticket. Where the call is on a lane
 *  (SHERDI_WORLD_ON_LANE) it does not wait for the device, only for the world's thread, where there
 *  is one, to have queued the call. Returns what sherdi_world_wait would, as far as it is known. */
sherd_status sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                 sherdi_ticket ticket);
/** Returns 1 when the call with this ticket is done. Never blocks. */
int sherdi_world_is_done(sherd_world *world, sherdi_ticket ticket);

/** Returns E_INVAL for a ticket after the last one that was issued. */
sherd_status sherdi_ticket_check(sherdi_ticket ticket, sherdi_ticket issued);

#endif
