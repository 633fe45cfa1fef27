/* Shared by the files of `sherd bench`: what is measured, and in which processes. */
#ifndef SHERD_CLI_BENCH_H
#define SHERD_CLI_BENCH_H

#include "cli/scratch.h"
#include "planning/rates.h"
#include "sherd.h"

#define BENCH_MOST_RANKS  64
#define BENCH_MOST_ROUNDS 100

typedef struct bench_request {
    const char *nvme_path; /* NULL: drives are left out */
    size_t      elems;     /* of each rank's slice */
    int         rounds;    /* that count, beside the first ones */
    const char *backend;   /* "cpu", "cuda" */
} bench_request;

/* Bytes per second; median 0: not measured. */
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

/** Engines, one after the other, whose steps are timed; the same result on all ranks. Rank 0 tells on
 *  standard error how far it is. Collective. Fails with sherd_last_error(), or with a sentence in `why`. */
sherd_status bench_rates_measure(sherd_world *world, const bench_request *request,
                                 bench_result *out, char *why, size_t why_bytes);

/** Steps of a model without arithmetic, in several layouts: what the rates predict, and what they take. Rank 0
 *  prints a table. Collective; fails as above. */
sherd_status bench_check_run(sherd_world *world, const bench_request *request,
                             const bench_result *measured, char *why, size_t why_bytes);

/* ---- steps (bench_steps.c) ---- */

/* An engine's configuration: AdamW, or Muon for matrices, in bf16, communication not overlapped. */
typedef struct bench_settings {
    int         stage, micro_batches, has_matrices;
    const char *state_device, *param_device; /* NULL: none; "cpu", "nvme" */
    const char *nvme_path;
} bench_settings;

sherd_status bench_config_make(const bench_request *request, const bench_settings *settings,
                               sherd_config **out);
/** A sherd_fill_fn without context. */
sherd_status bench_fill(void *ctx, size_t first_elem, size_t count_elems, float *out);
/** A folder for state on NVMe, with room for it. As scratch_make. */
int bench_folder_make(sherd_world *world, const bench_request *request, int ranks_per_host,
                      scratch_folder *out);

double bench_now_s(void);
/** Sorts `values`; `count` above 0. */
double bench_median(double *values, int count);
/** The most of all ranks' numbers, which are at least 0. Collective. */
sherd_status bench_slowest(sherd_world *world, double seconds, double *out);
/** Rank 0 alone, on standard error. */
void bench_progress(const sherd_world *world, const char *text);

/* ---- ranks (bench_ranks.c) ---- */

/** What a rank does; returns its exit status. */
typedef int (*bench_rank_fn)(sherd_world *world, void *ctx);

/** As many ranks as are useful here: one per device, or two, at most one per core. */
int bench_ranks_default(const char *backend);
/** Runs `run` on the world of the launcher, or on `count` processes of which this one is rank 0; waits for all.
 *  The first other thread of this process is started inside. Exit status: rank 0's, 1 when another failed. */
int bench_ranks_run(int count, const sherd_world_params *params, bench_rank_fn run, void *ctx);

#endif
