/* DeepSpeed's schedules. Their index t starts at -1 and advances after each update, so update k
 * sees t = k - 2. At t = -1 an update sees the value that DeepSpeed's constructor leaves: the
 * minimum, but exactly 0 for WarmupCosineLR. The momentum of OneCycle is its minimum then too,
 * though the cycle begins at the maximum. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/schedule.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

static int64_t index_of(const sherdi_schedule_point *point)
{
    return point->step - 2;
}

/* ---- warm-up ---- */

/* At least 2, since log(1) is 0 and warmup_share divides by the log. */
static int64_t warmup_steps(const sherdi_schedule_params *params)
{
    return params->warmup_steps < 2 ? 2 : params->warmup_steps;
}

/* Returns the share of the warm-up that is done at t < warmup_steps, from 0 to 1. */
static double warmup_share(const sherdi_schedule_params *params, int64_t t)
{
    double steps = (double)warmup_steps(params);

    return params->warmup_ramp == SHERDI_RAMP_LINEAR ? (double)t / steps
                                                     : log((double)t + 1.0) / log(steps);
}

/* Returns the length of the decay after the warm-up; at least 1, since callers divide by it. */
static double decay_steps(const sherdi_schedule_params *params)
{
    return fmax(1.0, (double)params->total_steps - (double)warmup_steps(params));
}

/* Rises from the minimum to the maximum; `after` is the share that holds after the warm-up. */
static double warmup_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point,
                        double after)
{
    int64_t t      = index_of(point);
    double  min_lr = sherdi_rate_of(&params->min_lr, point->group);
    double  max_lr = sherdi_rate_of(&params->max_lr, point->group);

    if (t < 0) {
        return min_lr;
    }
    max_lr = isnan(max_lr) ? point->group_lr : max_lr;
    return min_lr +
           (max_lr - min_lr) * (t < warmup_steps(params) ? warmup_share(params, t) : after);
}

static double warmup_then_flat(const sherdi_schedule_params *params,
                               const sherdi_schedule_point  *point)
{
    return warmup_lr(params, point, 1.0);
}

static double warmup_then_decay(const sherdi_schedule_params *params,
                                const sherdi_schedule_point  *point)
{
    double left = (double)(params->total_steps - index_of(point)) / decay_steps(params);

    return warmup_lr(params, point, fmax(0.0, left));
}

static double warmup_then_cosine(const sherdi_schedule_params *params,
                                 const sherdi_schedule_point  *point)
{
    int64_t t = index_of(point);
    double  done;

    if (t < 0) {
        return 0.0;
    }
    if (t < warmup_steps(params)) {
        return point->group_lr *
               (params->min_ratio + (1.0 - params->min_ratio) * warmup_share(params, t));
    }
    done = fmin(1.0, (double)(t - warmup_steps(params) + 1) / decay_steps(params));
    return point->group_lr *
           (params->cos_min_ratio + (1.0 - params->cos_min_ratio) * (1.0 + cos(PI * done)) / 2.0);
}

/* In DeepSpeed every shape except linear is log. The configuration has warned of shapes that are
 * neither. */
static sherd_status warmup_resolve(const sherd_config *config, sherdi_settings *settings)
{
    (void)config;
    if (settings->schedule.warmup_ramp != SHERDI_RAMP_LINEAR) {
        settings->schedule.warmup_ramp = SHERDI_RAMP_LOG;
    }
    return SHERD_OK;
}

static const int WARMUP_KEYS[] = {SHERDI_CONFIG_WARMUP_MIN_LR, SHERDI_CONFIG_WARMUP_MAX_LR,
                                  SHERDI_CONFIG_WARMUP_STEPS, SHERDI_CONFIG_WARMUP_TYPE};
static const int DECAY_KEYS[]  = {SHERDI_CONFIG_TOTAL_STEPS, SHERDI_CONFIG_WARMUP_MIN_LR,
                                  SHERDI_CONFIG_WARMUP_MAX_LR, SHERDI_CONFIG_WARMUP_STEPS,
                                  SHERDI_CONFIG_WARMUP_TYPE};
static const int COSINE_KEYS[] = {SHERDI_CONFIG_TOTAL_STEPS, SHERDI_CONFIG_MIN_RATIO,
                                  SHERDI_CONFIG_COS_MIN_RATIO, SHERDI_CONFIG_WARMUP_STEPS,
                                  SHERDI_CONFIG_WARMUP_TYPE};

const sherdi_schedule sherdi_schedule_warmup = {
    .lr       = warmup_then_flat,
    .resolve  = warmup_resolve,
    .keys     = WARMUP_KEYS,
    .num_keys = sizeof(WARMUP_KEYS) / sizeof(WARMUP_KEYS[0]),
};

const sherdi_schedule sherdi_schedule_warmup_decay = {
    .lr         = warmup_then_decay,
    .resolve    = warmup_resolve,
    .keys       = DECAY_KEYS,
    .num_keys   = sizeof(DECAY_KEYS) / sizeof(DECAY_KEYS[0]),
    .num_needed = 1,
};

