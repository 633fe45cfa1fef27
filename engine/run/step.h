/* The two halves of a step, for the calls that make them (step.c, step_parts.c). */
#ifndef SHERDI_ENGINE_RUN_STEP_H
#define SHERDI_ENGINE_RUN_STEP_H

#include "engine/run/engine_impl.h"

typedef sherd_status (*sherdi_update_fn)(sherd_engine *engine);

/** Returns E_STATE for a call of a step that the engine's state does not allow. */
sherd_status sherdi_step_check(sherd_engine *engine, const char *call);
/** Starts an engine with open-ended units: this rank may not have acquired a unit yet where other
 *  ranks have. */
sherd_status sherdi_step_late_start(sherd_engine *engine);
/** Checks that a report can be written to `out`, before the step changes anything; NULL is right. */
sherd_status sherdi_step_report_check(const sherd_step_report *out);
/** Ends a micro-batch; at a boundary the engine is prepared afterwards. Collective. */
sherd_status sherdi_step_prepare(sherd_engine *engine, sherdi_step_call call);
/** Drops the gradients of this window; nothing was updated. Returns `status`, which says why. */
sherd_status sherdi_step_drop_window(sherd_engine *engine, sherd_status status);
/** Makes this rank's fingerprint of the state known. Drops the reads ahead for an update. */
sherd_status sherdi_step_fingerprint(sherd_engine *engine);
/** Makes the update of a prepared step. `compare`: compares a number for the choices of this rank's
 *  trainer with the other ranks', before anything is written; NULL: there were no choices.
 *  `update`: sherdi_update_range, or sherdi_step_queued. Collective. */
sherd_status sherdi_step_apply(sherd_engine *engine, const sherd_step_params *params,
                               sherd_status (*compare)(sherd_engine *engine, uint64_t choice),
                               sherdi_update_fn update);
/** Queues the update of a prepared step if this engine can, and makes it otherwise. */
sherd_status sherdi_step_queued(sherd_engine *engine);

#endif
