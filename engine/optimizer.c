/* Coefficients of an update: made once per step and group, in double, from identical
 * numbers on every rank, and rounded to fp32 for the kernels. */
#include "engine/engine_impl.h"

#include "base/hash.h"

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

/* A group's numbers of one step. */
typedef struct group_step {
    double lr, beta1, beta2, eps, decay;
    double bias1, bias2; /* 1 - beta^step, or 1 */
} group_step;

static group_step group_step_of(const sherd_engine *engine, const sherd_step_params *params,
                                size_t g, int64_t step)
{
    const sherdi_settings    *settings = &engine->settings;
    const sherdi_model_group *group    = &engine->model.groups[g];
    group_step                out      = {
                            .lr    = sherdi_optimizer_group_lr(engine, params, (int)g, step),
                            .beta1 = or_default(group->beta1, settings->beta1),
                            .beta2 = or_default(group->beta2, settings->beta2),
                            .eps   = or_default(group->eps, settings->eps),
                            .decay = or_default(group->weight_decay, settings->weight_decay),
                            .bias1 = 1,
                            .bias2 = 1,
    };

    if (settings->bias_correction) {
        out.bias1 = 1 - pow(out.beta1, (double)step);
        out.bias2 = 1 - pow(out.beta2, (double)step);
    }
    return out;
}

static sherdi_adam_coeffs adam_coeffs(const sherd_engine *engine, const group_step *group,
                                      double grad_scale)
{
    int is_l2 = engine->settings.optimizer == SHERDI_OPTIMIZER_ADAM;

    return (sherdi_adam_coeffs){
        .grad_scale      = (float)grad_scale,
        .beta1           = (float)group->beta1,
        .one_minus_beta1 = (float)(1 - group->beta1),
        .beta2           = (float)group->beta2,
        .one_minus_beta2 = (float)(1 - group->beta2),
        .eps             = (float)group->eps,
        .neg_lr_decay    = is_l2 ? 0 : (float)(-group->lr * group->decay),
        .l2_decay        = is_l2 ? (float)group->decay : 0,
        .neg_step_size   = (float)(-group->lr / group->bias1),
        .inv_sqrt_bias   = (float)(1 / sqrt(group->bias2)),
    };
}

static sherdi_lamb_coeffs lamb_coeffs(const sherd_engine *engine, const group_step *group,
                                      double grad_scale)
{
    const sherdi_lamb_settings *lamb = &engine->settings.lamb;
    double step = lamb->is_papers ? group->lr : group->lr * sqrt(group->bias2) / group->bias1;

    return (sherdi_lamb_coeffs){
        .grad_scale      = (float)grad_scale,
        .beta1           = (float)group->beta1,
        .one_minus_beta1 = (float)(1 - group->beta1),
        .beta2           = (float)group->beta2,
        .one_minus_beta2 = (float)(1 - group->beta2),
        .inv_bias1       = lamb->is_papers ? (float)(1 / group->bias1) : 1,
        .inv_bias2       = lamb->is_papers ? (float)(1 / group->bias2) : 1,
        .eps_inside      = lamb->eps_inside_sqrt ? (float)group->eps : 0,
        .eps             = lamb->eps_inside_sqrt ? 0 : (float)group->eps,
        .decay           = (float)group->decay,
        .neg_step_size   = (float)-step,
        .min_ratio       = (float)lamb->min_coeff,
        .max_ratio       = (float)lamb->max_coeff,
    };
}