const sherdi_schedule sherdi_schedule_warmup_cosine = {
    .lr         = warmup_then_cosine,
    .resolve    = warmup_resolve,
    .keys       = COSINE_KEYS,
    .num_keys   = sizeof(COSINE_KEYS) / sizeof(COSINE_KEYS[0]),
    .num_needed = 1,
};

/* ---- one cycle (Smith 2018, arXiv 1803.09820) ---- */

/* Returns the height of the cycle at t: 0 at its ends, 1 at its top. Stairs are computed from whole
 * steps, since a share that rounding puts just below a stair would lose the whole stair. */
static double cycle_height(const sherdi_schedule_params *params, int64_t t)
{
    double first = (double)params->first_steps;
    double total = first + (double)params->second_steps;
    double ratio = first / total;
    double batch = (double)t + 1.0;
    double x     = 1.0 + batch / total - floor(1.0 + batch / total);
    double place = fmod(batch, total);
    int    stairs;

    stairs = x <= ratio ? params->first_stairs : params->second_stairs;
    if (stairs <= 0) {
        return x <= ratio ? x / ratio : (x - 1.0) / (ratio - 1.0);
    }
    if (place <= first) {
        return floor(place * stairs / first) / stairs;
    }
    return floor((total - place) * stairs / (double)params->second_steps) / stairs;
}

static int cycle_is_over(const sherdi_schedule_params *params, int64_t t)
{
    return t >= params->first_steps + params->second_steps;
}

/* Returns the decay factor: rates are divided by it, momenta multiplied; 1: there is no decay. */
static double cycle_decay(const sherdi_schedule_params *params, int64_t t, double rate)
{
    double intervals;

    if (params->decay_interval == 0 || rate == 0) {
        return 1.0;
    }
    intervals = (double)(t - params->first_steps - params->second_steps + 1) /
                (double)params->decay_interval;
    return 1.0 + rate * intervals;
}

static double cycle_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    double  min_lr = sherdi_rate_of(&params->cycle_min_lr, point->group);
    double  max_lr = sherdi_rate_of(&params->cycle_max_lr, point->group);
    int64_t t      = index_of(point);

    if (cycle_is_over(params, t)) {
        return min_lr / cycle_decay(params, t, params->decay_lr_rate);
    }
    return min_lr + (max_lr - min_lr) * cycle_height(params, t);
}

static double cycle_momentum(const sherdi_schedule_params *params,
                             const sherdi_schedule_point  *point)
{
    double  min_mom = sherdi_rate_of(&params->cycle_min_mom, point->group);
    double  max_mom = sherdi_rate_of(&params->cycle_max_mom, point->group);
    int64_t t       = index_of(point);

    if (t < 0) {
        return min_mom;
    }
    if (cycle_is_over(params, t)) {
        return max_mom * cycle_decay(params, t, params->decay_mom_rate);
    }
    return max_mom - (max_mom - min_mom) * cycle_height(params, t);
}

/* DeepSpeed sets beta2 to 0.99, independently of the group's own. */
static int cycle_betas(const sherdi_schedule_params *params, const sherdi_schedule_point *point,
                       double out[2])
{
    if (params->cycles_momentum) {
        out[0] = cycle_momentum(params, point);
        out[1] = 0.99;
    }
    return params->cycles_momentum;
}

static const int CYCLE_KEYS[] = {
    SHERDI_CONFIG_CYCLE_MIN_LR,        SHERDI_CONFIG_CYCLE_MAX_LR,
    SHERDI_CONFIG_DECAY_LR_RATE,       SHERDI_CONFIG_CYCLE_FIRST_STEPS,
    SHERDI_CONFIG_CYCLE_SECOND_STEPS,  SHERDI_CONFIG_CYCLE_FIRST_STAIRS,
    SHERDI_CONFIG_CYCLE_SECOND_STAIRS, SHERDI_CONFIG_DECAY_INTERVAL,
    SHERDI_CONFIG_CYCLE_MOMENTUM,      SHERDI_CONFIG_CYCLE_MIN_MOM,
    SHERDI_CONFIG_CYCLE_MAX_MOM,       SHERDI_CONFIG_DECAY_MOM_RATE,
};

const sherdi_schedule sherdi_schedule_one_cycle = {
    .lr         = cycle_lr,
    .betas      = cycle_betas,
    .keys       = CYCLE_KEYS,
    .num_keys   = sizeof(CYCLE_KEYS) / sizeof(CYCLE_KEYS[0]),
    .num_needed = 2,
};

/* ---- range test ---- */

static double range_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    double intervals = (double)(index_of(point) + 1) / (double)params->range_steps;

    intervals = params->is_staircase ? floor(intervals) : intervals;
    return sherdi_rate_of(&params->range_min_lr, point->group) *
           (1.0 + params->range_rate * intervals);
}

static const int RANGE_KEYS[] = {SHERDI_CONFIG_RANGE_MIN_LR, SHERDI_CONFIG_RANGE_STEPS,
                                 SHERDI_CONFIG_RANGE_RATE, SHERDI_CONFIG_RANGE_STAIRCASE};

const sherdi_schedule sherdi_schedule_range_test = {
    .lr       = range_lr,
    .keys     = RANGE_KEYS,
    .num_keys = sizeof(RANGE_KEYS) / sizeof(RANGE_KEYS[0]),
};
