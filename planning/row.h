/* One row of a table of plans: a model under one stage, offload and world size. An engine on a
 * simulated world makes the row, so its bytes are those that seal would allocate. `sherd plan`
 * prints rows and chooses between them; the memory benchmark compares them with real ranks. Read
 * rates.h next. */
#ifndef SHERD_PLANNING_ROW_H
#define SHERD_PLANNING_ROW_H

#include "models/places.h"
#include "planning/model.h"
#include "planning/rates.h"
#include "sherd_tools.h"

#include <stddef.h>

/* Where the state and the parameters rest. Gradients rest where the state does. */
typedef enum planning_offload {
    PLANNING_OFFLOAD_AS_CONFIGURED = -1,
    PLANNING_OFFLOAD_NONE          = 0,
    PLANNING_OFFLOAD_OPTIMIZER_CPU,
    PLANNING_OFFLOAD_OPTIMIZER_NVME,
    PLANNING_OFFLOAD_PARAMS_CPU,  /* and the state */
    PLANNING_OFFLOAD_PARAMS_NVME, /* and the state */
    PLANNING_OFFLOADS,
} planning_offload;

/** Returns "none", "optimizer-cpu", "optimizer-nvme", "params-cpu" or "params-nvme"; for -1 "as
 *  configured". */
const char *planning_offload_name(planning_offload offload);
/** Finds an offload by these names; also by "cpu" and "nvme" (of the optimizer), "param-cpu",
 *  "param-nvme", and with _ for -. Returns -1 for another name. */
int planning_offload_find(const char *name, planning_offload *out);
/** Return the "device" of offload_optimizer and of offload_param: "none", "cpu" or "nvme". */
const char *planning_offload_state_device(planning_offload offload);
const char *planning_offload_param_device(planning_offload offload);

/** Returns whether a stage allows an offload: parameters at stage 3 only, state from stage 1 on. */
int planning_offload_fits_stage(planning_offload offload, int stage);

/* The configuration that is planned without a file. Persistent parameters would hide what stage 3
 * saves. */
#define PLANNING_DEFAULT_CONFIG                                                                    \
    "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true},"                       \
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},"                           \
    " \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}}"

/* The setting for the encoding of masters that loses no bit (docs/numerics.md). */
#define PLANNING_MASTER_KEY    "sherd.master_encoding"
#define PLANNING_MASTER_BESIDE "\"bf16_beside\""
/* The share of the blocks whose state is offloaded, and the buffers that state on a drive passes
 * through. */
#define PLANNING_RATIO_KEY   "zero_optimization.offload_optimizer.ratio"
#define PLANNING_BUFFERS_KEY "zero_optimization.offload_optimizer.buffer_count"
/* The ranks that share one copy of all that is sharded, and those that share a second copy of the
 * parameters (docs/several-hosts.md). */
#define PLANNING_REPLICA_KEY     "sherd.shard_size"
#define PLANNING_SECOND_COPY_KEY "zero_optimization.zero_hpz_partition_size"
/* Where activations wait that a trainer has declared. */
#define PLANNING_PLACE_KEY "sherd.activations.device"

/* Settings that all rows of a table have in common. */
typedef struct planning_request {
    const planning_model *model;
    /* NULL: PLANNING_DEFAULT_CONFIG: AdamW, bf16, one micro-batch, persistence threshold 0,
     * overlap_comm by default */
    const char        *config_path;
    const char *const *settings; /* "KEY=JSON"; they override the file */
    size_t             num_settings;
    const char        *backend; /* "cpu" or "cuda": whose layout is planned */
    int                rank;
    int                ranks_per_host;           /* 0: all ranks, but at most 8 on "cuda" */
    size_t             device_bytes, host_bytes; /* limits for what fits; 0: not known */
    size_t             nvme_bytes;               /* ... of a host's drives */
    size_t       batch, length; /* of a micro-batch, for activations and operations; 0: omitted */
    layer_places places;        /* of the activations of the trainer's models */
    size_t activation_bytes;    /* if set; 0: by the trainer's formula, for models that it knows */
    planning_rates rates;
} planning_request;

typedef struct planning_layout {
    int              stage; /* -1: as configured */
    planning_offload offload;
    int              world_size;
    int              is_beside; /* masters are split, whatever is configured */
    /* the keys below; 0: as configured */
    double ratio;
    int    buffers;
    int    replica_ranks, second_copy_ranks;
    /* of the activations of all layers; LAYER_KEPT: as the request says */
    layer_place place;
} planning_layout;

/** Sets `ratio`, `buffers`, the ranks of a copy and `place` of a layout in a configuration. E_INVAL
 *  where its file has other values. */
sherd_status planning_tuning_set(const planning_layout *layout, sherd_config *config);

/** Returns the number of ranks that share a host and its drives: the option's value, else 8 on
 *  "cuda" and all on "cpu"; at most the world. */
