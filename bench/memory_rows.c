/* One row of bench-memory: planned, measured if it fits, compared with the system's report. See
 * memory.h. */
#include "bench/memory.h"

#include "models/process.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The line: planned against the system's, per rank. */
#define LINE_SHARE 0.02
#define LINE_BYTES 0x1p25
/* Memory that stays free on the machine, memory of a process outside the plan, and the tolerance of
 * the plan. */
#define SPARE_BYTES    0x1p30
#define PLATFORM_BYTES 0x1p26
#define SPARE_SHARE    1.02
#define SPARE_DISK     0.9

/* Sanitizers keep memory of their own for every byte: then the system's figures mean nothing. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif

/* ---------------------------------------------------------------- folders -- */

static memory_folders made;

static int entry_remove(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void folder_remove(char *path)
{
    if (path[0] != '\0') {
        (void)nftw(path, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
        path[0] = '\0';
    }
}

void memory_folders_remove(void)
{
    folder_remove(made.state);
    folder_remove(made.meeting);
}

static int folder_make(const char *parent, char *out, size_t out_bytes)
{
    int len = snprintf(out, out_bytes, "%s/bench-memory-XXXXXX", parent);

    if (len < 0 || (size_t)len >= out_bytes || mkdtemp(out) == NULL) {
        (void)fprintf(stderr, "bench-memory: no folder in %s: %s\n", parent,
                      (size_t)len >= out_bytes ? "its name is too long" : strerror(errno));
        out[0] = '\0';
        return -1;
    }
    return 0;
}

int memory_folders_make(const char *nvme_path, memory_folders *out)
{
    const char *temporary = getenv("TMPDIR");

    if (strpbrk(nvme_path, "\"\\") != NULL) {
        (void)fputs("bench-memory: --nvme-path with quotes or backslashes\n", stderr);
        return -1;
    }
    if (folder_make(nvme_path, made.state, sizeof(made.state)) != 0 ||
        folder_make(temporary != NULL && strlen(temporary) < 60 ? temporary : "/tmp", made.meeting,
                    sizeof(made.meeting)) != 0) {
        memory_folders_remove();
        return -1;
    }
    *out = made;
    return 0;
}

/* ------------------------------------------------------------ configuration -- */

static void offload_write(FILE *out, const char *part, const char *device, const char *more,
                          const char *folder, const char *backend)
{
    if (strcmp(device, "none") == 0) {
        return;
    }
    (void)fprintf(out, ", \"%s\": {\"device\": \"%s\"", part, device);
    if (strcmp(backend, "cuda") == 0) {
        (void)fputs(", \"pin_memory\": true", out);
    }
    if (strcmp(device, "nvme") == 0) {
        (void)fprintf(out, ", \"nvme_path\": \"%s\"%s", folder, more);
    }
    (void)fputc('}', out);
}

/* As planning's default, with a folder that is there. */
static int config_write(const memory_run *run, const planning_model *model,
                        const planning_layout *layout, const char *path)
{
    FILE *out = fopen(path, "we");

    if (out == NULL) {
        return -1;
    }
    (void)fprintf(out, "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true},"
                       " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},");
    if (model->has_arch) {
        (void)fprintf(out, " \"hidden_size\": %zu,", model->sizes.hidden);
    }
    (void)fprintf(out,
                  " \"zero_optimization\": {\"stage\": %d,"
                  " \"stage3_param_persistence_threshold\": 0",
                  layout->stage);
    offload_write(out, "offload_optimizer", planning_offload_state_device(layout->offload),
                  ", \"fast_init\": true", run->folders->state, run->backend);
    offload_write(out, "offload_param", planning_offload_param_device(layout->offload),
                  ", \"max_in_cpu\": 0", run->folders->state, run->backend);
    (void)fprintf(out, "}%s%s}\n", run->keys == NULL ? "" : ", ",
                  run->keys == NULL ? "" : run->keys);
    return fclose(out);
}

/* -------------------------------------------------------------------- fits -- */

static double memory_available(void)
{
    size_t bytes = 0;

    process_lines_add("/proc/meminfo", (const char *const[]){"MemAvailable"},
                      (size_t *const[]){&bytes}, 1);
    return (double)bytes;
}

static double disk_available(const char *folder)
{
    struct statvfs info;

    return statvfs(folder, &info) == 0 ? (double)info.f_bavail * (double)info.f_frsize : 0;
}

/* Whether the ranks would run on this machine; on a GPU its own memory is asked by seal. */
static int row_fits(const memory_folders *folders, const char *backend, memory_row *row)
{
    double ranks = row->layout.world_size;
    double each =
        strcmp(backend, "cuda") == 0 ? (double)row->plan.host_bytes : (double)row->planned_bytes;
    double need = ranks * (each * SPARE_SHARE + PLATFORM_BYTES) + SPARE_BYTES;
    double has  = memory_available();
    double disk = ranks * (double)row->plan.nvme_bytes;
    double room = disk_available(folders->state) * SPARE_DISK;

    if (need > has) {
        (void)snprintf(row->why, sizeof(row->why), "planned only: %.1f GiB of memory, %.1f here",
                       need / 0x1p30, has / 0x1p30);
        return 0;
    }
    if (disk > room) {
        (void)snprintf(row->why, sizeof(row->why), "planned only: %.1f GiB on the drive, %.1f here",
                       disk / 0x1p30, room / 0x1p30);
        return 0;
    }
    return 1;
}

/* ---------------------------------------------------------------- comparing -- */

typedef struct purpose {
    const char *name;
    size_t      planned, held;
} purpose;

/* The first purpose of a rank that is not as planned, there or in the row of that rank. */
static int report_check(const sherd_memory_report *m, const sherd_memory_report *plan, int rank,
                        memory_row *row)
{
    const purpose PURPOSES[] = {
        {"params", m->params_planned, m->params_held},
        {"grads", m->grads_planned, m->grads_held},
        {"state", m->state_planned, m->state_held},
        {"gather", m->gather_planned, m->gather_held},
        {"transient", m->transient_planned, m->transient_held},
        {"staging", m->staging_planned, m->staging_held},
        {"host params", m->host_params_planned, m->host_params_held},
        {"host grads", m->host_grads_planned, m->host_grads_held},
        {"host state", m->host_state_planned, m->host_state_held},
        {"host staging", m->host_staging_planned, m->host_staging_held},
        {"room for reductions", m->receive_planned, m->receive_held},
        {"total of the table's plan", plan->total_planned, m->total_held},
        {"drive of the table's plan", plan->nvme_planned, m->nvme_planned},
    };

    for (size_t i = 0; i < sizeof(PURPOSES) / sizeof(PURPOSES[0]); i++) {
        if (PURPOSES[i].planned != PURPOSES[i].held) {
            (void)snprintf(row->why, sizeof(row->why), "rank %d: %s: planned %zu, held %zu", rank,
                           PURPOSES[i].name, PURPOSES[i].planned, PURPOSES[i].held);
            return 0;
        }
    }
    return 1;
}

static int row_is_equal(const planning_request *base, const planning_layout *as_configured,
                        memory_row *row)
{
    planning_request request = *base;

    for (int r = 0; r < row->layout.world_size; r++) {
        planning_row plan;

        request.rank = r;
        if (planning_row_make(&request, as_configured, &plan) != SHERD_OK) {
            (void)snprintf(row->why, sizeof(row->why), "rank %d: %.500s", r, sherd_last_error());
            return 0;
        }
        if (!report_check(&row->ranks.reports[r], &plan.memory, r, row)) {
            return 0;
        }
    }
    return 1;
}

/* A rank's bytes of a mark, on average. */
static double mean_less_platform(const memory_row *row, size_t pss)
{
    return ((double)pss - (double)row->ranks.seen[MEMORY_PLATFORM].pss) / row->layout.world_size;
}

/* How far a figure is from the plan. Pages that a GPU's driver pins are not in every kernel's
 * account of a process, so up to all of them may be missing there. */
static double off_of(const memory_row *row, double bytes, double pinned)
{
    double off = bytes - (double)row->planned_bytes;

    if (row->ranks.seen[MEMORY_PLATFORM].device_free > 0 && off < 0) {
        return off + pinned < 0 ? off + pinned : 0;
    }
    return off;
}

/* Samples read one process after the other: a page that the next one has mapped meanwhile counts
 * more than once. The control group charges the kernel's tables too. Neither can be too small. */
static double peak_least(const memory_row *row)
{
    double group = row->group_peak_bytes + row->device_bytes;

    return row->group_peak_bytes > 0 && group < row->peak_bytes ? group : row->peak_bytes;
}

static void row_compare(memory_row *row)
{
    const memory_ranks *ranks   = &row->ranks;
    double              count   = row->layout.world_size;
    double              planned = 0, held = 0, pinned = 0;
    double              line;
    double              device_peak = 0;

    for (int r = 0; r < row->layout.world_size; r++) {
        const sherd_memory_report *m = &ranks->reports[r];

        planned += (double)(m->total_planned + m->receive_planned) / count;
        held += (double)(m->total_held + m->receive_held) / count;
        pinned += (double)m->pinned_held / count;
    }
    for (int mark = MEMORY_SEALED; mark < MEMORY_MARKS; mark++) {
        double taken = ((double)ranks->seen[MEMORY_PLATFORM].device_free -
                        (double)ranks->seen[mark].device_free) /
                       count;

        row->device_bytes = taken;
        device_peak       = taken > device_peak ? taken : device_peak;
    }
    /* With the room for reductions of the transport that they have; plans of large worlds take
     * NCCL's. */
    row->planned_bytes  = (size_t)planned;
    row->held_bytes     = (size_t)held;
    row->platform_bytes = ranks->seen[MEMORY_PLATFORM].pss / (size_t)row->layout.world_size;
    row->system_bytes =
        mean_less_platform(row, ranks->seen[MEMORY_STEPPED].pss) + row->device_bytes;
    row->peak_bytes = mean_less_platform(row, ranks->peak_pss) + device_peak;
    if (ranks->has_group) {
        row->group_bytes = ((double)ranks->group.resting - (double)ranks->group.platform) / count;
        row->group_peak_bytes = ((double)ranks->group.peak - (double)ranks->group.platform) / count;
    }
    row->off_bytes  = off_of(row, row->system_bytes, pinned);
    row->difference = row->off_bytes / (double)row->planned_bytes;
    line            = fmax(LINE_SHARE * (double)row->planned_bytes, LINE_BYTES);
    row->is_close   = fabs(row->off_bytes) <= line &&
                    fabs(off_of(row, peak_least(row), pinned)) <= line &&
                    (row->group_bytes == 0 ||
                     fabs(off_of(row, row->group_bytes + row->device_bytes, pinned)) <= line);
    row->is_close = row->is_close || IS_SANITIZED;
    if (!row->is_close && row->why[0] == '\0') {
        (void)snprintf(row->why, sizeof(row->why), "more than %.1f MiB between plan and system",
                       line / 0x1p20);
    }
}

/* -------------------------------------------------------------------- rows -- */

static void row_set_plan(memory_row *row)
{
    row->planned_bytes = row->plan.memory.total_planned + row->plan.memory.receive_planned;
}

int memory_row_plan(const planning_model *model, const char *name, const char *backend,
                    const planning_layout *layout, memory_row *row)
{
    *row = (memory_row){.model = name, .layout = *layout};
    if (memory_plan(model, backend, layout, &row->plan) != SHERD_OK) {
        (void)snprintf(row->why, sizeof(row->why), "%.600s", sherd_last_error());
        return -1;
    }
    row_set_plan(row);
    return 0;
}

int memory_row_run(const memory_run *run, const planning_model *model, const char *name,
                   const planning_layout *layout, memory_row *row)
{
    const char     *backend       = run->backend;
    planning_layout as_configured = {
        .stage = -1, .offload = PLANNING_OFFLOAD_AS_CONFIGURED, .world_size = layout->world_size};
    char                path[320];
    planning_request    request = {.model = model, .config_path = path, .backend = backend};
    memory_ranks_params params  = {.model       = name,
                                   .config_path = path,
                                   .folder      = run->folders->meeting,
                                   .backend     = backend,
                                   .world_size  = layout->world_size};
    sherd_status        status;

    *row = (memory_row){.model = name, .layout = *layout};
    (void)snprintf(path, sizeof(path), "%s/row.json", run->folders->meeting);
    planning_rates_assume(backend, &request.rates);
    if (config_write(run, model, layout, path) != 0) {
        (void)snprintf(row->why, sizeof(row->why), "%s: %s", path, strerror(errno));
        return -1;
    }
    status = planning_row_make(&request, &as_configured, &row->plan);
    if (status != SHERD_OK) {
        (void)snprintf(row->why, sizeof(row->why), "%.600s", sherd_last_error());
        return status == SHERD_E_NOTSUP ? 1 : -1;
    }
    row_set_plan(row);
    if (!row_fits(run->folders, backend, row)) {
        return 0;
    }
    if (strcmp(backend, "cuda") == 0) {
        int count = sherd_device_count(backend);

        params.num_devices = count < layout->world_size ? count : layout->world_size;
    }
    if (memory_ranks_run(&params, &row->ranks, row->why, sizeof(row->why)) != 0) {
        return -1;
    }
    row->is_real  = 1;
    row->is_equal = row_is_equal(&request, &as_configured, row);
    row_compare(row);
    return 0;
}
