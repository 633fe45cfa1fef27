/* Reports the features of this build and this machine: the text of `sherd env`. */
#include "collectives/transport.h"
#include "collectives/world.h"
#include "engine/limits.h"
#include "kernels/cpu/team.h"
#include "kernels/devices.h"
#include "offload/io.h"
#include "sherd_build.h"
#include "sherd_tools.h"

#include "base/api.h"
#include "base/format.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

static void put(json_t *list, const char *name, const char *value)
{
    (void)json_array_append_new(list, json_pack("[s, s]", name, value));
}

static void cpu_name(char *text, size_t len_bytes)
{
    char  line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");

    (void)snprintf(text, len_bytes, "unknown");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(text, len_bytes, "%s", strchr(line, ':') + 2);
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* Writes what limits the memory that this process can take, if that is not the host. */
static void put_memory_limit(json_t *list, size_t left_bytes, int bound)
{
    static const char *const LIMITS[] = {
        [SHERDI_BOUND_GROUP]    = "the control group",
        [SHERDI_BOUND_PROCESS]  = "the process (ulimit -d)",
        [SHERDI_BOUND_VARIABLE] = "SHERD_MEMORY_LIMIT",
    };
    char text[32];

    if (bound == SHERDI_BOUND_HOST) {
        return;
    }
    (void)snprintf(text, sizeof(text), "%zu bytes", left_bytes);
    put(list, "memory left", text);
    put(list, "memory limit", LIMITS[bound]);
}

static void put_machine(json_t *list)
{
    struct utsname kernel;
    struct rlimit  memlock;
    char           text[300];
    size_t         left_bytes = 0;
    int            bound      = SHERDI_BOUND_HOST;
    double         pages      = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    if (uname(&kernel) == 0) {
        (void)snprintf(text, sizeof(text), "%.60s %.60s %.60s", kernel.sysname, kernel.release,
                       kernel.machine);
        put(list, "system", text);
    }
    cpu_name(text, sizeof(text));
    put(list, "cpu", text);
    (void)snprintf(text, sizeof(text), "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    put(list, "cores", text);
    if (sherdi_machine_free_memory(&left_bytes, &bound) == SHERD_OK && left_bytes > 0) {
        (void)snprintf(text, sizeof(text), "%.1f GiB, of which this process can take %.1f GiB",
                       pages / 0x1p30, (double)left_bytes / 0x1p30);
    } else {
        (void)snprintf(text, sizeof(text), "%.1f GiB", pages / 0x1p30);
    }
    put(list, "memory", text);
    put_memory_limit(list, left_bytes, bound);
    if (getrlimit(RLIMIT_MEMLOCK, &memlock) == 0) {
        if (memlock.rlim_cur == RLIM_INFINITY) {
            (void)snprintf(text, sizeof(text), "unlimited");
        } else {
            (void)snprintf(text, sizeof(text), "%llu KiB",
                           (unsigned long long)memlock.rlim_cur / 1024);
        }
        put(list, "memlock limit", text);
    }
}

static void put_kernels(json_t *list)
{
    static const char *const ISAS[] = {"scalar", "avx2", "avx512"};
    sherd_world             *world;
    char                     text[128] = "";

    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        if (sherdi_kernels_cpu_find(ISAS[i]) != NULL) {
            (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s",
                           text[0] == '\0' ? "" : ", ", ISAS[i]);
        }
    }
    put(list, "kernels that run here", text);
    if (sherd_world_self(&world) == SHERD_OK) {
        const sherdi_backend *backend = sherdi_world_backend(world);

        put(list, "kernels chosen", backend->kernels->isa);
        sherdi_backend_cpu_describe(backend, text, sizeof(text));
        put(list, "kernel threads of one rank", text);
        sherd_world_destroy(world);
    } else {
        put(list, "kernels chosen", sherd_last_error());
    }
}

/* Writes the CPUs of each rank's updates for a rank on each of `ranks` GPUs; without a GPU, for
 * one. */
static void put_updates(json_t *list, int ranks)
{
    sherdi_mem mem;

    sherdi_mem_init(&mem);
    for (int rank = 0; rank < ranks; rank++) {
        const sherdi_cpu_params params = {
            .share = rank, .shares = ranks, .rank = -1, .is_idle = 1, .has_device = 1};
        sherdi_backend *backend;
        char            name[64], text[256];

        (void)snprintf(name, sizeof(name), "updates on the host of a GPU, rank %d of %d", rank,
                       ranks);
        if (sherdi_backend_cpu_create_with(&params, &mem, &backend) == SHERD_OK) {
            sherdi_backend_cpu_describe(backend, text, sizeof(text));
            put(list, name, text);
            sherdi_backend_destroy(backend);
        } else {
            put(list, name, sherd_last_error());
        }
    }
}

static const char *yes_or(int is_there, const char *otherwise)
{
    return is_there ? "yes" : otherwise;
}

/* Whether the build has io_uring and this kernel permits it. */
static int has_uring(void)
{
    sherdi_ioq_params params = {
        .kind = SHERDI_IOQ_URING, .request_bytes = SHERD_ALIGN_BYTES, .depth = 1};
    sherdi_ioq *queue;
    sherdi_mem  mem;

    sherdi_mem_init(&mem);
    if (sherdi_ioq_create(&params, &mem, &queue) != SHERD_OK) {
        return 0;
    }
    sherdi_ioq_destroy(queue);
    return 1;
}

/* Writes the build's CUDA features, then each device, or the reason why no device is available. */
static void put_cuda(json_t *list)
{
    char why[256];
    char text[320];
    int  count = sherdi_backend_device_count("cuda", why, sizeof(why));

#ifdef SHERDI_CUDA_TOOLKIT
    put(list, "cuda", "yes: toolkit " SHERDI_CUDA_TOOLKIT);
#else
    put(list, "cuda", "no: built without its toolkit");
#endif
    for (int i = 0; i < count; i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "cuda device %d", i);
        sherdi_backend_device_describe("cuda", i, text, sizeof(text));
        put(list, name, text);
    }
    if (count == 0) {
        (void)snprintf(text, sizeof(text), "none: %s", why);
        put(list, "cuda devices", text);
    }
}

