/* Schedules: learning rates over time, and in some schedules momenta. Each schedule has a table;
 * schedule_list.h names them all. Five are DeepSpeed's, with its indexing (schedule_deepspeed.c);
 * the others are those of transformers (schedule_transformers.c). */
#ifndef SHERDI_ENGINE_OPTIMIZERS_SCHEDULE_H
#define SHERDI_ENGINE_OPTIMIZERS_SCHEDULE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* engine/config/config.h */
struct sherdi_settings;

/* A schedule in the settings: the number of its choice, from 1. */
typedef enum sherdi_schedule_kind {
    SHERDI_SCHEDULE_CONSTANT = 0, /* no schedule is set: each group's own rate */
#define SHERDI_SCHEDULE(id, type, table) SHERDI_SCHEDULE_##id,
#include "engine/optimizers/schedule_list.h"
#undef SHERDI_SCHEDULE
} sherdi_schedule_kind;

/* One number for all parameter groups, or one for each group. */
#define SHERDI_MOST_RATES 64
typedef struct sherdi_rates {
    size_t count; /* 0: at[0] is for every group */
    double at[SHERDI_MOST_RATES];
} sherdi_rates;

/* Shapes of a warm-up or a decay, in the order of the choices of "warmup_type". */
typedef enum sherdi_ramp {
    SHERDI_RAMP_LOG = 0,
    SHERDI_RAMP_LINEAR,
    SHERDI_RAMP_COSINE,
    SHERDI_RAMP_1_SQRT,
} sherdi_ramp;

/* Parameters of all schedules; those that a schedule does not read are 0. Steps are optimizer
 * steps. */
typedef struct sherdi_schedule_params {
    sherdi_schedule_kind kind;
    sherdi_ramp          warmup_ramp;
    int64_t              warmup_steps, total_steps;
    sherdi_rates         min_lr, max_lr;           /* max_lr.at[0] NaN: each group's own rate */
    double               min_ratio, cos_min_ratio; /* WarmupCosineLR */

    /* OneCycle */
    sherdi_rates cycle_min_lr, cycle_max_lr, cycle_min_mom, cycle_max_mom;
    int64_t      first_steps, second_steps;
    int          first_stairs, second_stairs; /* below 1: none */
    int64_t      decay_interval;              /* 0: no decay */
    double       decay_lr_rate, decay_mom_rate;
    int          cycles_momentum;

    /* LRRangeTest */
    sherdi_rates range_min_lr;
    int64_t      range_steps;
    double       range_rate;
    int          is_staircase;

    /* transformers */
    double      num_cycles, power, min_lr_rate;
    double      lr_end, lr_start; /* polynomial: for a group with the optimizer's own rate */
    int64_t     timescale, stable_steps, decay_steps;
    sherdi_ramp decay_ramp;
} sherdi_schedule_params;

/* The group and the step for which a rate is asked. */
typedef struct sherdi_schedule_point {
    size_t  group;    /* its index in sherdi_rates */
    double  group_lr; /* the group's own rate */
    int64_t step;     /* optimizer step, from 1; skipped updates do not count */
} sherdi_schedule_point;

typedef struct sherdi_schedule {
    /* Required. Returns the learning rate of the step. */
    double (*lr)(const sherdi_schedule_params *params, const sherdi_schedule_point *point);
    /* Optional (NULL: the group's own betas). Sets the betas of the step where the parameters ask
     * for it; returns whether it did. */
    int (*betas)(const sherdi_schedule_params *params, const sherdi_schedule_point *point,
                 double out[2]);
    /* Optional. Completes and checks settings that depend on more than one key, after every field
     * has its key's value. E_INVAL. */
    sherd_status (*resolve)(const sherd_config *config, struct sherdi_settings *settings);
    /* The keys of the configuration (sherdi_config_id) that the schedule reads. The first
     * `num_needed` of them have no default. */
    const int *keys;
    size_t     num_keys, num_needed;
    int is_transformers; /* 1: without a key the warm-up has 0 steps; 0: 1000, as in DeepSpeed */
} sherdi_schedule;

#define SHERDI_SCHEDULE(id, type, table) extern const sherdi_schedule table;
#include "engine/optimizers/schedule_list.h"
#undef SHERDI_SCHEDULE

/** "|WarmupLR|...": choice i of "scheduler.type", without the first bar, is kind i + 1. */
extern const char sherdi_schedule_types[];

/** Returns the table of a schedule; NULL for SHERDI_SCHEDULE_CONSTANT. */
const sherdi_schedule *sherdi_schedule_of(sherdi_schedule_kind kind);

double sherdi_schedule_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point);
/** Sets the betas of a step; leaves `betas` as they are if the schedule has only rates. */
void sherdi_schedule_betas(const sherdi_schedule_params *params, const sherdi_schedule_point *point,
                           double betas[2]);

static inline double sherdi_rate_of(const sherdi_rates *rates, size_t group)
{
    return rates->count == 0 ? rates->at[0] : rates->at[group];
}

#endif
