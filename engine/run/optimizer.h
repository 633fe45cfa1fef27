/* The numbers of an update: rates, scale and coefficients. */
#ifndef SHERDI_ENGINE_RUN_OPTIMIZER_H
#define SHERDI_ENGINE_RUN_OPTIMIZER_H

#include "engine/run/engine_impl.h"

/** Returns the factor that turns the prepared gradient into the mean over the window, without the
 *  loss scale. */
double sherdi_optimizer_unscale(const sherd_engine *engine);

/** SHERDI_OP_COEFFS: writes the coefficients of the update that engine->run.coeffs describes, of all
 *  groups, and their hash there. */
void   sherdi_kernel_coeffs(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op);
double sherdi_optimizer_group_lr(const sherd_engine *engine, const sherd_step_params *params,
                                 int group, int64_t step);

#endif