static void put_build(json_t *list)
{
    const sherdi_team_ops *team = SHERDI_TEAM;

    char transports[160];
#ifdef SHERDI_HAVE_XXHASH
    const int has_xxhash = 1;
#else
    const int has_xxhash = 0;
#endif

    put(list, "compiler", SHERDI_COMPILER);
    put(list, "json", "jansson " JANSSON_VERSION);
    put(list, "hwloc",
        yes_or(team != NULL && team->knows_cores(), "no: cores are taken in the system's order"));
    put(list, "mpi", sherdi_transport_library("mpi"));
    sherdi_transport_names(transports, sizeof(transports));
    put(list, "transports", transports);
    put(list, "io_uring", yes_or(has_uring(), "no: NVMe is read and written by threads"));
    put(list, "xxhash", yes_or(has_xxhash, "no: state cannot rest on NVMe"));
    put_cuda(list);
    put(list, "nccl", sherdi_transport_library("nccl"));
}

static void put_environment(json_t *list)
{
    static const char *const NAMES[] = {
        "SHERD_ISA",           "SHERD_THREADS", "SHERD_CPU_BIND",
        "SHERD_LOG",           "SHERD_DEBUG",   "SHERD_MEMORY_LIMIT",
        "SHERD_RENDEZVOUS",    "SHERD_RANK",    "SHERD_WORLD_SIZE",
        "SHERD_PORT",          "RANK",          "WORLD_SIZE",
        "MASTER_ADDR",         "MASTER_PORT",   "OMPI_COMM_WORLD_SIZE",
        "SLURM_NTASKS",        "SLURM_STEP_ID", "SHERD_IO",
        "SHERD_TRACE",         "SHERD_BACKEND", "SHERD_NCCL_LIBRARY",
        "SHERD_NCCL_OPTIONS",  "SHERD_TIMEOUT", "SHERD_MPI_LIBRARY",
        "SHERD_CUDNN_LIBRARY", "SHERD_LIBRARY", "PMI_SIZE",
        "SHERD_HOST_TIMEOUT",  "SHERD_SSH",     "SHERD_ELASTIC",
        "SHERD_PROCESS",
    };

    put(list, "launcher", sherd_launcher() != NULL ? sherd_launcher() : "none: one rank alone");
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (getenv(NAMES[i]) != NULL) {
            put(list, NAMES[i], getenv(NAMES[i]));
        }
    }
    if (getenv("SHERD_JOB_SECRET") != NULL) {
        put(list, "SHERD_JOB_SECRET", "(set)");
    }
}

static sherd_status lines_write(const json_t *list, sherd_write_fn write, void *ctx)
{
    size_t  i;
    json_t *entry;

    json_array_foreach(list, i, entry)
    {
        char line[512];
        int  len = snprintf(line, sizeof(line), "%s: %.400s\n",
                            json_string_value(json_array_get(entry, 0)),
                            json_string_value(json_array_get(entry, 1)));

        SHERDI_TRY(write(ctx, line, (size_t)len));
    }
    return SHERD_OK;
}

static sherd_status object_write(const json_t *list, sherd_write_fn write, void *ctx)
{
    json_t      *object = json_object();
    size_t       i;
    json_t      *entry;
    char        *text;
    sherd_status status;

    json_array_foreach(list, i, entry)
    {
        (void)json_object_set(object, json_string_value(json_array_get(entry, 0)),
                              json_array_get(entry, 1));
    }
    text = json_dumps(object, JSON_INDENT(1));
    json_decref(object);
    if (text == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the environment as JSON");
    }
    status = write(ctx, text, strlen(text));
    free(text);
    return status == SHERD_OK ? write(ctx, "\n", 1) : status;
}

sherd_status sherd_env_write(sherd_plan_format format, sherd_write_fn write, void *ctx)
{
    int          devices = sherdi_backend_device_count("cuda", NULL, 0);
    json_t      *list;
    sherd_status status;

    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_env_write", "write"));
    SHERDI_TRY(sherdi_api_check_format(format, "sherd_env_write"));
    list = json_array();
    put(list, "sherd", sherd_version());
    put_machine(list);
    put_kernels(list);
    put_updates(list, devices > 0 ? devices : 1);
    put_build(list);
    put_environment(list);
    status =
        format == SHERD_PLAN_JSON ? object_write(list, write, ctx) : lines_write(list, write, ctx);
    json_decref(list);
    return status;
}
