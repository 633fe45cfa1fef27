/* Loss scaling for fp16: the state machine of DeepSpeed's ZeRO path. The core has its scale, and
 * keeps it; the module scaling changes it at each boundary. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_SCALER_H
#define SHERDI_ENGINE_OPTIMIZERS_SCALER_H

#include "base/status.h"

typedef struct sherdi_scaler_params {
    int     is_dynamic;
    double  initial_scale; /* if not dynamic, the scale for good */
    int64_t scale_window;
    int     hysteresis;
    int     is_consecutive_hysteresis;
    double  min_scale; /* 0: none is set; the floor is then FLT_MIN */
} sherdi_scaler_params;

/* Plain data, which checkpoints contain. */
typedef struct sherdi_scaler {
    sherdi_scaler_params params;
    double               scale;
    int                  hysteresis_left;
    int64_t              iteration;
    int64_t              last_overflow; /* its iteration; -1 at the start */
} sherdi_scaler;

static inline void sherdi_scaler_init(sherdi_scaler *scaler, const sherdi_scaler_params *params)
{
    *scaler = (sherdi_scaler){
        .params          = *params,
        .scale           = params->initial_scale,
        .hysteresis_left = params->hysteresis,
        .last_overflow   = -1,
    };
}

#endif
