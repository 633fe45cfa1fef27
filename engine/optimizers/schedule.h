/* Learning-rate schedules with DeepSpeed's indexing. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_SCHEDULE_H
#define SHERDI_ENGINE_OPTIMIZERS_SCHEDULE_H

#include <stdint.h>

typedef enum sherdi_schedule_kind {
    SHERDI_SCHEDULE_CONSTANT = 0, /* the group's own rate */
    SHERDI_SCHEDULE_WARMUP,       /* WarmupLR */
    SHERDI_SCHEDULE_WARMUP_DECAY, /* WarmupDecayLR */
    SHERDI_SCHEDULE_WARMUP_COSINE /* WarmupCosineLR */
} sherdi_schedule_kind;

typedef struct sherdi_schedule_params {
    sherdi_schedule_kind kind;
    int                  is_linear;      /* warm-up: 0 logarithmic, 1 linear */
    double               min_lr, max_lr; /* max_lr NaN: each group's own rate */
    int64_t              warmup_steps, total_steps;
    double               min_ratio, cos_min_ratio; /* cosine */
} sherdi_schedule_params;

/** The rate of optimizer step `step` (1, 2, ...; skipped updates do not count) for a group
 *  whose own rate is `group_lr`. Step k uses the schedule at t = k - 2; step 1 the constructor's value. */
double sherdi_schedule_lr(const sherdi_schedule_params *params, double group_lr, int64_t step);

#endif
