/* Shared by the files of `sherd plan`: the request (plan_options.c), a row of the answer (plan.c),
 * how rows are printed (plan_table.c), and how one of them is chosen (plan_best.c) and written as a
 * configuration (plan_config.c). */
#ifndef SHERD_CLI_PLAN_H
#define SHERD_CLI_PLAN_H

#include "planning/row.h"

#include <stddef.h>

#define PLAN_MOST_WORLDS   32
#define PLAN_MOST_SETTINGS 64
#define PLAN_MOST_RATES    16
/* stages x offloads x ways to share */
#define PLAN_MOST_LAYOUTS (4 * PLANNING_OFFLOADS * 3)
/* In the layouts of plan_options: as many ranks as a host has. */
#define PLAN_OF_A_HOST (-1)

/* The folder on NVMe if the file names none. It is the one of DeepSpeed's examples. */
#define PLAN_NVME_PATH "/local_nvme"

typedef struct plan_options {
    planning_request
        request; /* without the sequences of a micro-batch, which depend on the world size */
    planning_model *model; /* request.model */
    const char     *settings[PLAN_MOST_SETTINGS];
    char            batch_setting[64]; /* the setting of --batch, which is the last one */
    const char *rates_path, *rates[PLAN_MOST_RATES]; /* rates_path: the word or file of --rates */
    int         num_rates;
    int         is_measured; /* rates that nobody gave are measured before the first row */
    const char *nvme_path;   /* folder on the drives; NULL: the current one is measured */

    planning_layout layouts[PLAN_MOST_LAYOUTS]; /* without a world size */
    int             num_layouts;
    int             worlds[PLAN_MOST_WORLDS], num_worlds;

    int         is_json, is_full, is_check, is_best;
    const char *out_path; /* the file of --best; NULL: standard output */
    int         is_forced;
} plan_options;

/* A row, and the request that made it, whose batch is that of the row's world size. */
typedef struct plan_entry {
    planning_request request;
    planning_layout  asked;
    planning_row     row;          /* its layout is the one that was made of `asked` */
    char             refused[512]; /* the reason why the row has no plan; "": it has one */
} plan_entry;

/** Reads the arguments and the files that they name. Returns 0; -1 if all that was asked is
 *  printed; or the exit status for bad arguments, after a message. The caller calls
 *  plan_options_fini in any case. */
int  plan_options_init(int argc, char **argv, plan_options *out);
void plan_options_fini(plan_options *options);

/** Measures the rates that nobody gave, and prints all with their origins to standard error. Rates
 *  that cannot be measured stay assumed. It must be called before this process starts a second
 *  thread. */
void plan_rates_measure(plan_options *options);

/** Gives a layout for a world size, with the ranks of its hosts. Returns whether it can be there: what
 *  is shared by the ranks of a host takes several hosts, all with as many ranks, and more than one. */
int plan_layout_make(const plan_options *options, int layout, int world_size, planning_layout *out);
/** Makes a row. Fails with sherd_last_error(). */
SHERD_MUST_USE sherd_status plan_entry_make(const plan_options    *options,
                                            const planning_layout *layout, plan_entry *out);
/** Makes an entry for a layout of plan_layout_make. If the layout is not supported, the entry says
 *  why it has no row. */
SHERD_MUST_USE sherd_status plan_entry_try(const plan_options    *options,
                                           const planning_layout *layout, plan_entry *out);
/** Returns the first entry that has a row, for what all rows have in common; if none has a row, the
 *  first entry. */
const plan_entry *plan_first(const plan_entry *entries, size_t count);
/** Returns whether no entry has a row. Then it also prints why. */
int plan_are_refused(const plan_entry *entries, size_t count);

/* The memory that a row needs beyond the available memory; 0 if it is enough or not known. The need
 * of a host and its drives is that of all its ranks. */
typedef struct plan_shortage {
    double device_bytes, host_bytes, nvme_bytes;
} plan_shortage;
void plan_shortage_find(const plan_entry *entry, plan_shortage *out);

/** Return the bytes that are needed of a rank's device, activations included, and of a host by all
 *  its ranks. */
double plan_device_need(const plan_entry *entry);
double plan_host_need(const plan_entry *entry);

/** Writes a size with three digits, such as "12.3 GiB". */
#define PLAN_BYTES_CHARS 24
const char *plan_bytes_text(double bytes, char out[PLAN_BYTES_CHARS]);
/** Writes whether the row fits: "yes", "no: device +12.3 GiB, nvme +1.2 TiB", or "" if neither
 *  memory nor drives were set. */
#define PLAN_FIT_CHARS 96
const char *plan_fit_text(const plan_entry *entry, char out[PLAN_FIT_CHARS]);
/** Return whether this rate, or any rate, was used for the time of a row and was assumed. */
int plan_rate_is_assumed(const plan_entry *entry, planning_rate rate);
int plan_is_assumed(const plan_entry *entry);

/** Prints one row in words, or several rows as a table. */
void plan_summary_print(const plan_options *options, const plan_entry *entry);
void plan_table_print(const plan_options *options, const plan_entry *entries, size_t count);

/** Chooses a layout for each world size, prints why to standard error, and writes the
 *  configuration. Returns the exit status. */
int plan_best(const plan_options *options);
/** Writes the configuration of a row to options->out_path or standard output: the values of the
 *  file and of the settings, with the stage and offload of the row. Remarks go to standard error.
 *  Returns the exit status. */
int plan_config_write(const plan_options *options, const planning_layout *layout);

#endif
