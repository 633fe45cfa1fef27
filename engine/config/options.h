/* Settings of modules that only a file gives. The module that reads them says in its list of needs
 * (modules.txt) that it has this header. */
#ifndef SHERDI_ENGINE_CONFIG_OPTIONS_H
#define SHERDI_ENGINE_CONFIG_OPTIONS_H

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

#endif