uint64_t sherdi_optimizer_coeffs(sherd_engine *engine, const sherd_step_params *params,
                                 double grad_scale, int64_t step)
{
    int    is_lamb = engine->settings.optimizer == SHERDI_OPTIMIZER_LAMB;
    size_t groups  = engine->model.num_groups;

    for (size_t g = 0; g < groups; g++) {
        group_step group = group_step_of(engine, params, g, step);

        if (is_lamb) {
            ((sherdi_lamb_coeffs *)engine->on_host.coeffs)[g] =
                lamb_coeffs(engine, &group, grad_scale);
        } else {
            ((sherdi_adam_coeffs *)engine->on_host.coeffs)[g] =
                adam_coeffs(engine, &group, grad_scale);
        }
    }
    sherdi_numbers_tell(engine);
    return sherdi_hash_bytes(
        1, engine->on_host.coeffs,
        groups * (is_lamb ? sizeof(sherdi_lamb_coeffs) : sizeof(sherdi_adam_coeffs)));
}

int sherdi_optimizer_ratio_group(const sherd_engine *engine, size_t param)
{
    const sherdi_model_param *info  = &engine->model.params[param];
    const sherdi_model_group *group = &engine->model.groups[info->group];
    int is_excluded = group->exclude_1d < 0 ? engine->settings.lamb.exclude_1d : group->exclude_1d;

    return is_excluded && info->ndim <= 1 ? -1 : info->group;
}

/* --------------------------------------------------------------- kernels -- */

/* The parts of a block's state. Without a master of its own, the parameter is it. */
typedef struct state_parts {
    float *master, *m, *v;
} state_parts;

static state_parts parts_of(const sherd_engine *engine, const sherdi_op *op, float *state,
                            void *param)
{
    size_t stride = op->block->stride_elems;

    if (engine->plan->segments[op->segment].has_master) {
        return (state_parts){state, state + stride, state + 2 * stride};
    }
    return (state_parts){param, state, state + stride};
}

static void adam_run(sherd_engine *engine, const sherdi_op *op, const sherdi_backend *lane,
                     state_parts parts, const void *gradient, void *param)
{
    const sherdi_numbers *numbers = sherdi_place_numbers(engine, op->place);
    sherdi_adam_args      args    = {
                .spans       = numbers->spans + op->block->first_span,
                .num_spans   = op->block->num_spans,
                .coeffs      = numbers->coeffs,
                .grad        = gradient,
                .grad_dtype  = engine->plan->grad_dtype,
                .master      = parts.master,
                .m           = parts.m,
                .v           = parts.v,
                .param       = param,
                .param_dtype = engine->settings.compute_dtype,
                .fingerprint = &numbers->head->fingerprint,
    };

    lane->kernels->adam(lane, &args);
}

static void lamb_run(sherd_engine *engine, const sherdi_op *op, const sherdi_backend *lane,
                     state_parts parts, const void *gradient, void *param)
{
    const sherdi_numbers *numbers = sherdi_place_numbers(engine, op->place);
    sherdi_lamb_args      args    = {
                .spans       = numbers->spans + op->block->first_span,
                .num_spans   = op->block->num_spans,
                .coeffs      = numbers->coeffs,
                .grad        = gradient,
                .grad_dtype  = engine->plan->grad_dtype,
                .master      = parts.master,
                .m           = parts.m,
                .v           = parts.v,
                .param       = param,
                .param_dtype = engine->settings.compute_dtype,
                .fingerprint = &numbers->head->fingerprint,
                .norms       = numbers->norms,
                .ratios      = numbers->ratios,
    };

    if (op->flags & SHERDI_OP_FIRST) {
        lane->kernels->lamb_norms(lane, &args);
    } else {
        lane->kernels->lamb(lane, &args);
    }
}

void sherdi_optimizer_run(sherd_engine *engine, const sherdi_op *op, const sherdi_backend *lane,
                          float *state, const void *gradient, void *param)
{
    state_parts parts   = parts_of(engine, op, state, param);
    void       *written = engine->plan->segments[op->segment].has_master ? param : NULL;

    if (engine->settings.optimizer == SHERDI_OPTIMIZER_LAMB) {
        lamb_run(engine, op, lane, parts, gradient, written);
    } else {
        adam_run(engine, op, lane, parts, gradient, written);
    }
}
