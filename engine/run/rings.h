/* The rings of an engine: what its calls wait for where data rests on a drive, or an update is queued
 * (program_rings.h). */
#ifndef SHERDI_ENGINE_RUN_RINGS_H
#define SHERDI_ENGINE_RUN_RINGS_H

#include "engine/run/offload.h"

/** Waits until all transfers of a ring are over or dropped; then its slots are empty. Returns the
 *  first failure. */
sherd_status sherdi_run_settle(sherd_engine *engine, sherdi_ring ring);
/** Does the same with reads that nobody needs any more: how they end does not matter. Nothing of
 *  the ring is being written. */
void sherdi_run_drop_ahead(sherd_engine *engine, sherdi_ring ring);
/** Ends the operations of the trainer's calls in a ring. Those of a queued update continue. */
void sherdi_run_leave(sherd_engine *engine, sherdi_ring ring);
/** Ends the transfers of activations; a failure of one that nobody has asked for does not matter. */
void sherdi_run_end_activations(sherd_engine *engine);
/** Makes a walk. When it returns, with or without a failure, every transfer of the walk is over. */
sherd_status sherdi_rings_walk(sherd_engine *engine, sherdi_walk walk);
/** Records the note of this update's commit. Local. E_NUMERIC, as sherdi_scaler_update. */
sherd_status sherdi_update_commit_note(sherd_engine *engine);
/** Call it before the first get or put between two steps. Drops the reads ahead for others, and
 *  returns their first failure. */
sherd_status sherdi_values_begin(sherd_engine *engine);
/** Waits until everything that was filled is on the drive. E_IO: another call tries again. */
sherd_status sherdi_fill_settle(sherd_engine *engine);
/** Does so at the start of an engine, and makes the fingerprint of what will be committed. */
sherd_status sherdi_fill_store(sherd_engine *engine);
/** Returns whether the start of this engine commits its state: it was not resumed, and was not just
 *  loaded from a checkpoint. */
int sherdi_fill_commits(const sherd_engine *engine);

#endif
