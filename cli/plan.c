/* sherd plan: memory, traffic and time of a rank's step for a described model, before memory of
 * that size is allocated. plan_options.c and plan_request.c read the arguments, planning/row.h
 * makes rows, plan_table.c prints them and plan_best.c chooses one of them. */
#include "cli/plan.h"

#include "cli/cli.h"
#include "models/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- rows -- */

int plan_layout_make(const plan_options *options, int layout, int world_size, planning_layout *out)
{
    int ranks = planning_ranks_per_host(&options->request, world_size);
    int is_shared;

    *out            = options->layouts[layout];
    out->world_size = world_size;
    is_shared       = out->replica_ranks != 0 || out->second_copy_ranks != 0;
    if (out->replica_ranks == PLAN_OF_A_HOST) {
        out->replica_ranks = ranks;
    }
    if (out->second_copy_ranks == PLAN_OF_A_HOST) {
        out->second_copy_ranks = ranks;
    }
    return !is_shared || (ranks > 1 && ranks < world_size && world_size % ranks == 0);
}

/* Gives the sequences of a micro-batch by the configuration, which may depend on the number of
 * ranks. */
static sherd_status batch_ask(const planning_request *request, const planning_layout *layout,
                              size_t *out)
{
    sherd_engine_info info;
    sherd_engine     *engine;
    sherd_status      status = planning_engine_open(request, layout, &engine);

    if (status != SHERD_OK) {
        return status;
    }
    sherd_engine_info_init(&info);
    status = sherd_engine_query(engine, &info);
    sherd_engine_destroy(engine);
    if (status == SHERD_OK) {
        *out = (size_t)info.micro_batch_size;
    }
    return status;
}

sherd_status plan_entry_make(const plan_options *options, const planning_layout *layout,
                             plan_entry *out)
{
    planning_layout asked  = *layout;
    sherd_status    status = SHERD_OK;

    *out = (plan_entry){.request = options->request, .asked = asked};
    if (out->request.length > 0) {
        status = batch_ask(&options->request, &asked, &out->request.batch);
    }
    if (status == SHERD_OK) {
        status = planning_row_make(&out->request, &asked, &out->row);
    }
    if (asked.offload >= 0) {
        /* small parts stay on the device; if a model has only small parts, the row would look like
         * a smaller offload */
        out->row.layout.offload = asked.offload;
    }
    return status;
}

sherd_status plan_entry_try(const plan_options *options, const planning_layout *layout,
                            plan_entry *out)
{
    sherd_status status = plan_entry_make(options, layout, out);

    if (status == SHERD_E_NOTSUP) {
        (void)snprintf(out->refused, sizeof(out->refused), "%s", sherd_last_error());
        status = SHERD_OK;
    }
    return status;
}

const plan_entry *plan_first(const plan_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (entries[i].refused[0] == '\0') {
            return &entries[i];
        }
    }
    return entries;
}

int plan_are_refused(const plan_entry *entries, size_t count)
{
    if (plan_first(entries, count)->refused[0] == '\0') {
        return 0;
    }
    (void)fprintf(stderr, "sherd: %s\n", entries[0].refused);
    return 1;
}

/* Prints the whole plan of one rank, as the engine writes it. */
static sherd_status full_print(const plan_options *options, const planning_layout *layout)
{
    sherd_engine *engine;
    sherd_status  status = planning_engine_open(&options->request, layout, &engine);

    if (status != SHERD_OK) {
        return status;
    }
    status = sherd_engine_plan(engine, options->is_json ? SHERD_PLAN_JSON : SHERD_PLAN_TABLE,
                               cli_print, stdout);
    if (status == SHERD_OK) {
        /* only after the print, which shows the parts that are too large */
        status = sherd_engine_fits(engine);
    }
    sherd_engine_destroy(engine);
    return status;
}

/* Checks the plans of all ranks, each one and together. */
static sherd_status ranks_check(const plan_options *options, const planning_layout *layout)
{
    double        start_s = clock_now_s();
    sherd_engine *engine;
    sherd_status  status = planning_engine_open(&options->request, layout, &engine);

    if (status != SHERD_OK) {
        return status;
    }
    status = sherd_engine_check_plans(engine);
    sherd_engine_destroy(engine);
    if (status == SHERD_OK) {
        char stage[24] = "stage as configured";
        int  is_flat   = layout->replica_ranks + layout->second_copy_ranks == 0;

        if (layout->stage >= 0) {
            (void)snprintf(stage, sizeof(stage), "stage %d", layout->stage);
        }
        (void)fprintf(options->is_json ? stderr : stdout,
                      "%s, offload %s%s%s: plans of %d ranks checked in %.2f s\n", stage,
                      planning_offload_name(layout->offload), is_flat ? "" : ", ",
                      is_flat ? "" : planning_sharing_name(layout), layout->world_size,
                      clock_now_s() - start_s);
    }
    return status;
}

