/* The walks over the blocks of this rank's state. */
#ifndef SHERDI_ENGINE_RUN_UPDATE_H
#define SHERDI_ENGINE_RUN_UPDATE_H

#include "engine/run/run.h"

/** Updates every block and publishes. E_IO on any rank is returned on every rank. Collective. */
sherd_status sherdi_update_range(sherd_engine *engine);
/** Updates every block of this rank, makes fingerprints.own known, and commits with the recorded
 *  note (sherdi_update_commit_note). Local. E_IO. */
sherd_status sherdi_update_walk(sherd_engine *engine);
/** Makes fingerprints.own known, where it is not: as _read_fingerprint does. Local. E_IO. */
sherd_status sherdi_update_fingerprint(sherd_engine *engine);
/** Gives the fingerprint of this rank's state: the one that the last walk has sent, or the one that
 *  a walk over the state sums. Local. E_IO. */
sherd_status sherdi_update_read_fingerprint(sherd_engine *engine, uint64_t *out);
/** Makes a walk. When it returns, with or without a failure, every transfer of the walk is over. */
sherd_status sherdi_update_walk_over(sherd_engine *engine, sherdi_walk walk);
/** Sends the updated values of this rank to the others, if the walk has not. Collective. */
sherd_status sherdi_update_publish(sherd_engine *engine);
/** Exchanges how it went on each rank. *out is the sum of the fingerprints. Where another rank
 *  failed, the message is "rank 1 failed <when>". Collective. */
sherd_status sherdi_update_agree(sherd_engine *engine, sherd_status status, uint64_t own,
                                 const char *when, uint64_t *out);

#endif
