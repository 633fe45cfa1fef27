/* One row of a table of plans: a model under one stage, offload and world size. Made by an engine on a
 * simulated world, so its bytes are those that seal would allocate. `sherd plan` prints rows and chooses
 * between them, the memory benchmark holds them against real ranks. Read next: rates.h. */
#ifndef SHERD_PLANNING_ROW_H
#define SHERD_PLANNING_ROW_H

#include "planning/model.h"
#include "planning/rates.h"
#include "sherd_tools.h"

#include <stddef.h>

/* Where state and parameters rest; gradients follow the state. */
typedef enum planning_offload {
    PLANNING_OFFLOAD_AS_CONFIGURED = -1,
    PLANNING_OFFLOAD_NONE          = 0,
    PLANNING_OFFLOAD_OPTIMIZER_CPU,
    PLANNING_OFFLOAD_OPTIMIZER_NVME,
    PLANNING_OFFLOAD_PARAMS_CPU,  /* and the state */
    PLANNING_OFFLOAD_PARAMS_NVME, /* and the state */
    PLANNING_OFFLOADS,
} planning_offload;

/** "none", "optimizer-cpu", "optimizer-nvme", "params-cpu", "params-nvme"; -1 names "as configured". */
const char *planning_offload_name(planning_offload offload);
/** Also "cpu" and "nvme" (of the optimizer), "param-cpu", "param-nvme", and _ for -. -1: no such name. */
int planning_offload_find(const char *name, planning_offload *out);
/** The "device" of offload_optimizer and of offload_param: "none", "cpu" or "nvme". */
const char *planning_offload_state_device(planning_offload offload);
const char *planning_offload_param_device(planning_offload offload);

/** Parameters can be offloaded at stage 3 alone, state from stage 1 on. */
int planning_offload_fits_stage(planning_offload offload, int stage);

/* What is planned where no file is given. Persistent parameters would hide what stage 3 saves. */
#define PLANNING_DEFAULT_CONFIG                                                                    \
    "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true},"                       \
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},"                           \
    " \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}}"

/* The encoding of masters that loses no bit, as a setting (docs/numerics.md). */
#define PLANNING_MASTER_KEY    "sherd.master_encoding"
#define PLANNING_MASTER_BESIDE "\"bf16_beside\""

/* What all rows of a table have in common. */
typedef struct planning_request {
    const planning_model *model;
    const char           *config_path; /* NULL: planning's default: AdamW, bf16, one micro-batch,
                                              persistence threshold 0, overlap_comm as by default */
    const char *const    *settings;    /* "KEY=JSON", over the file's */
    size_t                num_settings;
    const char           *backend; /* "cpu" or "cuda": whose layout is planned */
    int                   rank;
    int                   ranks_per_host; /* 0: all, at most 8 on "cuda" */
    size_t device_bytes, host_bytes;      /* 0: not known; what fits is asked against them */
    size_t nvme_bytes;                    /* ... of a host's drives */
    size_t batch, length; /* of a micro-batch, for activations and arithmetic; 0: left out */
    int    is_recomputed;
    size_t activation_bytes; /* given; 0: the trainer's formula where it knows the model */
    planning_rates rates;
} planning_request;

typedef struct planning_layout {
    int              stage; /* -1: as configured */
    planning_offload offload;
    int              world_size;
    int is_beside; /* the masters are stored beside their bf16 parameters, whatever is configured */
} planning_layout;

/** Ranks that share a host and its drives: as given, else 8 on "cuda" and all on "cpu", at most the world. */
int planning_ranks_per_host(const planning_request *request, int world_size);
/** Whether memory or drives are given: then rows say whether they fit. */
int planning_has_limits(const planning_request *request);

/* What a step waits for. */
typedef enum planning_bound {
    PLANNING_BOUND_COMPUTE = 0,
    PLANNING_BOUND_WIRE,
    PLANNING_BOUND_LINK,
    PLANNING_BOUND_NVME,
    PLANNING_BOUND_UPDATE,
    PLANNING_BOUNDS,
} planning_bound;
const char *planning_bound_name(planning_bound bound);

