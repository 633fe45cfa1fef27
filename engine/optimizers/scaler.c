/* The loss scaler: a small state machine over plain numbers, which each boundary updates once. The scale is halved after `hysteresis` overflows, and doubled after `scale_window`
 * boundaries without an overflow since the last one. */
#include "engine/optimizers/scaling.h"

#include <float.h>

/* The API gives the scale as a float, and gradients are divided by it, so the scale and its
 * reciprocal both stay normal floats. No training that works comes near either limit. */
static const double SMALLEST_SCALE = FLT_MIN;
static const double LARGEST_SCALE  = 1.0 / FLT_MIN;

void sherdi_scaler_resume(sherdi_scaler *scaler, const sherdi_scaler *saved)
{
    const sherdi_scaler_params params = scaler->params;

    if (params.is_dynamic && saved->params.is_dynamic) {
        *scaler        = *saved;
        scaler->params = params;
    }
}

static sherd_status scaler_lower(sherdi_scaler *scaler)
{
    double floor = scaler->params.min_scale > 0 ? scaler->params.min_scale : SMALLEST_SCALE;

    if (scaler->hysteresis_left > 1) {
        scaler->hysteresis_left--;
        return SHERD_OK;
    }
    if (scaler->scale <= floor) { /* below: the run began under it */
        return sherdi_fail(
            SHERD_E_NUMERIC,
            "gradients overflow at the smallest loss scale %g (fp16.min_loss_scale): "
            "the model diverges or does not fit fp16; lower the learning rate or "
            "use bf16",
            scaler->scale);
    }
    scaler->scale = scaler->scale / 2 > floor ? scaler->scale / 2 : floor;
    return SHERD_OK;
}

static void scaler_raise(sherdi_scaler *scaler)
{
    int is_window_full =
        (scaler->iteration - scaler->last_overflow) % scaler->params.scale_window == 0;

    if (is_window_full || scaler->params.is_consecutive_hysteresis) {
        scaler->hysteresis_left = scaler->params.hysteresis;
    }
    if (is_window_full && scaler->scale <= LARGEST_SCALE / 2) {
        scaler->scale *= 2;
    }
}

sherd_status sherdi_scaler_update(sherdi_scaler *scaler, int had_overflow)
{
    if (had_overflow) {
        if (scaler->params.is_dynamic) {
            SHERDI_TRY(scaler_lower(scaler));
        }
        scaler->last_overflow = scaler->iteration;
    } else if (scaler->params.is_dynamic) {
        scaler_raise(scaler);
    }
    scaler->iteration++;
    return SHERD_OK;
}
