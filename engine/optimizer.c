/* Coefficients of an update: made once per step and group, in double, from identical
 * numbers on every rank, and rounded to fp32 for the kernels. */
#include "engine/engine_impl.h"

#include <math.h>

static double or_default(double value, double fallback)
{
    return isnan(value) ? fallback : value;
}

double sherdi_optimizer_unscale(const sherd_engine *engine)
{
    if (engine->plan->is_fixed) { /* the loss scale went into the integers, the ranks are a sum */
        return ldexp(1, -engine->plan->fixed_shift) /
               ((double)engine->world_size * engine->micro_seen);
    }
    return 1 / (engine->scaler.scale * engine->micro_seen);
}

double sherdi_optimizer_group_lr(const sherd_engine *engine, const sherd_step_params *params,
                                 int group, int64_t step)
{
    double own = or_default(engine->model.groups[group].lr, engine->settings.lr);

    if (params != NULL && params->group_lr != NULL && group < params->group_count &&
        !isnan(params->group_lr[group])) {
        return params->group_lr[group];
    }
    return sherdi_schedule_lr(&engine->settings.schedule, own, step);
}

void sherdi_optimizer_coeffs(const sherd_engine *engine, const sherd_step_params *params,
                             double grad_scale, int64_t step, sherdi_adam_coeffs *coeffs)
{
    const sherdi_settings *settings = &engine->settings;

    for (size_t g = 0; g < engine->model.num_groups; g++) {
        const sherdi_model_group *group = &engine->model.groups[g];
        double                    lr    = sherdi_optimizer_group_lr(engine, params, (int)g, step);
        double                    beta1 = or_default(group->beta1, settings->beta1);
        double                    beta2 = or_default(group->beta2, settings->beta2);
        double                    decay = or_default(group->weight_decay, settings->weight_decay);
        double bias1 = settings->bias_correction ? 1 - pow(beta1, (double)step) : 1;
        double bias2 = settings->bias_correction ? 1 - pow(beta2, (double)step) : 1;
        int    is_l2 = settings->optimizer == SHERDI_OPTIMIZER_ADAM;

        coeffs[g] = (sherdi_adam_coeffs){
            .grad_scale      = (float)grad_scale,
            .beta1           = (float)beta1,
            .one_minus_beta1 = (float)(1 - beta1),
            .beta2           = (float)beta2,
            .one_minus_beta2 = (float)(1 - beta2),
            .eps             = (float)or_default(group->eps, settings->eps),
            .neg_lr_decay    = is_l2 ? 0 : (float)(-lr * decay),
            .l2_decay        = is_l2 ? (float)decay : 0,
            .neg_step_size   = (float)(-lr / bias1),
            .inv_sqrt_bias   = (float)(1 / sqrt(bias2)),
        };
    }
}
