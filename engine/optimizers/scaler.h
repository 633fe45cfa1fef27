/* Loss scaling for fp16: DeepSpeed's state machine of its ZeRO path. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_SCALER_H
#define SHERDI_ENGINE_OPTIMIZERS_SCALER_H

#include "base/status.h"

typedef struct sherdi_scaler_params {
    int     is_dynamic;
    double  initial_scale; /* the scale itself when not dynamic */
    int64_t scale_window;
    int     hysteresis;
    int     is_consecutive_hysteresis;
    double  min_scale; /* 0: no floor */
} sherdi_scaler_params;

/* Plain data: it rides in checkpoints. */
typedef struct sherdi_scaler {
    sherdi_scaler_params params;
    double               scale;
    int                  hysteresis_left;
    int64_t              iteration;
    int64_t              last_overflow; /* iteration; -1 at the start */
} sherdi_scaler;

void sherdi_scaler_init(sherdi_scaler *scaler, const sherdi_scaler_params *params);
/** After each boundary. E_NUMERIC when an overflow meets the smallest scale: the model does not
 *  train; the scaler is unchanged then. */
sherd_status sherdi_scaler_update(sherdi_scaler *scaler, int had_overflow);

#endif
