/* Settings of modules that only a file gives. The module that reads them says in its list of needs
 * (modules.txt) that it has this header. */
#ifndef SHERDI_ENGINE_CONFIG_OPTIONS_H
#define SHERDI_ENGINE_CONFIG_OPTIONS_H

#include "offload/tier_kind.h"

#include <stddef.h>

/* LAMB's hyper-parameters in addition to Adam's. */
typedef struct sherdi_lamb_settings {
    double max_coeff, min_coeff; /* of the trust ratio */
    int    eps_inside_sqrt;
    int    is_papers; /* 1: bias corrections as in the paper; 0: as in DeepSpeed */
    int    exclude_1d;
} sherdi_lamb_settings;

typedef struct sherdi_muon_settings {
    int steps;
    int matches_rms; /* adjust_lr_fn match_rms_adamw */
} sherdi_muon_settings;

/* The kinds of monitors (engine/monitor/). */
enum { SHERDI_MONITOR_CSV = 0, SHERDI_MONITOR_TENSORBOARD, SHERDI_MONITORS };

#define SHERDI_MONITOR_FOLDER_BYTES 1024

typedef struct sherdi_monitor_settings {
    int  is_on;
    char folder[SHERDI_MONITOR_FOLDER_BYTES]; /* output_path/job_name */
} sherdi_monitor_settings;

#define SHERDI_FINGERPRINTS_FILE_BYTES 1024

/* Fingerprints of units. */
typedef struct sherdi_fingerprint_settings {
    char file[SHERDI_FINGERPRINTS_FILE_BYTES]; /* "": none are made */
    int  state_interval; /* steps in which each unit's state is counted once; 0: never */
} sherdi_fingerprint_settings;

/* What people watch. */
typedef struct sherdi_watch_settings {
    int wall_clock_breakdown;
    int memory_breakdown;
    int logs_comms, logs_each_comm;
} sherdi_watch_settings;

typedef enum sherdi_io_engine {
    SHERDI_IO_AUTO = 0,
    SHERDI_IO_URING,
    SHERDI_IO_THREADS,
} sherdi_io_engine;

/* How parts of a state are stored, as configured. engine/plan/plan_encoding.c decides it for each
 * segment. */
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

typedef struct sherdi_checkpoint_settings {
    int is_async;  /* a copy of the state is planned in host memory */
    int keep_last; /* complete checkpoints that stay; 0: all */
} sherdi_checkpoint_settings;

typedef struct sherdi_io_settings {
    sherdi_io_engine engine;
    size_t           block_bytes;
    int              depth;
    double           step_seconds; /* for the plan's estimate of wear; 0: not set */
    double           drive_tbw;    /* rated endurance of the drive, in 1e12 bytes written */
} sherdi_io_settings;

#define SHERDI_MAX_FOLDERS  8
#define SHERDI_FOLDER_BYTES 256

/* One of the blocks offload_optimizer, offload_param and activations. */
typedef struct sherdi_offload_settings {
    const sherdi_tier_kind *tier;  /* `none` also if the stage has nothing to offload */
    sherdi_space            space; /* of the tier */
    int                     num_folders;
    char                    folders[SHERDI_MAX_FOLDERS][SHERDI_FOLDER_BYTES];
    int                     buffer_count;
    size_t                  buffer_elems; /* the most elements of a buffer */
    int                     pin_memory;
    int is_ignored; /* the program asked for offload at a stage with nothing to offload */
} sherdi_offload_settings;

/* Where the gradients of a step's micro-batches are added up when state is offloaded. */
typedef enum sherdi_accumulate {
    SHERDI_ACCUMULATE_AUTO = 0, /* on the device if it has memory of its own, else on the host */
    SHERDI_ACCUMULATE_HOST,
    SHERDI_ACCUMULATE_DEVICE,
} sherdi_accumulate;

typedef struct sherdi_offloads_settings {
    sherdi_offload_settings state, params, activations;
    double                  ratio; /* share of the blocks whose state is offloaded, 0 .. 1 */
    int                     pipeline_read, pipeline_write;
    int                     fast_init; /* filled values are not compared when they are first read */
    sherdi_accumulate       accumulate;
    int                     gradients_on_nvme; /* 0: in host memory, with offloaded state */
    int verify_reads; /* checksums of state on NVMe are compared on every read */
    int resume_state; /* continue from state files of an earlier run */
    int keep_state;   /* a clean end too leaves the state files */
    int durable;      /* commits reach the medium, not only the drive's queue */
    /* offload_param.max_in_cpu: elements of a rank that stay in host memory */
    size_t params_in_cpu;
} sherdi_offloads_settings;

#endif
