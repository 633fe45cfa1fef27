/* A dry engine: the engine's own calls run on it, and nothing is computed or moved. It has the
 * plan, the progress and the counters of an engine, and no memory of the plan's. Each operation is
 * passed to a callback, in place of the executor (run.c). The other ranks are like this one, and so
 * are their answers. Gradients are finite, with a norm of 0.
 *
 * So the calls themselves emit the operations with which plans are counted, printed, simulated and
 * proved. */
#ifndef SHERDI_ENGINE_PROOF_DRY_H
#define SHERDI_ENGINE_PROOF_DRY_H

#include "engine/program/program.h"

typedef struct sherdi_dry sherdi_dry;

/** Makes a dry engine of a plan, in the state after seal. `fn` receives each operation; it may
 *  allocate. E_NOMEM. */
sherd_status sherdi_dry_create(const sherdi_plan *plan, const sherdi_model *model, sherdi_op_fn fn,
                               void *ctx, sherdi_dry **out);
/** Accepts NULL. */
void sherdi_dry_destroy(sherdi_dry *dry);
/** Marks the initial values as filled, without the calls that fill them. */
sherd_status sherdi_dry_start(sherdi_dry *dry);
/** Returns the engine. Calls on it return the same status as on an engine. */
sherd_engine *sherdi_dry_engine(sherdi_dry *dry);
/** Gives the first values of a parameter: zeros. */
sherd_status sherdi_dry_fill(sherd_engine *engine, size_t param);
/** Adds units that another rank has used to those of which this rank hears in the next exchange of
 *  SHERDI_EXCHANGE_USED: of `other`. */
void sherdi_dry_join(sherdi_dry *dry, const sherdi_dry *other);

#endif
