/* First values: parameters are filled after seal, until the engine starts. */
#ifndef SHERDI_ENGINE_RUN_FILL_H
#define SHERDI_ENGINE_RUN_FILL_H

#include "engine/run/values.h"

/* When a rank fails at the start: for the messages of the others. */
#define SHERDI_FILL_BEGINS "while it began with its first values"

/** Allocates the tables of the filling; call it after the plan was made. E_NOMEM. */
sherd_status sherdi_fill_open(sherd_engine *engine);
void         sherdi_fill_close(sherd_engine *engine);
/** Waits until everything that was filled is on the drive. E_IO: another call tries again. */
sherd_status sherdi_fill_settle(sherd_engine *engine);
/** Before the start: takes the values of bound parameters that were not filled so far, since a load
 *  that lacks them would write over them. Local. */
sherd_status sherdi_fill_bound(sherd_engine *engine);
/** Ends the filling and starts the engine, if it has not started: at the first acquire, or in an
 *  earlier call that needs it. Checks that every parameter is filled (fills bound ones from their
 *  own memory), that parameters that are whole on every rank are equal, and that the ranks agree on
 *  which are whole. Collective. */
sherd_status sherdi_fill_finish(sherd_engine *engine);
/** Returns whether the start of this engine commits its state: it was not resumed, and was not just
 *  loaded from a checkpoint. */
int sherdi_fill_commits(const sherd_engine *engine);
/** Sums the element mixes of this rank's part of a range of one parameter, frozen or not. E_IO. */
sherd_status sherdi_fill_range_fingerprint(sherd_engine *engine, const sherdi_values *values,
                                           uint64_t *out);

#endif
