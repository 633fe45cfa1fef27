/* Coefficients of an update. They are made once per step and group, in double, from rates that are
 * equal on every rank; the optimizer rounds them for its kernels (engine/optimizers/). */
#include "engine/run/optimizer.h"

#include "base/hash.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/scalars.h"

#include <math.h>

static double or_default(double value, double fallback)
{
    return isnan(value) ? fallback : value;
}

double sherdi_optimizer_unscale(const sherd_engine *engine)
{
    /* integers: sums over the ranks, without the loss scale */
    if (engine->plan->layout.is_deterministic) {
        return ldexp(1, -engine->plan->layout.fixed_shift) / engine->window.counted;
    }
    return 1 / (engine->scaler.scale * (engine->window.counted / engine->world_size));
}

/* The numbers of a group that gives none of its own. */
static sherdi_optimizer_defaults numbers_of(const sherd_engine *engine, size_t group)
{
    const sherdi_settings *settings = &engine->settings;

    return sherdi_optimizer_numbers(settings,
                                    sherdi_group_optimizer(settings, &engine->model.groups[group]));
}

/* Returns the trainer's value for a group in one of the lists of a step's parameters; NaN: none. */
static double given_of(const sherd_step_params *params, const double *list, int group)
{
    return list != NULL && group < params->group_count ? list[group] : NAN;
}

double sherdi_optimizer_group_lr(const sherd_engine *engine, const sherd_step_params *params,
                                 int group, int64_t step)
{
    double given = params == NULL ? NAN : given_of(params, params->group_lr, group);
    double lr    = or_default(engine->model.groups[group].lr, numbers_of(engine, (size_t)group).lr);

    sherdi_modules_scheduled(engine, group, step, &lr, NULL);
    return or_default(given, lr);
}

static sherdi_group_step group_step_of(const sherd_engine *engine, const sherdi_coeffs_call *call,
                                       size_t g)
{
    const sherd_step_params  *params    = call->params;
    int64_t                   step      = call->step;
    const sherdi_settings    *settings  = &engine->settings;
    const sherdi_model_group *group     = &engine->model.groups[g];
    const sherdi_optimizer   *optimizer = sherdi_group_optimizer(settings, group);
    sherdi_optimizer_defaults numbers   = numbers_of(engine, g);
    double                    betas[]   = {or_default(group->beta1, numbers.betas[0]),
                                           or_default(group->beta2, numbers.betas[1])};
    sherdi_group_step         out       = {
                      .grad_scale  = call->grad_scale,
                      .lr          = sherdi_optimizer_group_lr(engine, params, (int)g, step),
                      .eps         = or_default(group->eps, numbers.eps),
                      .decay       = or_default(group->weight_decay, settings->update.weight_decay),
                      .bias1       = 1,
                      .bias2       = 1,
                      .step        = step,
                      .dampening   = settings->update.sgd.dampening,
                      .is_nesterov = numbers.is_nesterov,
                      .lr_decay    = settings->update.adagrad.lr_decay,
                      .initial     = settings->update.adagrad.initial,
    };

    if (optimizer->with_momentum == NULL) { /* a momentum is not scheduled, as in DeepSpeed */
        sherdi_modules_scheduled(engine, (int)g, step, NULL, betas);
    }
    if (params != NULL) {
        betas[0]  = or_default(given_of(params, params->group_beta1, (int)g), betas[0]);
        out.decay = or_default(given_of(params, params->group_weight_decay, (int)g), out.decay);
    }
    out.beta1 = betas[0];
    out.beta2 = betas[1];
    if (settings->update.bias_correction) {
        out.bias1 = 1 - pow(out.beta1, (double)step);
        out.bias2 = 1 - pow(out.beta2, (double)step);
    }
    return out;
}

void sherdi_kernel_coeffs(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_plan  *plan = engine->plan;
    sherdi_coeffs_call *call = &engine->run.coeffs;

    (void)lane, (void)op;
    call->hash = 1;
    for (size_t i = 0; i < plan->layout.num_optimizers; i++) {
        const sherdi_optimizer *optimizer = plan->layout.optimizers[i].optimizer;
        unsigned char          *coeffs =
            engine->kernel_data.on_host.memory + plan->layout.optimizers[i].coeffs;

        for (size_t g = 0; g < engine->model.num_groups; g++) {
            sherdi_group_step group = group_step_of(engine, call, g);

            if (sherdi_group_optimizer(&engine->settings, &engine->model.groups[g]) == optimizer) {
                optimizer->coeffs(&engine->settings, &group, coeffs + g * optimizer->coeff_bytes);
                call->hash = sherdi_hash_bytes(call->hash, coeffs + g * optimizer->coeff_bytes,
                                               optimizer->coeff_bytes);
            }
        }
    }
}
