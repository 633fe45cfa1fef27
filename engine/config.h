/* Configuration: the JSON file, typed from one table, and what it resolves to. The
 * engine reads nothing but sherdi_settings. */
#ifndef SHERDI_ENGINE_CONFIG_H
#define SHERDI_ENGINE_CONFIG_H

#include "base/status.h"
#include "engine/scaler.h"
#include "engine/schedule.h"
#include "sherd.h"

typedef enum sherdi_optimizer_kind {
    SHERDI_OPTIMIZER_ADAMW = 0, /* decoupled decay: "AdamW", and "Adam" by default */
    SHERDI_OPTIMIZER_ADAM  = 1, /* "Adam" with adam_w_mode false: decay in the gradient */
} sherdi_optimizer_kind;

/* Everything the engine wants to know, resolved: no "auto" is left. Element counts are in
 * elements, as in the file, 0 included (but for sub_group_size); "unlimited" is SIZE_MAX. */
typedef struct sherdi_settings {
    /* batch */
    int train_batch_size; /* = micro_batch_size * accumulation * world size */
    int micro_batch_size;
    int accumulation;
    int steps_per_print; /* 0: not given */

    /* precision */
    sherd_dtype          compute_dtype;
    sherd_dtype          comm_dtype;     /* communication_data_type, or the compute type */
    sherd_dtype          accum_dtype;    /* data_types.grad_accum_dtype, or fp32 */
    int                  check_overflow; /* skip an update with Inf or NaN in it */
    sherdi_scaler_params scaler;         /* scale fixed at 1 unless fp16 */

    /* optimizer */
    sherdi_optimizer_kind  optimizer;
    double                 lr, beta1, beta2, eps, weight_decay;
    int                    bias_correction;
    sherdi_schedule_params schedule;
    double                 gradient_clipping; /* 0: off */

    /* zero_optimization */
    int    stage;
    size_t persistence_threshold; /* stage 3: parameters of at most so many elements stay whole */
    size_t model_persistence_threshold; /* most persistent elements altogether */
    size_t sub_group_size;              /* most elements of a block */
    size_t prefetch_bucket_size;        /* elements gathered ahead of use */
    size_t max_live_parameters;
    size_t max_reuse_distance;
    size_t reduce_bucket_size;
    size_t allgather_bucket_size;
    int    overlap_comm;

    int deterministic;

    int is_debug; /* SHERD_DEBUG in the environment, filled by the engine */
} sherdi_settings;

/** The settings for a world of `world_size` ranks. Errors E_INVAL (a missing or contradictory
 *  value; names key, line and column and the fix), E_NOTSUP (a key that this version cannot honour). */
sherd_status sherdi_config_resolve(const sherd_config *config, int world_size,
                                   sherdi_settings *out);

#endif
