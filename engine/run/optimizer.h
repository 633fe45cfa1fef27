/* The numbers of an update: rates, scale and coefficients. */
#ifndef SHERDI_ENGINE_RUN_OPTIMIZER_H
#define SHERDI_ENGINE_RUN_OPTIMIZER_H

#include "base/status.h"

/** Checks that each list of the schedule has one number for each parameter group; the default group
 *  counts if a trainable parameter is in it. E_INVAL. */
sherd_status sherdi_optimizer_check_lists(const sherd_engine *engine);
/** Returns the factor that turns the prepared gradient into the mean over the window, without the
 *  loss scale. */
double sherdi_optimizer_unscale(const sherd_engine *engine);

/** Writes the coefficients of the update that engine->run.coeffs describes, of all groups, and
 *  their hash there. */
void   sherdi_optimizer_coeffs(sherd_engine *engine);
double sherdi_optimizer_group_lr(const sherd_engine *engine, const sherd_step_params *params,
                                 int group, int64_t step);

#endif
