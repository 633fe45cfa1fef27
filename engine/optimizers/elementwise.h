/* Makes the arguments of a kernel's update from those of a sweep. The tables in elementwise.c,
 * lamb.c and muon.c use it. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_ELEMENTWISE_H
#define SHERDI_ENGINE_OPTIMIZERS_ELEMENTWISE_H

#include "engine/optimizers/optimizer.h"

/* Fills everything except norms and ratios. */
static inline sherdi_update_args sherdi_update_args_of(const sherdi_sweep_args *args)
{
    sherdi_update_args update = {
        .spans       = args->spans,
        .num_spans   = args->num_spans,
        .coeffs      = args->coeffs,
        .grad        = args->grad,
        .grad_dtype  = args->grad_dtype,
        .param       = args->param,
        .param_dtype = args->param_dtype,
        .fingerprint = args->fingerprint,
        .step        = args->step,
        .ties_part   = args->ties_part,
    };

    for (int part = 0; part < SHERDI_MOST_PARTS; part++) {
        update.parts[part]     = args->parts[part];
        update.encodings[part] = args->encodings[part];
    }
    return update;
}

#endif
