/* Learning-rate schedules. DeepSpeed's index t starts at -1 and moves after each update, so
 * update k sees t = k - 2; what it sees at t = -1 is the value its constructor leaves: the
 * warm-up minimum, and for the cosine exactly 0. Called once per step by engine/run/step.c. */
#include "engine/optimizers/schedule.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* Share of the warm-up that is done at t < warm-up length, 0 .. 1. */
static double warmup_share(const sherdi_schedule_params *params, int64_t t, int64_t warmup_steps)
{
    if (params->is_linear) {
        return (double)t / (double)warmup_steps;
    }
    return log((double)t + 1.0) / log((double)warmup_steps);
}

static double warmup_lr(const sherdi_schedule_params *params, double group_lr, double share)
{
    double max_lr = isnan(params->max_lr) ? group_lr : params->max_lr;

    return params->min_lr + (max_lr - params->min_lr) * share;
}

/* Length of the decay that follows the warm-up; at least 1, so that it can divide. */
static double decay_steps(const sherdi_schedule_params *params, int64_t warmup_steps)
{
    return fmax(1.0, (double)params->total_steps - (double)warmup_steps);
}

static double cosine_ratio(const sherdi_schedule_params *params, int64_t t, int64_t warmup_steps)
{
    double done;

    if (t < 0) {
        return 0.0;
    }
    if (t < warmup_steps) {
        return params->min_ratio +
               (1.0 - params->min_ratio) * warmup_share(params, t, warmup_steps);
    }
    done = fmin(1.0, (double)(t - warmup_steps + 1) / decay_steps(params, warmup_steps));
    return params->cos_min_ratio + (1.0 - params->cos_min_ratio) * (1.0 + cos(PI * done)) / 2.0;
}

double sherdi_schedule_lr(const sherdi_schedule_params *params, double group_lr, int64_t step)
{
    int64_t t            = step - 2;
    int64_t warmup_steps = params->warmup_steps < 2 ? 2 : params->warmup_steps; /* ln 1 is 0 */

    if (params->kind == SHERDI_SCHEDULE_CONSTANT) {
        return group_lr;
    }
    if (params->kind == SHERDI_SCHEDULE_WARMUP_COSINE) {
        return group_lr * cosine_ratio(params, t, warmup_steps);
    }
    if (t < 0) {
        return params->min_lr;
    }
    if (t < warmup_steps) {
        return warmup_lr(params, group_lr, warmup_share(params, t, warmup_steps));
    }
    if (params->kind == SHERDI_SCHEDULE_WARMUP) {
        return warmup_lr(params, group_lr, 1.0);
    }
    return warmup_lr(
        params, group_lr,
        fmax(0.0, (double)(params->total_steps - t) / decay_steps(params, warmup_steps)));
}