/* --------------------------------------------------------------- machines -- */

static int is_cuda(const plan_entry *entry)
{
    return strcmp(entry->request.backend, "cuda") == 0;
}

double plan_device_need(const plan_entry *entry)
{
    return is_cuda(entry) ? (double)entry->row.device_bytes + (double)entry->row.activation_bytes
                          : 0;
}

double plan_host_need(const plan_entry *entry)
{
    const planning_row *row   = &entry->row;
    double              bytes = (double)row->host_bytes;

    if (!is_cuda(entry)) { /* device and host have the same memory */
        bytes += (double)row->device_bytes + (double)row->activation_bytes;
    }
    return bytes * planning_ranks_per_host(&entry->request, row->layout.world_size);
}

static double lack_of(double need, size_t have)
{
    return have > 0 && need > (double)have ? need - (double)have : 0;
}

void plan_shortage_find(const plan_entry *entry, plan_shortage *out)
{
    out->device_bytes = lack_of(plan_device_need(entry), entry->request.device_bytes);
    out->host_bytes   = lack_of(plan_host_need(entry), entry->request.host_bytes);
    out->nvme_bytes =
        lack_of(planning_nvme_need(&entry->request, &entry->row), entry->request.nvme_bytes);
}

/* --------------------------------------------------------------- printing -- */

static sherd_status entry_write(const plan_entry *entry)
{
    return entry->refused[0] == '\0'
               ? planning_row_write(&entry->request, &entry->row, cli_print, stdout)
               : planning_refused_write(&entry->request, &entry->asked, entry->refused, cli_print,
                                        stdout);
}

static int entries_print(const plan_options *options, const plan_entry *entries, size_t count)
{
    if (options->is_json) {
        for (size_t i = 0; i < count; i++) {
            if (entry_write(&entries[i]) != SHERD_OK) {
                (void)fprintf(stderr, "sherd: a row cannot be written\n");
                return 1;
            }
        }
    } else if (count == 1) {
        plan_summary_print(options, entries);
    } else {
        plan_table_print(options, entries, count);
    }
    if (count == 1 && entries[0].row.has_fit && !entries[0].row.fits) {
        (void)fflush(stdout);
        (void)fprintf(stderr, "sherd: %s\n", entries[0].row.why);
        return 1;
    }
    return 0;
}

static int rows_print(const plan_options *options)
{
    size_t      most    = (size_t)options->num_layouts * (size_t)options->num_worlds;
    size_t      count   = 0;
    plan_entry *entries = calloc(most, sizeof(*entries));
    int         failed  = 0;

    if (entries == NULL) {
        (void)fprintf(stderr, "sherd: no memory for %zu rows\n", most);
        return 1;
    }
    for (int l = 0; l < options->num_layouts && !failed; l++) {
        for (int w = 0; w < options->num_worlds && !failed; w++) {
            planning_layout layout;

            if (plan_layout_make(options, l, options->worlds[w], &layout)) {
                failed = plan_entry_try(options, &layout, &entries[count++]) != SHERD_OK;
            }
        }
    }
    if (failed) {
        failed = cli_fail();
    } else {
        failed = plan_are_refused(entries, count) || entries_print(options, entries, count);
    }
    free(entries);
    return failed;
}

/* Calls `visit` for each layout and world size, until a call fails. */
static int layouts_visit(const plan_options *options,
                         sherd_status (*visit)(const plan_options *, const planning_layout *))
{
    for (int l = 0; l < options->num_layouts; l++) {
        for (int w = 0; w < options->num_worlds; w++) {
            planning_layout layout;

            if (plan_layout_make(options, l, options->worlds[w], &layout) &&
                visit(options, &layout) != SHERD_OK) {
                return cli_fail();
            }
        }
    }
    return 0;
}

static int plan_run(plan_options *options)
{
    const char *path = options->out_path;
    int         failed;

    if (path != NULL && strcmp(path, "-") != 0 && cli_file_check(path, options->is_forced) != 0) {
        return 1;
    }
    if (options->is_measured) {
        plan_rates_measure(options);
    }
    if (options->is_best) {
        return plan_best(options);
    }
    failed = options->is_full ? layouts_visit(options, full_print) : rows_print(options);
    if (options->is_check) {
        int broken = layouts_visit(options, ranks_check);

        failed = failed != 0 ? failed : broken;
    }
    return failed;
}

int cli_plan(int argc, char **argv)
{
    plan_options options;
    int          failed = plan_options_init(argc, argv, &options);

    if (failed == 0) {
        failed = plan_run(&options);
    }
    plan_options_fini(&options);
    return failed < 0 ? 0 : failed;
}
