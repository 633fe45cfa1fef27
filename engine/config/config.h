/* Configuration: a JSON file, whose values get their types from one table, is resolved to
 * sherdi_settings. The engine reads nothing but these settings. config_keys.h has the table;
 * config_impl.h says what each file does. */
#ifndef SHERDI_ENGINE_CONFIG_CONFIG_H
#define SHERDI_ENGINE_CONFIG_CONFIG_H

#include "base/status.h"
#include "engine/optimizers/scaler.h"
#include "sherd.h"

/* The types of the settings of modules. */
#include "engine/config/members_list.h"

/* engine/optimizers/optimizer.h */
typedef struct sherdi_optimizer sherdi_optimizer;

typedef struct sherdi_sgd_settings {
    double momentum, dampening; /* momentum 0: the state has no buffer */
    int    is_nesterov;
    int    has_momentum, has_nesterov; /* 1: set; 0: the optimizer's defaults hold */
} sherdi_sgd_settings;

typedef struct sherdi_adagrad_settings {
    double lr_decay;
    double initial; /* start of the sum of squares */
} sherdi_adagrad_settings;

/* Everything that the engine needs to know, resolved: no value is "auto". Sizes are in elements, as
 * in the file, and may be 0 (except sub_group_size); "unlimited" is SIZE_MAX. A struct for each
 * subject. */
typedef struct sherdi_batch_settings {
    int    train_batch_size; /* = micro_batch_size * accumulation * world size */
    int    micro_batch_size;
    int    accumulation;
    int    opens_windows; /* only the trainer ends a window */
    size_t most_weight;   /* of a micro-batch; 0: there are no weights */
    int    skips_unused;  /* a unit that no rank ran in a window is not updated */
} sherdi_batch_settings;

typedef struct sherdi_numerics_settings {
    sherd_dtype          compute_dtype;
    sherd_dtype          comm_dtype;     /* communication_data_type, or the compute type */
    int                  has_comm_dtype; /* communication_data_type is set */
    sherd_dtype          accum_dtype;    /* data_types.grad_accum_dtype, or fp32 */
    int                  check_overflow; /* an update with Inf or NaN is skipped */
    sherdi_scaler_params scaler;         /* without fp16 the scale is fixed at 1 */
    int                  deterministic;
    int                  vendor_reduction; /* gives up the promise of equal bits */
    int                  host_sums;        /* gradients are added up host by host */
} sherdi_numerics_settings;

/* Where neither the user nor the optimizer has a number. */
#define SHERDI_STANDARD_LR    1e-3
#define SHERDI_STANDARD_BETA1 0.9
#define SHERDI_STANDARD_BETA2 0.999
#define SHERDI_STANDARD_EPS   1e-8

typedef struct sherdi_update_settings {
    const sherdi_optimizer *optimizer;
    double                  lr, betas[2], eps, weight_decay;
    int                     has_lr, has_betas, has_eps; /* 1: set; 0: the optimizer's defaults */
    int                     bias_correction;
    int                     decouples_decay; /* adam_w_mode */
    sherdi_sgd_settings     sgd;
    sherdi_adagrad_settings adagrad;
    double                  gradient_clipping; /* 0: off */
} sherdi_update_settings;

typedef struct sherdi_sharding_settings {
    int    stage;
    size_t persistence_threshold; /* stage 3: parameters of at most this many elements stay whole */
    size_t model_persistence_threshold; /* the most elements of all persistent parameters */
    size_t sub_group_size;              /* the most elements of a block */
    size_t prefetch_bucket_size;        /* elements gathered ahead of use */
    size_t max_live_parameters;
    size_t max_reuse_distance;
    int    overlap_comm;
    int    shard_size;      /* ranks that share one copy of all that is sharded; 0: all ranks */
    int    free_packing;    /* each gather has its own offset; units have no fixed address */
    size_t eval_keep_units; /* gathered units of EVAL that have an offset of their own */
} sherdi_sharding_settings;

typedef struct sherdi_settings {
    sherdi_batch_settings    batch;
    sherdi_numerics_settings numerics;
    sherdi_update_settings   update;
    sherdi_sharding_settings sharding;
    int                      steps_per_print; /* 0: not set */
#define SHERDI_SETTINGS_OF(member, ...) member;
#include "engine/config/members_list.h"
    int is_debug; /* SHERD_DEBUG in the environment, filled by the module debug */
} sherdi_settings;

/** Returns whether a window may have several micro-batches, whose gradients are added up. */
static inline int sherdi_settings_add_up(const sherdi_settings *settings)
{
    return settings->batch.accumulation > 1 || settings->batch.opens_windows;
}

/* A kind of configuration: read from JSON, or made of sherd_settings. An object begins with
 * a pointer to this. */
typedef struct sherdi_config_kind {
    sherd_status (*resolve)(const sherd_config *config, int world_size, sherdi_settings *out);
    void (*destroy)(sherd_config *config);
} sherdi_config_kind;

/** Makes the settings for a world of `world_size` ranks. E_INVAL (a missing or contradictory value;
 *  the message names key, line, column and the fix), E_NOTSUP (a key that this version cannot
 *  honour). */
sherd_status sherdi_config_resolve(const sherd_config *config, int world_size,
                                   sherdi_settings *out);

/** Completes the sizes of a batch, of which those that are not set are 0; a size that cannot be
 *  derived stays 0. Returns whether they agree: all are at least 1, train is micro x accumulation x
 *  ranks, or with is_elastic a multiple of micro that needs as many micro-batches, and fits. */
typedef struct sherdi_config_batch {
    int64_t train, micro, accumulation;
    int     is_elastic; /* ranks may be without data in the last micro-batch of a step */
} sherdi_config_batch;
int sherdi_batch_derive(sherdi_config_batch *batch, int world_size);

/** Returns micro x accumulation x ranks, which may be more than an integer can be. */
static inline double sherdi_batch_samples(const sherdi_config_batch *batch, int world_size)
{
    return (double)batch->micro * (double)batch->accumulation * world_size;
}

/** Returns the samples of a number of micro-batches of all ranks. Counters of a damaged file may be
 *  absurd; the product wraps then. */
static inline int64_t sherdi_samples(int64_t micro_batches, int micro_batch_size, int world_size)
{
    return (int64_t)((uint64_t)micro_batches * (uint64_t)micro_batch_size * (uint64_t)world_size);
}

#endif
