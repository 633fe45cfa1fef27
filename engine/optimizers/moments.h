/* What the optimizers with two moments share, and the sweep of the two Adams. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_MOMENTS_H
#define SHERDI_ENGINE_OPTIMIZERS_MOMENTS_H

#include "engine/optimizers/optimizer.h"
#include "kernels/updates/updates.h"

#include <math.h>

enum { SHERDI_PART_MASTER = 0, SHERDI_PART_M, SHERDI_PART_V, SHERDI_MOMENT_PARTS };

#define SHERDI_ALL_MOMENT_PARTS ((1u << SHERDI_MOMENT_PARTS) - 1)

/* The names are PyTorch's. */
#define SHERDI_PARTS_WITH_MOMENTS                                                                  \
    {                                                                                              \
        {"master"}, {"exp_avg"}, {"exp_avg_sq"},                                                   \
    }

/* All but the decay. */
static inline sherdi_adam_coeffs sherdi_adam_coeffs_of(const sherdi_group_step *step)
{
    return (sherdi_adam_coeffs){
        .grad_scale      = (float)step->grad_scale,
        .beta1           = (float)step->beta1,
        .one_minus_beta1 = (float)(1 - step->beta1),
        .beta2           = (float)step->beta2,
        .one_minus_beta2 = (float)(1 - step->beta2),
        .eps             = (float)step->eps,
        .neg_step_size   = (float)(-step->lr / step->bias1),
        .inv_sqrt_bias   = (float)(1 / sqrt(step->bias2)),
    };
}

/* What the kernels take. */
static inline sherdi_update_args sherdi_update_args_of(const sherdi_sweep_args *args)
{
    return (sherdi_update_args){
        .spans       = args->spans,
        .num_spans   = args->num_spans,
        .coeffs      = args->coeffs,
        .grad        = args->grad,
        .grad_dtype  = args->grad_dtype,
        .master      = args->parts[SHERDI_PART_MASTER],
        .m           = args->parts[SHERDI_PART_M],
        .v           = args->parts[SHERDI_PART_V],
        .param       = args->param,
        .param_dtype = args->param_dtype,
        .fingerprint = args->fingerprint,
    };
}

static inline void sherdi_adam_run(const sherdi_backend *lane, const sherdi_sweep_args *args)
{
    sherdi_update_args adam = sherdi_update_args_of(args);

    lane->kernels->update(lane, SHERDI_UPDATE_adam, &adam);
}

#define SHERDI_ADAM_SWEEP                                                                          \
    {                                                                                              \
        .reads = SHERDI_ALL_MOMENT_PARTS, .writes = SHERDI_ALL_MOMENT_PARTS, .reads_gradient = 1,  \
        .writes_param = 1, .run = sherdi_adam_run                                                  \
    }

#endif
