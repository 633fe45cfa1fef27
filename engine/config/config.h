/* Configuration: the JSON file, typed from one table, and what it resolves to. The
 * engine reads nothing but sherdi_settings. */
#ifndef SHERDI_ENGINE_CONFIG_CONFIG_H
#define SHERDI_ENGINE_CONFIG_CONFIG_H

#include "base/status.h"
#include "engine/optimizers/scaler.h"
#include "engine/optimizers/schedule.h"
#include "offload/tier.h"
#include "sherd.h"

/* engine/optimizers/optimizer.h */
typedef struct sherdi_optimizer sherdi_optimizer;

/* What LAMB has beside Adam's hyper-parameters. */
typedef struct sherdi_lamb_settings {
    double max_coeff, min_coeff; /* of the trust ratio */
    int    eps_inside_sqrt;
    int    is_papers; /* bias corrections as in the paper, else as in DeepSpeed */
    int    exclude_1d;
} sherdi_lamb_settings;

#define SHERDI_MAX_GROUPS 16

/* An entry of sherd.groups. NaN, or below 0: it says nothing of that. */
typedef struct sherdi_group_settings {
    char name[64];
    char matching[256]; /* patterns of names of parameters, each with its end, an empty one last */
    int  optimizer;     /* its number in the list of optimizers, from 1 on; 0: it names none */
    int  exclude_1d;
    double lr, beta1, beta2, eps, weight_decay;
} sherdi_group_settings;

typedef struct sherdi_sgd_settings {
    double momentum, dampening; /* momentum 0: there is no buffer */
    int    is_nesterov;
    int    has_momentum, has_nesterov; /* given; else the optimizer's defaults */
} sherdi_sgd_settings;

typedef struct sherdi_muon_settings {
    int steps;
    int matches_rms; /* adjust_lr_fn match_rms_adamw */
} sherdi_muon_settings;

typedef struct sherdi_adagrad_settings {
    double lr_decay;
    double initial; /* what the sum of squares begins at */
} sherdi_adagrad_settings;

#define SHERDI_MAX_FOLDERS  8
#define SHERDI_FOLDER_BYTES 256

/* One of the blocks offload_optimizer and offload_param. */
typedef struct sherdi_offload_settings {
    const sherdi_tier_kind *tier;  /* the device's too where the stage has nothing to offload */
    sherdi_space            space; /* the tier's */
    int                     num_folders;
    char                    folders[SHERDI_MAX_FOLDERS][SHERDI_FOLDER_BYTES];
    int                     buffer_count;
    size_t                  buffer_elems; /* most elements of a buffer */
    int                     pin_memory;
    int is_ignored; /* the program asked for it, at a stage with nothing to offload */
} sherdi_offload_settings;

/* Where the micro-batches of a step are added up when state is offloaded. */
typedef enum sherdi_accumulate {
    SHERDI_ACCUMULATE_AUTO = 0, /* on the device where it has memory of its own, else on the host */
    SHERDI_ACCUMULATE_HOST,
    SHERDI_ACCUMULATE_DEVICE,
} sherdi_accumulate;

/* Kinds of files for numbers that people watch: engine/monitor/. */
enum { SHERDI_MONITOR_CSV = 0, SHERDI_MONITOR_TENSORBOARD, SHERDI_MONITORS };

#define SHERDI_MONITOR_FOLDER_BYTES 1024

typedef struct sherdi_monitor_settings {
    int  is_on;
    char folder[SHERDI_MONITOR_FOLDER_BYTES]; /* output_path/job_name */
} sherdi_monitor_settings;

typedef enum sherdi_io_engine {
    SHERDI_IO_AUTO = 0,
    SHERDI_IO_URING,
    SHERDI_IO_THREADS,
} sherdi_io_engine;

/* How parts of a state are stored, as configured; by segment: engine/plan/plan_encoding.c. */
typedef enum sherdi_master_encoding {
    SHERDI_MASTER_F32 = 0,
    SHERDI_MASTER_BESIDE,
    SHERDI_MASTER_BF16,
} sherdi_master_encoding;

