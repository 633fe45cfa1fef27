/* What the files of bench-memory share: a row of its table, ranks as processes, options, charts.
 *
 *   memory.c          the rows, and the program's result
 *   memory_options.c  the command line
 *   memory_plan.c     models by name, planned rows, the largest model that fits
 *   memory_rows.c     one row: configuration, whether it fits, held against plan and system
 *   memory_ranks.c    the processes of a real row, watched by their parent
 *   memory_part.c     one of those processes
 *   memory_print.c    table and JSON lines
 *   memory_charts.c   SVG */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H

#include "planning/row.h"

#include <stdio.h>

#define MEMORY_MOST_RANKS  8
#define MEMORY_WHY_BYTES   640
#define MEMORY_STAGES      4
#define MEMORY_MOST_WORLDS 16
#define MEMORY_MOST_MODELS 24

/** "124m" is a preset of GPT-2, "7.5B" a number of parameters. NULL with a sentence in `why`. */
planning_model *memory_model_find(const char *name, char *why, size_t why_bytes);

/** A row of planning's default configuration, with the rates that it assumes. */
SHERD_MUST_USE sherd_status memory_plan(const planning_model *model, const char *backend,
                                        const planning_layout *layout, planning_row *out);

/* ------------------------------------------------------------- real ranks -- */

/* Where a rank waits until the parent has looked at all of them. */
typedef enum memory_mark {
    MEMORY_PLATFORM = 0, /* world and engine made, an engine of the same kind has been and gone */
    MEMORY_SEALED,
    MEMORY_FILLED,
    MEMORY_STEPPED, /* at rest after the second step */
    MEMORY_MARKS,
    MEMORY_FAILED, /* no mark: why says what went wrong */
} memory_mark;

/* From a rank to the parent, one packet. */
typedef struct memory_message {
    memory_mark         mark;
    sherd_memory_report memory;            /* from MEMORY_SEALED on */
    size_t              device_free_bytes; /* of a GPU, all its processes together; 0 on the CPU */
    char                why[MEMORY_WHY_BYTES];
} memory_message;

typedef struct memory_ranks_params {
    const char *model, *config_path;
    const char *folder;  /* for the meeting; ours alone */
    const char *backend; /* "cpu", "cuda" */
    int         world_size;
    int         num_devices;
} memory_ranks_params;

/* Sums over the ranks, in bytes; memory that several map is counted once. */
typedef struct memory_seen {
    size_t pss, anonymous, shared, resident, locked, page_tables;
    size_t device_free; /* of all devices in use */
} memory_seen;

typedef struct memory_group_seen {
    size_t peak;     /* since the platform's mark; with the kernel's charges in addition to pages */
    size_t resting;  /* pages of the processes and shared memory, no page cache */
    size_t platform; /* the same at the platform's mark */
} memory_group_seen;

typedef struct memory_ranks {
    sherd_memory_report reports[MEMORY_MOST_RANKS]; /* at rest */
    memory_seen         seen[MEMORY_MARKS];
    size_t              peak_pss; /* largest sum that was sampled from the platform's mark on */
    size_t              samples;
    int                 has_group;
    memory_group_seen   group;
    double              seconds;
} memory_ranks;

/** Runs all ranks of a row. -1 with a sentence in `why` when one failed; no files remain in either
 *  case. */
int memory_ranks_run(const memory_ranks_params *params, memory_ranks *out, char *why,
                     size_t why_bytes);
/** The signal that asked this program to end; 0: none did. */
int  memory_signal(void);
void memory_signals_catch(void);

/** A rank: "--part" and the options of the parent. */
int memory_part_main(int argc, char **argv);

/* ------------------------------------------------------------------- rows -- */

