/* Brings ranks together that are at different positions in their order of calls. */
#ifndef SHERDI_COLLECTIVES_REGROUP_H
#define SHERDI_COLLECTIVES_REGROUP_H

#include "collectives/world.h"

/**
 *  Brings all ranks together: every rank calls it, wherever it is in the order of calls, and all
 *  leave together. Calls in which some ranks still wait end there with E_STATE and an undefined
 *  result, queued calls too, and the world is as usable as before. If the transport cannot cancel a
 *  call (nccl, mpi over several hosts), all ranks must have made the same number of calls.
 *
 *  Collective, blocking; waits for this rank's queued calls. Failures of tickets are forgotten.
 *  Errors     E_STATE or E_INVAL: calls that cannot be taken back, and the world is lost.
 *             E_PEER_LOST.
 */
sherd_status sherdi_world_regroup(sherd_world *world);
/**
 *  Says that this rank has failed, and comes to the others' next call no more: that call ends with
 *  E_STATE, which names this rank and has its `text`. All ranks then call sherdi_world_regroup.
 *
 *  Collective in the place of the others' next call, where sherdi_world_takes_back. Blocking; waits
 *  for this rank's queued calls.
 *  Errors     E_PEER_LOST
 */
sherd_status sherdi_world_interrupt(sherd_world *world, sherd_status why, const char *text);
/** Returns whether sherdi_world_regroup ends calls that some ranks have made and others have
 *  not. */
int sherdi_world_takes_back(const sherd_world *world);

#endif
