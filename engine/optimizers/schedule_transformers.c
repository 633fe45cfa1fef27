/* The schedules of transformers, under its names and with its numbers; Accelerate takes them too.
 * Each gives a factor of the group's own rate. Update k sees index k - 1, since torch's LambdaLR
 * applies the factor of index 0 when it is constructed and advances after each update. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/schedule.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

static int64_t index_of(const sherdi_schedule_point *point)
{
    return point->step - 1;
}

static int is_warming(const sherdi_schedule_params *params, int64_t t)
{
    return t < params->warmup_steps;
}

static double share_of(int64_t steps, int64_t all)
{
    return (double)steps / (double)(all < 1 ? 1 : all);
}

/* Returns the share that is done of the steps after the warm-up; above 1 after the end. */
static double progress_of(const sherdi_schedule_params *params, int64_t t)
{
    return share_of(t - params->warmup_steps, params->total_steps - params->warmup_steps);
}

/* `num_cycles` cosine waves, each from 1 down to 0 and up again; half a wave ends at 0. */
static double wave(const sherdi_schedule_params *params, double progress)
{
    return 0.5 * (1.0 + cos(PI * params->num_cycles * 2.0 * progress));
}

/* Returns the rate: a linear warm-up from 0, then the group's rate times `factor`. */
static double after_warmup(const sherdi_schedule_params *params, const sherdi_schedule_point *point,
                           double (*factor)(const sherdi_schedule_params *, int64_t t))
{
    int64_t t = index_of(point);

    if (is_warming(params, t)) {
        return point->group_lr * share_of(t, params->warmup_steps);
    }
    return point->group_lr * factor(params, t);
}

#define KEYS(name)                                                                                 \
    .keys = (name), .num_keys = sizeof(name) / sizeof((name)[0]), .is_transformers = 1

/* ---- constant ---- */

static double flat_factor(const sherdi_schedule_params *params, int64_t t)
{
    (void)params;
    (void)t;
    return 1.0;
}

static double flat_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    return after_warmup(params, point, flat_factor);
}

const sherdi_schedule sherdi_schedule_flat = {.lr = flat_lr, .is_transformers = 1};

static const int FLAT_KEYS[] = {SHERDI_CONFIG_WARMUP_STEPS};

const sherdi_schedule sherdi_schedule_flat_warmup = {.lr = flat_lr, KEYS(FLAT_KEYS)};

/* ---- linear ---- */

static double linear_factor(const sherdi_schedule_params *params, int64_t t)
{
    return fmax(0.0, share_of(params->total_steps - t, params->total_steps - params->warmup_steps));
}

static double linear_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    return after_warmup(params, point, linear_factor);
}

static const int LINEAR_KEYS[] = {SHERDI_CONFIG_TOTAL_STEPS, SHERDI_CONFIG_WARMUP_STEPS};

const sherdi_schedule sherdi_schedule_linear = {
    .lr = linear_lr, KEYS(LINEAR_KEYS), .num_needed = 1};

/* ---- cosines ---- */

static double cosine_factor(const sherdi_schedule_params *params, int64_t t)
{
    double factor = wave(params, progress_of(params, t));

    return fmax(0.0, factor * (1.0 - params->min_lr_rate) + params->min_lr_rate);
}

static double cosine_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    return after_warmup(params, point, cosine_factor);
}

static double restarts_factor(const sherdi_schedule_params *params, int64_t t)
{
    double progress = progress_of(params, t);

    return progress >= 1.0
               ? 0.0
               : fmax(0.0, 0.5 * (1.0 + cos(PI * fmod(params->num_cycles * progress, 1.0))));
}

static double restarts_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    return after_warmup(params, point, restarts_factor);
}

static const int COSINE_KEYS[] = {SHERDI_CONFIG_TOTAL_STEPS, SHERDI_CONFIG_WARMUP_STEPS,
                                  SHERDI_CONFIG_NUM_CYCLES};
static const int MIN_KEYS[]    = {SHERDI_CONFIG_TOTAL_STEPS, SHERDI_CONFIG_WARMUP_STEPS,
                                  SHERDI_CONFIG_NUM_CYCLES, SHERDI_CONFIG_MIN_LR,
                                  SHERDI_CONFIG_MIN_LR_RATE};

static sherd_status cosine_min_resolve(const sherd_config *config, sherdi_settings *settings)
{
    int has_lr   = sherdi_config_is_given(config, SHERDI_CONFIG_MIN_LR);
    int has_rate = sherdi_config_is_given(config, SHERDI_CONFIG_MIN_LR_RATE);

    if (has_lr == has_rate) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_SCHEDULER_TYPE,
                                      "cosine_with_min_lr needs one of scheduler.params.min_lr and "
                                      "min_lr_rate, and not both");
    }
    settings->schedule.min_lr_rate =
        has_lr ? sherdi_config_real(config, SHERDI_CONFIG_MIN_LR) / settings->update.lr
               : sherdi_config_real(config, SHERDI_CONFIG_MIN_LR_RATE);
    return SHERD_OK;
}

const sherdi_schedule sherdi_schedule_cosine = {
    .lr = cosine_lr, KEYS(COSINE_KEYS), .num_needed = 1};
const sherdi_schedule sherdi_schedule_restarts = {
    .lr = restarts_lr, KEYS(COSINE_KEYS), .num_needed = 1};
const sherdi_schedule sherdi_schedule_cosine_min = {
    .lr = cosine_lr, .resolve = cosine_min_resolve, KEYS(MIN_KEYS), .num_needed = 1};

/* ---- polynomial ---- */