typedef enum sherdi_moment_encoding {
    SHERDI_MOMENTS_F32 = 0,
    SHERDI_MOMENTS_BF16,
    SHERDI_MOMENTS_FP8,
} sherdi_moment_encoding;

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
    int                  has_comm_dtype; /* communication_data_type is given */
    sherd_dtype          accum_dtype;    /* data_types.grad_accum_dtype, or fp32 */
    int                  check_overflow; /* skip an update with Inf or NaN in it */
    sherdi_scaler_params scaler;         /* scale fixed at 1 unless fp16 */

    /* optimizer */
    const sherdi_optimizer *optimizer;
    double                  lr, betas[2], eps, weight_decay;
    int                     has_lr, has_betas, has_eps; /* given; else the optimizer's defaults */
    int                     bias_correction;
    int                     decouples_decay; /* adam_w_mode */
    sherdi_lamb_settings    lamb;
    sherdi_sgd_settings     sgd;
    sherdi_adagrad_settings adagrad;
    sherdi_muon_settings    muon;
    sherdi_group_settings   groups[SHERDI_MAX_GROUPS]; /* behind the last one all is 0 */
    sherdi_schedule_params  schedule;
    double                  gradient_clipping; /* 0: off */

    /* zero_optimization */
    int    stage;
    size_t persistence_threshold; /* stage 3: parameters of at most so many elements stay whole */
    size_t model_persistence_threshold; /* most persistent elements altogether */
    size_t sub_group_size;              /* most elements of a block */
    size_t prefetch_bucket_size;        /* elements gathered ahead of use */
    size_t max_live_parameters;
    size_t max_reuse_distance;
    int    overlap_comm;
    int    vendor_reduction; /* outside the promise of equal bits */
    int    free_packing;     /* gathers have an offset each, units have no address */
    size_t eval_keep_units;  /* gathered units of EVAL with places of their own */
    int    master_encoding;  /* sherdi_master_encoding */
    int    moment_encoding;  /* sherdi_moment_encoding */
    int    skips_unused;     /* a unit that no rank reached in a window is not updated */

    /* offload */
    sherdi_offload_settings offload_state, offload_param;
    double            offload_ratio; /* share of the blocks whose state is offloaded, 0 .. 1 */
    int               pipeline_read, pipeline_write;
    int               fast_init; /* what was filled is not compared when it is first read */
    sherdi_accumulate accumulate;
    int               gradients_on_nvme; /* else in host memory, with offloaded state */
    int               verify_reads;      /* checksums of state on NVMe are compared on every read */
    int               resume_state;      /* go on from state files that an earlier run left */
    int               keep_state;        /* a clean end leaves the state files too */
    int               checkpoint_async;  /* a copy of the state is planned in host memory */
    int               checkpoint_keep_last; /* complete checkpoints that stay; 0: all */
    int               durable; /* commits reach the medium, not only the drive's queue */
    size_t
        params_in_cpu; /* offload_param.max_in_cpu: elements of a rank that stay in host memory */
    sherdi_io_engine io_engine;
    size_t           io_block_bytes;
    int              io_depth;
    double           step_seconds; /* for the plan's wear line; 0: not given */
    double           drive_tbw;    /* 1e12 bytes that the drive is rated to take */

    /* what people watch */
    int                     wall_clock_breakdown;
    int                     memory_breakdown;
    int                     logs_comms, logs_each_comm;
    sherdi_monitor_settings monitors[SHERDI_MONITORS];

    int deterministic;

    int is_debug; /* SHERD_DEBUG in the environment, filled by the engine */
} sherdi_settings;

/** The settings for a world of `world_size` ranks. Errors E_INVAL (a missing or contradictory
 *  value; names key, line and column and the fix), E_NOTSUP (a key that this version cannot honour). */
sherd_status sherdi_config_resolve(const sherd_config *config, int world_size,
                                   sherdi_settings *out);

/* A setting in 64 bits, by the name of the key that a user would change. */
typedef struct sherdi_named_bits {
    const char *key;
    uint64_t    bits;
} sherdi_named_bits;

#define SHERDI_SETTINGS_MOST 160

/** What must be the same on all ranks, in an order in which what others follow from comes first. Folders, pinning
 *  and the requests to a drive are not in it: the hosts' drives may differ. Fills at most SHERDI_SETTINGS_MOST and
 *  returns their number. */
size_t sherdi_settings_list(const sherdi_settings *settings, sherdi_named_bits *out);

#endif