/* Seconds of a step. `by_bound` is what each resource is busy for by itself; the others are those of the program, played
 * against the rates (sherd_engine_predict). */
typedef struct planning_time {
    double         by_bound[PLANNING_BOUNDS];
    double         micro_s, boundary_s, step_s; /* step_s = accumulation * micro_s + boundary_s */
    double         exposed_s;                   /* of step_s, what is not arithmetic */
    planning_bound bound;                       /* the longest of them */
} planning_time;

/* Optimizers by parts by encodings: more than a plan has. */
#define PLANNING_MOST_STATE_PARTS 48

/* "key value, ...": what the configuration leaves to the trainer and a plan cannot do without; "": nothing. */
typedef struct planning_assumed {
    char text[320];
} planning_assumed;

typedef struct planning_row {
    planning_layout      layout; /* stage and offload resolved */
    int                  rank, accumulation;
    sherd_dtype          compute_dtype;
    size_t               param_elems, trainable_elems;
    sherd_memory_report  memory;
    sherd_traffic_report traffic;
    /* by purpose wherever it rests (one generation of state), model state alone */
    size_t params_bytes, grads_bytes, optimizer_bytes;
    size_t gathered_bytes, transient_bytes, staging_bytes; /* what passes; staging: all the rest */
    size_t activation_bytes;                               /* 0: not known */
    sherd_state_part state_parts[PLANNING_MOST_STATE_PARTS]; /* what optimizer_bytes are of */
    int              num_state_parts;
    /* by space: the engine's; activations are not among them */
    size_t           device_bytes, host_bytes, pinned_bytes, nvme_bytes;
    double           paper_bytes; /* the ZeRO paper's formula for the same model state */
    int              has_fit;     /* memory or drives were given: `fits` and `why` say something */
    int              lacks_activations; /* ... of where they would lie, and nobody knows them */
    int              fits;              /* activations counted */
    char             why[512]; /* what is missing, and the nearest setting that would fit */
    planning_time    time;
    planning_assumed assumed;
} planning_row;

/** Bytes of a host's drives: the files of all its ranks, their indices too. */
double planning_nvme_need(const planning_request *request, const planning_row *row);

/** Plans one row. E_NOTSUP, E_INVAL (the configuration, a layout that cannot be: sherd_last_error() says it;
 *  layout->is_beside where the file names another encoding), E_NOMEM. A row that does not fit is SHERD_OK with fits 0. */
SHERD_MUST_USE sherd_status planning_row_make(const planning_request *request,
                                              const planning_layout *layout, planning_row *out);

/** An engine of a simulated rank with the model declared, not sealed: for the whole plan, and for checks of
 *  all ranks. */
SHERD_MUST_USE sherd_status planning_engine_open(const planning_request *request,
                                                 const planning_layout *layout, sherd_engine **out);

/** Model state of Rajbhandari et al. 2020 (ZeRO, section 5 and table 1) in bytes: 2, 2 and K per parameter
 *  (4, 4 and K in fp32) divided by the world from stage 3, 2, 1 on. `param_bytes` 2 or 4; `state_bytes` is K: 12 of
 *  Adam (8 in fp32), 4 for each part of another optimizer's state. */
double planning_paper_bytes(double elems, int stage, int world_size, size_t param_bytes,
                            double state_bytes);

/** Bytes of an element of the state, the mean over all that this rank updates: as it is stored, or with `is_fp32` as it
 *  would be without encodings. 0: nothing is trained. */
double planning_state_bytes(const planning_row *row, int is_fp32);

/** One object, one line: every number of the row under the names of docs/planning.md. */
SHERD_MUST_USE sherd_status planning_row_write(const planning_request *request,
                                               const planning_row *row, sherd_write_fn write,
                                               void *ctx);
/** The same of a layout that has no plan: what was asked, and as "refused" the sentence. */
SHERD_MUST_USE sherd_status planning_refused_write(const planning_request *request,
                                                   const planning_layout  *layout,
                                                   const char *refused, sherd_write_fn write,
                                                   void *ctx);

#endif