typedef struct memory_row {
    const char     *model; /* as it was asked for */
    planning_layout layout;
    int             is_real;
    planning_row    plan; /* of rank 0 */
    /* Of a rank, on average: device and host, and the world's room for reductions. */
    size_t planned_bytes, held_bytes;
    size_t platform_bytes;   /* PSS */
    double system_bytes;     /* PSS at rest less the platform's; on a GPU the device's share too */
    double peak_bytes;       /* the same at its largest */
    double group_bytes;      /* at rest, as the control group counts; 0: there was none */
    double group_peak_bytes; /* with page tables and what else the kernel charges */
    double device_bytes;     /* the device's share of system_bytes */
    double off_bytes; /* between planned and system; what pinned memory may hide is no difference */
    double difference;         /* off_bytes of planned */
    int    is_equal, is_close; /* planned is held to the byte; within the line of system */
    memory_ranks ranks;
    char         why[MEMORY_WHY_BYTES]; /* not real though asked for, or the numbers that differ */
} memory_row;

/* Folders of this run, removed at its end whatever happens but SIGKILL. */
typedef struct memory_folders {
    char state[512];   /* on the drive that --nvme-path says */
    char meeting[256]; /* short, for a socket's name, and of the configuration */
} memory_folders;

/** -1, said on standard error. */
int  memory_folders_make(const char *nvme_path, memory_folders *out);
void memory_folders_remove(void);

/* How real rows are measured. */
typedef struct memory_run {
    const memory_folders *folders;
    const char           *backend;
    const char           *keys; /* more of the configuration: "\"key\": value, ..."; NULL: none */
} memory_run;

/** Plans the row that `layout` says as the ranks will plan it, and runs them if they fit. The
 *  result is in the row: is_real, is_equal, is_close, why. 1: cannot be in this build, no row; -1:
 *  a rank or the plan failed, with a sentence in row->why. */
int memory_row_run(const memory_run *run, const planning_model *model, const char *name,
                   const planning_layout *layout, memory_row *row);
/** The row as planned, with default settings. */
int memory_row_plan(const planning_model *model, const char *name, const char *backend,
                    const planning_layout *layout, memory_row *row);

typedef struct memory_table {
    memory_row *rows;
    size_t      count, capacity;
} memory_table;

void memory_print_head(FILE *out);
void memory_print_row(FILE *out, const memory_row *row);
int  memory_json_row(FILE *out, const planning_request *request, const memory_row *row);

/* The largest model on `gpus` GPUs; elems 0: none. */
typedef struct memory_limit {
    int              stage;
    planning_offload offload;
    int              gpus;
    size_t           elems;
    planning_row     plan;
    const char      *bound; /* what ends it: "device", "host", "nvme", "blocks" or "count" */
} memory_limit;

typedef struct memory_limits_params {
    size_t device_bytes, host_bytes,
        nvme_bytes; /* of a GPU; of a host of ranks_per_host, its drives */
    int ranks_per_host;
} memory_limits_params;

/** Bisects. Non-zero when interrupted or a plan failed (said on standard error). */
int memory_limit_find(const memory_limits_params *params, int stage, planning_offload offload,
                      int gpus, memory_limit *out);

void memory_print_limits(FILE *out, const memory_limit *limits, size_t count);
int  memory_json_limit(FILE *out, const memory_limit *limit);

/* ---------------------------------------------------------------- options -- */

typedef struct memory_options {
    const char          *backend, *nvme_path, *keys, *json, *plots;
    const char          *models[MEMORY_MOST_MODELS]; /* of real rows; the first in every world */
    const char          *planned_models[MEMORY_MOST_MODELS]; /* of planned rows */
    size_t               num_models, num_planned_models;
    int                  worlds[MEMORY_MOST_WORLDS];
    size_t               num_worlds;
    int                  has_stage[MEMORY_STAGES], has_offload[PLANNING_OFFLOADS];
    int                  is_planned_only, is_real_only;
    memory_limits_params limits;
    size_t               touch_bytes; /* 0: rows */
} memory_options;

/** Fills the options from the arguments, over defaults. Ends the program after --help and after a
 *  mistake. */
void memory_options_parse(int argc, char **argv, memory_options *options);

/** Times the allocation of host memory, three times, and prints a table; with the backend "cuda" it
 *  is locked for the device. Returns the program's exit code. */
int memory_touch_run(size_t len_bytes, const char *backend);

/** SVG files into an existing folder. Non-zero: gnuplot failed. */
int memory_charts_write(const char *folder, const memory_table *table, const memory_limit *limits,
                        size_t num_limits);

#endif
