/* Shared by the files of `sherd plan`: what was asked (plan_options.c), a row of the answer (plan.c), how rows
 * are printed (plan_table.c), how one of them is chosen (plan_best.c) and written as a configuration (plan_config.c). */
#ifndef SHERD_CLI_PLAN_H
#define SHERD_CLI_PLAN_H

#include "planning/row.h"

#include <stddef.h>

#define PLAN_MOST_WORLDS   32
#define PLAN_MOST_SETTINGS 64
#define PLAN_MOST_RATES    16
#define PLAN_MOST_LAYOUTS  (4 * PLANNING_OFFLOADS)

/* Where the file's NVMe folder is missing: DeepSpeed's own example. */
#define PLAN_NVME_PATH "/local_nvme"

typedef struct plan_options {
    planning_request
                    request; /* without the sequences of a micro-batch, which depend on the world */
    planning_model *model;   /* request.model */
    const char     *settings[PLAN_MOST_SETTINGS];
    char            batch_setting[64]; /* of --batch, the last of the settings */
    const char     *rates_path, *rates[PLAN_MOST_RATES];
    int             num_rates;

    planning_layout layouts[PLAN_MOST_LAYOUTS]; /* stages x offloads; the world is open */
    int             num_layouts;
    int             worlds[PLAN_MOST_WORLDS], num_worlds;

    int         is_json, is_full, is_check, is_best;
    const char *out_path; /* of --best; NULL: standard output */
    int         is_forced;
} plan_options;

/* A row, and the request that made it: its batch is the world's. */
typedef struct plan_entry {
    planning_request request;
    planning_layout  asked;
    planning_row     row;          /* its layout is what was made of it */
    char             refused[512]; /* why there is no such plan, and no row; "": there is */
} plan_entry;

/** Reads the arguments and the files they name. 0, or -1 when all that was asked is printed, or the exit status of
 *  what was wrong and is said. The caller calls plan_options_fini in any case. */
int  plan_options_init(int argc, char **argv, plan_options *out);
void plan_options_fini(plan_options *options);

/** A row. SHERD_OK, or what sherd_last_error() says. */
SHERD_MUST_USE sherd_status plan_entry_make(const plan_options    *options,
                                            const planning_layout *layout, plan_entry *out);
/** One of options->layouts; of what is not supported why there is no row. */
SHERD_MUST_USE sherd_status plan_entry_try(const plan_options *options, int layout, int world_size,
                                           plan_entry *out);
/** The first that has a row, for what all have in common; if none has one, the first. */
const plan_entry *plan_first(const plan_entry *entries, size_t count);
/** Whether none of them has a row; then it is said why. */
int plan_are_refused(const plan_entry *entries, size_t count);

/* What a row needs beyond what there is; 0 where that is not known or suffices. A host's and its drives' are of all its ranks. */
typedef struct plan_shortage {
    double device_bytes, host_bytes, nvme_bytes;
} plan_shortage;
void plan_shortage_find(const plan_entry *entry, plan_shortage *out);

/** Of memory as the machine has it: of a rank's device with activations, of a host with all its ranks. */
double plan_device_need(const plan_entry *entry);
double plan_host_need(const plan_entry *entry);

/** "12.3 GiB", three digits. */
#define PLAN_BYTES_CHARS 24
const char *plan_bytes_text(double bytes, char out[PLAN_BYTES_CHARS]);
/** "no: device +12.3 GiB, nvme +1.2 TiB", "yes", "" where neither memory nor drives were given. */
#define PLAN_FIT_CHARS 96
const char *plan_fit_text(const plan_entry *entry, char out[PLAN_FIT_CHARS]);
/** Whether a rate that a row's time is made from was assumed. */
int plan_is_assumed(const plan_entry *entry);

/** One row in full words; several as a table. */
void plan_summary_print(const plan_options *options, const plan_entry *entry);
void plan_table_print(const plan_options *options, const plan_entry *entries, size_t count);

/** Chooses for each world, says why on standard error, writes the configuration. The exit status. */
int plan_best(const plan_options *options);
/** The configuration of a row: the file's and the settings' own values, and where the row has stage and offload
 *  from. To options->out_path or standard output; remarks to standard error. The exit status. */
int plan_config_write(const plan_options *options, const planning_layout *layout);

#endif
