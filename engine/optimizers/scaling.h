/* Loss scales that change: the state machine of DeepSpeed's ZeRO path. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_SCALING_H
#define SHERDI_ENGINE_OPTIMIZERS_SCALING_H

#include "engine/optimizers/scaler.h"

/** Goes on where a saved scaler was, if both scales are dynamic. Otherwise the scaler stays as it
 *  is: a scale that is fixed here, or the 1 of other types than fp16, is the configuration's alone,
 *  and a dynamic one does not start from a scale that was fixed. */
void sherdi_scaler_resume(sherdi_scaler *scaler, const sherdi_scaler *saved);
/** Call it once at each boundary. E_NUMERIC: there was an overflow at the smallest scale, so the
 *  model does not train; the scaler is unchanged then. */
sherd_status sherdi_scaler_update(sherdi_scaler *scaler, int had_overflow);

#endif
