/* The common parts of `sherd bench`: configurations, folders, the machine, clocks, the slowest
 * rank. */
#include "cli/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Bytes of an element's state on a drive: master weight and moments, in two generations. */
#define DRIVE_BYTES 24

/* The gradients are stored in the type in which they are sent. */
static const char CONFIG[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d,"
    " \"bf16\": {\"enabled\": true}, \"wall_clock_breakdown\": true,"
    " \"data_types\": {\"grad_accum_dtype\": \"bf16\"},"
    " \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.001}},"
    " \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": false,"
    " \"stage3_param_persistence_threshold\": 0%s%s}}";

/* Escapes a path for a JSON text. */
static void path_escape(const char *path, char out[2 * SCRATCH_PATH_BYTES])
{
    for (; *path != '\0'; path++) {
        if (*path == '"' || *path == '\\') {
            *out++ = '\\';
        }
        *out++ = *path;
    }
    *out = '\0';
}

/* Writes ', "offload_param": {...}', or nothing. */
static void offload_write(const char *key, const char *device, const char *nvme_path, int is_pinned,
                          char *out, size_t out_bytes)
{
    const char *before                       = nvme_path == NULL ? "" : ", \"nvme_path\": \"";
    const char *after                        = nvme_path == NULL ? "" : "\"";
    char        path[2 * SCRATCH_PATH_BYTES] = "";

    out[0] = '\0';
    if (device == NULL) {
        return;
    }
    if (nvme_path != NULL) {
        path_escape(nvme_path, path);
    }
    (void)snprintf(out, out_bytes, ", \"%s\": {\"device\": \"%s\", \"pin_memory\": %s%s%s%s}", key,
                   device, is_pinned ? "true" : "false", before, path, after);
}

sherd_status bench_config_make(const bench_request *request, const bench_settings *settings,
                               sherd_config **out)
{
    char state[2 * SCRATCH_PATH_BYTES + 128];
    char params[2 * SCRATCH_PATH_BYTES + 128];
    int  is_pinned = strcmp(request->backend, "cuda") == 0;
    char json[sizeof(CONFIG) + sizeof(state) + sizeof(params) + 32];
    int  len;

    offload_write("offload_optimizer", settings->state_device, settings->nvme_path, is_pinned,
                  state, sizeof(state));
    offload_write("offload_param", settings->param_device, settings->nvme_path, is_pinned, params,
                  sizeof(params));
    len = snprintf(json, sizeof(json), CONFIG, settings->micro_batches,
                   settings->has_matrices ? "Muon" : "AdamW", settings->stage, state, params);
    return sherd_config_parse(json, (size_t)len, out);
}

sherd_status bench_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = 0.01f * (float)((first_elem + i) % 199) - 1.0f;
    }
    return SHERD_OK;
}

int bench_folder_make(sherd_world *world, const bench_request *request, int ranks_per_host,
                      scratch_folder *out)
{
    return scratch_make(world, request->nvme_path,
                        (uint64_t)request->elems * DRIVE_BYTES * (uint64_t)ranks_per_host, out);
}

void bench_machine_write(char *out, size_t out_bytes)
{
    struct utsname system;
    char           line[512];
    char           cpu[256] = "unknown processor";
    FILE          *file     = fopen("/proc/cpuinfo", "r");
    long           cores    = sysconf(_SC_NPROCESSORS_ONLN);
    double         bytes    = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            char *name = strchr(line, ':') + 1;

            name += strspn(name, " \t");
            name[strcspn(name, "\n")] = '\0';
            (void)snprintf(cpu, sizeof(cpu), "%.250s", name);
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    (void)uname(&system);
    (void)snprintf(out, out_bytes, "%s, %ld cores, %.0f GiB, %.60s %.60s", cpu, cores,
                   bytes / 0x1p30, system.sysname, system.release);
}

static int value_compare(const void *a, const void *b)
{
    double one = *(const double *)a;
    double two = *(const double *)b;

    return (one > two) - (one < two);
}

double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), value_compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Uses a sum in which each rank has its own place, for 64 ranks at a time. */
sherd_status bench_slowest(sherd_world *world, double seconds, double *out)
{
    int    rank     = sherd_world_rank(world);
    int    ranks    = sherd_world_size(world);
    double each[64] = {0};
    double most     = 0;

    for (int first = 0; first < ranks; first += 64) {
        int count = ranks - first < 64 ? ranks - first : 64;

        memset(each, 0, sizeof(each));
        if (rank >= first && rank < first + count) {
            each[rank - first] = seconds;
        }
        BENCH_TRY(sherd_world_sum_f64(world, each, (size_t)count));
        for (int r = 0; r < count; r++) {
            most = each[r] > most ? each[r] : most;
        }
    }
    *out = most;
    return SHERD_OK;
}

void bench_progress(const sherd_world *world, const char *text)
{
    if (sherd_world_rank(world) == 0) {
        (void)fputs(text, stderr);
        (void)fflush(stderr);
    }
}