/* The optimizer's rate falls to lr_end; a group with another rate has the same factor. */
static double polynomial_factor(const sherdi_schedule_params *params, int64_t t)
{
    double left;

    if (t > params->total_steps) {
        return params->lr_end / params->lr_start;
    }
    left = 1.0 - share_of(t - params->warmup_steps, params->total_steps - params->warmup_steps);
    return ((params->lr_start - params->lr_end) * pow(left, params->power) + params->lr_end) /
           params->lr_start;
}

static double polynomial_lr(const sherdi_schedule_params *params,
                            const sherdi_schedule_point  *point)
{
    return after_warmup(params, point, polynomial_factor);
}

static const int POLYNOMIAL_KEYS[] = {SHERDI_CONFIG_TOTAL_STEPS, SHERDI_CONFIG_WARMUP_STEPS,
                                      SHERDI_CONFIG_LR_END, SHERDI_CONFIG_POWER};

static sherd_status polynomial_resolve(const sherd_config *config, sherdi_settings *settings)
{
    settings->schedule.lr_start = settings->update.lr;
    return settings->schedule.lr_end < settings->update.lr
               ? SHERD_OK
               : sherdi_config_key_fail(config, SHERDI_CONFIG_LR_END,
                                        "is not below optimizer.params.lr, from which the "
                                        "polynomial falls to it");
}

const sherdi_schedule sherdi_schedule_polynomial = {
    .lr = polynomial_lr, .resolve = polynomial_resolve, KEYS(POLYNOMIAL_KEYS), .num_needed = 1};

/* ---- inverse square root ---- */

static double inverse_factor(const sherdi_schedule_params *params, int64_t t)
{
    double shifted = (double)(t + params->timescale - params->warmup_steps);

    return 1.0 / sqrt(shifted / (double)params->timescale);
}

static double inverse_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    return after_warmup(params, point, inverse_factor);
}

static const int INVERSE_KEYS[] = {SHERDI_CONFIG_WARMUP_STEPS, SHERDI_CONFIG_TIMESCALE};

const sherdi_schedule sherdi_schedule_inverse_sqrt = {.lr = inverse_lr, KEYS(INVERSE_KEYS)};

/* ---- warm-up, stable, decay ---- */

static double rise(const sherdi_schedule_params *params, double progress)
{
    switch (params->warmup_ramp) {
    case SHERDI_RAMP_COSINE:
        return 0.5 * (1.0 - cos(PI * progress));
    case SHERDI_RAMP_1_SQRT:
        return 1.0 - sqrt(1.0 - progress);
    case SHERDI_RAMP_LOG: /* refused by stable_decay_resolve */
    case SHERDI_RAMP_LINEAR:
        break;
    }
    return progress;
}

static double fall(const sherdi_schedule_params *params, double progress)
{
    switch (params->decay_ramp) {
    case SHERDI_RAMP_COSINE:
        return wave(params, progress);
    case SHERDI_RAMP_1_SQRT:
        return 1.0 - sqrt(progress);
    case SHERDI_RAMP_LOG:
    case SHERDI_RAMP_LINEAR:
        break;
    }
    return 1.0 - progress;
}

static double stable_decay_factor(const sherdi_schedule_params *params, int64_t t)
{
    int64_t decay_start = params->warmup_steps + params->stable_steps;
    double  factor;

    if (is_warming(params, t)) {
        factor = rise(params, share_of(t, params->warmup_steps));
    } else if (t < decay_start) {
        return 1.0;
    } else if (t < decay_start + params->decay_steps) {
        factor = fall(params, share_of(t - decay_start, params->decay_steps));
    } else {
        return params->min_lr_rate;
    }
    return fmax(0.0, factor * (1.0 - params->min_lr_rate) + params->min_lr_rate);
}

static double stable_decay_lr(const sherdi_schedule_params *params,
                              const sherdi_schedule_point  *point)
{
    return point->group_lr * stable_decay_factor(params, index_of(point));
}

static const int STABLE_KEYS[] = {SHERDI_CONFIG_DECAY_STEPS,  SHERDI_CONFIG_TOTAL_STEPS,
                                  SHERDI_CONFIG_WARMUP_STEPS, SHERDI_CONFIG_WARMUP_TYPE,
                                  SHERDI_CONFIG_STABLE_STEPS, SHERDI_CONFIG_DECAY_TYPE,
                                  SHERDI_CONFIG_NUM_CYCLES,   SHERDI_CONFIG_MIN_LR_RATIO};

static sherd_status stable_decay_resolve(const sherd_config *config, sherdi_settings *settings)
{
    static const sherdi_ramp RAMPS[] = {/* in the order of the choices of "decay_type" */
                                        SHERDI_RAMP_COSINE, SHERDI_RAMP_LINEAR, SHERDI_RAMP_1_SQRT};
    sherdi_schedule_params  *params  = &settings->schedule;

    params->min_lr_rate = sherdi_config_real(config, SHERDI_CONFIG_MIN_LR_RATIO);
    params->decay_ramp  = RAMPS[sherdi_config_integer(config, SHERDI_CONFIG_DECAY_TYPE)];
    return params->warmup_ramp != SHERDI_RAMP_LOG
               ? SHERD_OK
               : sherdi_config_key_fail(config, SHERDI_CONFIG_WARMUP_TYPE,
                                        "is log; warmup_stable_decay warms up linear, cosine or "
                                        "1-sqrt");
}

const sherdi_schedule sherdi_schedule_stable_decay = {
    .lr = stable_decay_lr, .resolve = stable_decay_resolve, KEYS(STABLE_KEYS), .num_needed = 1};