int planning_ranks_per_host(const planning_request *request, int world_size);
/** Returns how the ranks of a layout share: "flat", "replicas" or "second copy". */
const char *planning_sharing_name(const planning_layout *layout);
/** Returns whether limits of memory or drives are set; then rows say whether they fit. */
int planning_has_limits(const planning_request *request);

/* The resources that a step can wait for. */
typedef enum planning_bound {
    PLANNING_BOUND_COMPUTE = 0,
    PLANNING_BOUND_WIRE,
    PLANNING_BOUND_LINK,
    PLANNING_BOUND_NVME,
    PLANNING_BOUND_UPDATE,
    PLANNING_BOUNDS,
} planning_bound;
const char *planning_bound_name(planning_bound bound);

/* Seconds of a step. `by_bound` is how long each resource alone is busy. The other values come from
 * playing the program against the rates (sherd_engine_predict). */
typedef struct planning_time {
    double by_bound[PLANNING_BOUNDS];
    double micro_s, boundary_s, step_s; /* step_s = accumulation * micro_s + boundary_s */
    double exposed_s;                   /* part of step_s that is not compute */
    /* a queued step, its update, and the part of the update that is waited for; step_s, 0 and 0
     * without a queued update */
    double         queued_s, beside_s, wait_update_s;
    planning_bound bound; /* the longest of by_bound */
} planning_time;

/* Optimizers times parts times encodings: more than a plan has. */
#define PLANNING_MOST_STATE_PARTS 48

/* "key value, ...": settings that the configuration leaves to the trainer, and that a plan needs;
 * "": none. */
typedef struct planning_assumed {
    char text[320];
} planning_assumed;

typedef struct planning_row {
    planning_layout      layout; /* with stage and offload resolved */
    int                  rank, accumulation;
    sherd_dtype          compute_dtype;
    size_t               param_elems, trainable_elems;
    sherd_memory_report  memory;
    sherd_traffic_report traffic;
    /* model state by purpose, wherever it rests; one generation of state */
    size_t params_bytes, grads_bytes, optimizer_bytes;
    /* transient memory; staging: everything else */
    size_t           gathered_bytes, transient_bytes, staging_bytes;
    size_t           activation_bytes;                       /* 0: not known */
    sherd_state_part state_parts[PLANNING_MOST_STATE_PARTS]; /* of what optimizer_bytes consist */
    int              num_state_parts;
    /* by space: the memory of the engine, without activations */
    size_t device_bytes, host_bytes, pinned_bytes, nvme_bytes;
    double paper_bytes; /* the same model state by the ZeRO paper's formula */
    int    has_fit;     /* limits were set: `fits` and `why` are valid */
    /* a limit applies to activations, but their bytes are unknown */
    int              lacks_activations;
    int              fits;     /* with the activations */
    char             why[512]; /* the missing memory, and the nearest setting that would fit */
    planning_time    time;
    planning_assumed assumed;
} planning_row;

/** Returns the bytes on a host's drives: the files of all its ranks, with their indices. */
double planning_nvme_need(const planning_request *request, const planning_row *row);

/** Plans one row. Errors: E_NOTSUP; E_INVAL (in the configuration, for an impossible layout, or for
 *  layout->is_beside where the file names another encoding), which sherd_last_error() explains;
 *  E_NOMEM. A row that does not fit is SHERD_OK with fits 0. */
SHERD_MUST_USE sherd_status planning_row_make(const planning_request *request,
                                              const planning_layout *layout, planning_row *out);

/** Creates an engine of a simulated rank, with the model declared and not sealed: for the whole
 *  plan, and for checks of all ranks. */
SHERD_MUST_USE sherd_status planning_engine_open(const planning_request *request,
                                                 const planning_layout *layout, sherd_engine **out);

/** Returns the bytes of model state by Rajbhandari et al. 2020 (ZeRO, section 5 and table 1): 2, 2
 *  and K per parameter (4, 4 and K in fp32), divided by the world size from stage 3, 2 and 1 on.
 *  `param_bytes` is 2 or 4. `state_bytes` is K: 12 for Adam (8 in fp32), 4 for each part of another
 *  optimizer's state. */
double planning_paper_bytes(double elems, int stage, int world_size, size_t param_bytes,
                            double state_bytes);

/** Returns the bytes of state per element, averaged over all that this rank updates: as stored, or
 *  with `is_fp32` as they would be without encodings. 0: nothing is trained. */
double planning_state_bytes(const planning_row *row, int is_fp32);

/** Writes a row as one JSON object on one line, with every number under its name in
 *  docs/planning.md. */
SHERD_MUST_USE sherd_status planning_row_write(const planning_request *request,
                                               const planning_row *row, sherd_write_fn write,
                                               void *ctx);
/** The same for a layout without a plan: the request, and the reason as "refused". */
SHERD_MUST_USE sherd_status planning_refused_write(const planning_request *request,
                                                   const planning_layout  *layout,
                                                   const char *refused, sherd_write_fn write,
                                                   void *ctx);

#endif
