/* Shared by the files of `sherd bench`: the measurements and their processes. */
#ifndef SHERD_CLI_BENCH_H
#define SHERD_CLI_BENCH_H

#include "cli/scratch.h"
#include "planning/rates.h"
#include "sherd.h"

#define BENCH_MOST_RANKS  64
#define BENCH_MOST_ROUNDS 100

/* Measurements with separate engines, in this order. */
typedef enum bench_part {
    BENCH_ON_DEVICE = 1,  /* device, and wire if there are several ranks */
    BENCH_WITH_HOST = 2,  /* host, down, up */
    BENCH_ON_NVME   = 4,  /* nvme_read, nvme_write */
    BENCH_MATRICES  = 8,  /* products */
    BENCH_BETWEEN   = 16, /* between if there are several hosts */
} bench_part;

typedef struct bench_request {
    const char *nvme_path; /* NULL: drives are not measured */
    unsigned    parts;     /* of bench_part; 0: all */
    size_t      elems;     /* elements of each rank's slice */
    int         rounds;    /* that count, in addition to the first ones */
    const char *backend;   /* "cpu" or "cuda" */
} bench_request;

/* Bytes per second. A median of 0: the rate was not measured. */
typedef struct bench_rate {
    double median, min, max;
} bench_rate;

typedef struct bench_result {
    int        ranks, ranks_per_host;
    char       transport[16];
    bench_rate rates[PLANNING_RATES];
} bench_result;

#define BENCH_TRY(call)                                                                            \
    do {                                                                                           \
        sherd_status bench_try_status_ = (call);                                                   \
        if (bench_try_status_ != SHERD_OK) {                                                       \
            return bench_try_status_;                                                              \
        }                                                                                          \
    } while (0)

/** Measures the rates of the parts, with engines that are created one after the other. All ranks
 *  get the same result, and after a failure the results of the measurements before it. Rank 0
 *  prints its progress to standard error. Collective. Fails with sherd_last_error(), or with a
 *  message in `why`. */
sherd_status bench_rates_measure(sherd_world *world, const bench_request *request,
                                 bench_result *out, char *why, size_t why_bytes);

/** Runs steps of a model without arithmetic in several layouts. Rank 0 prints a table of the
 *  predicted and the measured times. Collective; fails as above. */
sherd_status bench_check_run(sherd_world *world, const bench_request *request,
                             const bench_result *measured, char *why, size_t why_bytes);

/* ---- steps (bench_steps.c) ---- */

/* The settings of an engine. It uses AdamW, or Muon for matrices, in bf16, without overlapped
 * communication. */
typedef struct bench_settings {
    int         stage, micro_batches, has_matrices;
    const char *state_device, *param_device; /* "cpu" or "nvme"; NULL: no offload */
    const char *nvme_path;
} bench_settings;

sherd_status bench_config_make(const bench_request *request, const bench_settings *settings,
                               sherd_config **out);
/** A sherd_fill_fn; ctx is not used. */
sherd_status bench_fill(void *ctx, size_t first_elem, size_t count_elems, float *out);
/** Makes a folder with enough space for state on NVMe. Otherwise like scratch_make. */
int bench_folder_make(sherd_world *world, const bench_request *request, int ranks_per_host,
                      scratch_folder *out);

/** Writes this machine's processor, cores and memory. */
void bench_machine_write(char *out, size_t out_bytes);
/** Returns the median, and sorts `values`. `count` is above 0. */
double bench_median(double *values, int count);
/** Gives the largest number of all ranks. The numbers are at least 0. Collective. */
sherd_status bench_slowest(sherd_world *world, double seconds, double *out);
/** Prints progress to standard error, on rank 0 only. */
void bench_progress(const sherd_world *world, const char *text);

/* ---- ranks (bench_ranks.c) ---- */

/** The work of a rank. Returns its exit status. */
typedef int (*bench_rank_fn)(sherd_world *world, void *ctx);

/** Counts the devices of a backend, in a process of its own: after a process has used a device,
 *  those that it forks cannot. */
int bench_devices_count(const char *backend);
/** Returns how many ranks are useful here: one per device; without devices two, or one on a single
 *  core. */
int bench_ranks_default(const char *backend);
/** Runs `run` in the world of the launcher, or in `count` processes of which this one is rank 0,
 *  and waits for all. It must be called before this process starts a second thread. Returns the
 *  exit status of rank 0, or 1 if another rank failed. */
int bench_ranks_run(int count, const sherd_world_params *params, bench_rank_fn run, void *ctx);

#endif
