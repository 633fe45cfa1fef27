/* bench-limited: a model that is larger than the memory it may use. One process trains it with all in
 * memory; another, in a memory control group or under RLIMIT_DATA, with state, parameters and activations on NVMe.
 * Every step of both must have the same fingerprint, and gradients are made of the activations. bf16, one micro-batch, one rank, stage 3.
 *
 * The program starts itself once for each. */
#include "bench/options.h"
#include "bench/timing.h"
#include "sherd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNITS      32
#define MOST_STEPS 64

typedef struct bench_options {
    const char *folder;
    size_t      elems, limit_bytes, buffer_elems, activation_elems;
    int         steps;
    const char *part; /* "memory" or "nvme": this process is one of the two */
} bench_options;

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        (void)fprintf(stderr, "bench-limited: %s: %s\n", what, sherd_last_error());
        exit(1);
    }
}

_Noreturn static void give_up(const char *what)
{
    (void)fprintf(stderr, "bench-limited: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* --------------------------------------------------------------- training -- */

typedef struct run {
    const bench_options *options;
    sherd_engine        *engine;
    sherd_unit           units[UNITS];
    sherd_param          params[UNITS];
    size_t               unit_elems;
} run;

static float noise(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (float)(int32_t)(x >> 32) * 0x1p-31f;
}

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    uint64_t base = (uint64_t)(uintptr_t)ctx << 40;

    for (size_t i = 0; i < count_elems; i++) {
        out[i] = 0.05f * noise(base + first_elem + i);
    }
    return SHERD_OK;
}

static void engine_open(run *r, sherd_world *world)
{
    static const char    MEMORY[] = "{\"stage\": 3}";
    const bench_options *o        = r->options;
    sherd_config        *config;
    char                 zero[1024];
    char                 json[2048];
    int                  len;

    (void)snprintf(zero, sizeof(zero),
                   "{\"stage\": 3, \"stage3_prefetch_bucket_size\": %zu,"
                   " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"fast_init\": true, \"buffer_size\": %zu},"
                   " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"max_in_cpu\": 0}}, \"sherd\": {\"activations\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\"}}",
                   r->unit_elems, o->folder, o->buffer_elems, o->folder, o->folder);
    len = snprintf(json, sizeof(json),
                   "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true},"
                   " \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\":"
                   " {\"lr\": 0.001, \"weight_decay\": 0.1}}, \"zero_optimization\": %s}",
                   strcmp(o->part, "nvme") == 0 ? zero : MEMORY);
    must(sherd_config_parse(json, (size_t)len, &config), "configuration");
    must(sherd_engine_create(world, config, &r->engine), "engine");
    sherd_config_destroy(config);
    for (int u = 0; u < UNITS; u++) {
        sherd_activation_params activation;
        sherd_unit_params       unit;
        sherd_param_params      param;
        char                    name[32];

        (void)snprintf(name, sizeof(name), "unit.%d", u);
        sherd_unit_params_init(&unit);
        unit.name = name;
        must(sherd_unit_add(r->engine, &unit, &r->units[u]), "unit");
        sherd_param_params_init(&param);
        param.name     = name;
        param.ndim     = 1;
        param.shape[0] = r->unit_elems;
        must(sherd_param_add(r->engine, r->units[u], &param, &r->params[u]), "parameter");
        sherd_activation_params_init(&activation);
        activation.len_bytes = o->activation_elems * sizeof(uint16_t);
        must(sherd_activation_add(r->engine, r->units[u], &activation), "activation");
    }
    must(sherd_engine_seal(r->engine), "seal");
    for (int u = 0; u < UNITS; u++) {
        must(sherd_param_fill(r->engine, r->params[u], fill, (void *)(uintptr_t)u), "fill");
    }
}

/* A plain function of step and index, of the unit's own weights. */
static void unit_forward(run *r, int u, int step)
{
    const uint16_t *data;
    void           *memory;

    must(sherd_unit_acquire(r->engine, r->units[u], SHERD_FORWARD), "acquire");
    must(sherd_activation_put(r->engine, r->units[u], &memory), "put");
    data = sherd_param_data(r->engine, r->params[u]);
    for (size_t i = 0; i < r->options->activation_elems; i++) {
        ((uint16_t *)memory)[i] = data[(i * 3 + (size_t)step) % r->unit_elems];
    }
    must(sherd_unit_release(r->engine, r->units[u], SHERD_FORWARD), "release");
}

/* The gradient of an element: a weight or a number of the activation, so that a wrong one shows in every later step, and a
 * plain function of step and index. */
static void unit_backward(run *r, int u, int step)
{
    const uint16_t *data;
    void           *memory;
    uint16_t       *grad;

    must(sherd_unit_acquire(r->engine, r->units[u], SHERD_BACKWARD), "acquire");
    must(sherd_activation_get(r->engine, r->units[u], &memory), "get");
    data = sherd_param_data(r->engine, r->params[u]);
    grad = sherd_param_grad(r->engine, r->params[u]);
    for (size_t i = 0; i < r->unit_elems; i++) {
        grad[i] = i % 2 == 0 ? data[(i * 7 + (size_t)step) % r->unit_elems]
                             : ((const uint16_t *)memory)[i % r->options->activation_elems];
    }
    must(sherd_unit_release(r->engine, r->units[u], SHERD_BACKWARD), "release");
}

static double now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int part_run(const bench_options *o)
{
    run          r = {.options = o, .unit_elems = o->elems / UNITS};
    sherd_world *world;

    must(sherd_world_self(&world), "world");
    engine_open(&r, world);
    for (int step = 0; step < o->steps; step++) {
        sherd_step_report report;
        double            start = now_s();

        for (int u = 0; u < UNITS; u++) {
            unit_forward(&r, u, step);
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            unit_backward(&r, u, step);
        }
        sherd_step_report_init(&report);
        must(sherd_step(r.engine, &report), "step");
        (void)printf("%lld %016llx %.3f %.3f %.3f %.3f %.3f %llu %llu\n", (long long)report.step,
                     (unsigned long long)report.fingerprint, now_s() - start, report.wait_read_s,
                     report.wait_write_s, report.wait_param_s, report.wait_activation_s,
                     (unsigned long long)report.nvme_read_bytes,
                     (unsigned long long)report.nvme_written_bytes);
        (void)fflush(stdout);
    }
    sherd_engine_destroy(r.engine);
    sherd_world_destroy(world);
    return 0;
}

/* ------------------------------------------------------------ the two parts -- */

/* Writes a text to a file of a control group; 0 on success. */
static int group_write(const char *folder, const char *file, const char *text)
{
    char path[512];
    int  fd;
    int  is_written;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    (void)close(fd);
    return is_written ? 0 : -1;
}

/* A control group of our own with a limit, in the folder of either version; 0 when there is none. */
static int group_make(size_t limit_bytes, char folder[256])
{
    static const char *const GROUPS[][2] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                            {"/sys/fs/cgroup", "memory.max"}};
    char                     limit[32];

    (void)snprintf(limit, sizeof(limit), "%zu", limit_bytes);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(folder, 256, "%s/sherd-%d", GROUPS[i][0], (int)getpid());
        if (mkdir(folder, 0700) == 0) {
            if (group_write(folder, GROUPS[i][1], limit) == 0) {
                return 1;
            }
            (void)rmdir(folder);
        }
    }
    return 0;
}

typedef struct part_result {
    unsigned long long fingerprints[MOST_STEPS];
    double             seconds;
    double             peak_bytes;
} part_result;

static void limit_apply(const bench_options *o, const char *group)
{
    struct rlimit limit = {o->limit_bytes, o->limit_bytes};
    char          pid[32];

    if (group != NULL) {
        (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
        if (group_write(group, "cgroup.procs", pid) != 0) {
            give_up("joining the control group");
        }
    } else if (setrlimit(RLIMIT_DATA, &limit) != 0) {
        give_up("setting RLIMIT_DATA");
    }
}

static void part_exec(const bench_options *o, const char *part)
{
    char        elems[32];
    char        steps[32];
    char        buffer[32];
    char        activation[32];
    const char *args[] = {"bench-limited", "--part",       part,       "--dir", o->folder,
                          "--elems",       elems,          "--steps",  steps,   "--buffer-size",
                          buffer,          "--activation", activation, NULL};

    (void)snprintf(elems, sizeof(elems), "%zu", o->elems);
    (void)snprintf(steps, sizeof(steps), "%d", o->steps);
    (void)snprintf(buffer, sizeof(buffer), "%zu", o->buffer_elems);
    (void)snprintf(activation, sizeof(activation), "%zu", o->activation_elems);
    (void)execv("/proc/self/exe", (char *const *)(uintptr_t)args);
    give_up("starting a part");
}

static void part_read(FILE *from, const bench_options *o, const char *part, part_result *out)
{
    char line[256];

    for (int step = 0; step < o->steps && fgets(line, sizeof(line), from) != NULL; step++) {
        double             seconds, read_s, write_s, param_s, activation_s;
        unsigned long long read_bytes, written_bytes;
        long long          number;

        if (sscanf(line, "%lld %llx %lf %lf %lf %lf %lf %llu %llu", &number,
                   &out->fingerprints[step], &seconds, &read_s, &write_s, &param_s, &activation_s,
                   &read_bytes, &written_bytes) != 9) {
            break;
        }
        (void)printf("%-8s step %lld  %016llx  %7.2f s", part, number, out->fingerprints[step],
                     seconds);
        if (read_bytes > 0) {
            (void)printf(
                "  waited %.2f s for reads, %.2f s for writes, %.2f s for parameters, %.2f s for "
                "activations; NVMe %.2f GB read, %.2f GB written, %.2f GB/s",
                read_s, write_s, param_s, activation_s, (double)read_bytes / 1e9,
                (double)written_bytes / 1e9, (double)(read_bytes + written_bytes) / 1e9 / seconds);
        }
        (void)printf("\n");
        (void)fflush(stdout);
        out->seconds = seconds;
    }
}

static void part_start(const bench_options *o, const char *part, const char *group,
                       part_result *out)
{
    int           pipes[2];
    int           is_limited = strcmp(part, "nvme") == 0;
    int           status;
    struct rusage usage;
    FILE         *from;
    pid_t         child;

    if (pipe2(pipes, O_CLOEXEC) != 0) {
        give_up("starting a part");
    }
    child = fork();
    if (child < 0) {
        give_up("starting a part");
    }
    if (child == 0) {
        (void)dup2(pipes[1], STDOUT_FILENO);
        if (is_limited) {
            limit_apply(o, group);
        }
        part_exec(o, part);
    }
    (void)close(pipes[1]);
    from = fdopen(pipes[0], "r");
    if (from == NULL) {
        give_up("reading from a part");
    }
    part_read(from, o, part, out);
    (void)fclose(from);
    if (wait4(child, &status, 0, &usage) != child || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 0) {
        (void)fprintf(stderr, "bench-limited: the part '%s' ended with %s %d\n", part,
                      WIFSIGNALED(status) ? "signal" : "status",
                      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        exit(1);
    }
    out->peak_bytes = (double)usage.ru_maxrss * 1024;
}

static int both_run(const bench_options *o, int argc, char **argv)
{
    part_result memory     = {0};
    part_result nvme       = {0};
    char        group[256] = "";
    int         has_group;

    bench_print_machine(argc, argv);
    (void)printf("# state %.2f GiB, parameters %.2f GiB, activations %.2f GiB, limit %.2f GiB",
                 (double)o->elems * 12 / 0x1p30, (double)o->elems * 2 / 0x1p30,
                 (double)o->activation_elems * UNITS * 2 / 0x1p30, (double)o->limit_bytes / 0x1p30);
    has_group = group_make(o->limit_bytes, group);
    (void)printf(" by %s\n", has_group ? "a control group" : "RLIMIT_DATA");
    (void)fflush(stdout);
    part_start(o, "nvme", has_group ? group : NULL, &nvme);
    if (has_group) {
        (void)rmdir(group);
    }
    part_start(o, "memory", NULL, &memory);
    for (int step = 0; step < o->steps; step++) {
        if (memory.fingerprints[step] != nvme.fingerprints[step]) {
            (void)printf("step %d DIFFERS\n", step + 1);
            return 1;
        }
    }
    (void)printf(
        "the same fingerprints in %d steps; peak %.2f GiB in memory, %.2f GiB on NVMe; last "
        "step %.2f s and %.2f s\n",
        o->steps, memory.peak_bytes / 0x1p30, nvme.peak_bytes / 0x1p30, memory.seconds,
        nvme.seconds);
    return 0;
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"dir", "DIR", "folder on the drive (default: the current one)", BENCH_TEXT,
         .value = &o->folder},
        {"elems", "N", "parameters; their state is 12 bytes each (default 683M: 8 GiB)", BENCH_SIZE,
         .value = &o->elems, .least = UNITS},
        {"activation", "N",
         "numbers of 2 bytes that each of the 32 units leaves for backward (default: as many as it "
         "has parameters)",
         BENCH_SIZE, .value = &o->activation_elems, .least = 1},
        {"limit", "BYTES", "memory of the second process (default 4G)", BENCH_SIZE,
         .value = &o->limit_bytes, .least = 1},
        {"steps", "N", "optimizer steps (default 3)", BENCH_INT, .value = &o->steps, .least = 1,
         .most = MOST_STEPS},
        {"buffer-size", "N", "elements of a buffer of state (default: the engine's)", BENCH_SIZE,
         .value = &o->buffer_elems, .least = 4096},
        {"part", "NAME", NULL, BENCH_TEXT, .value = &o->part, .choices = "memory|nvme"}};
    const bench_command command = BENCH_COMMAND(
        "limited",
        "Trains one model twice, in memory and with state, parameters and activations on "
        "NVMe in a process whose memory is limited, and compares the fingerprint of "
        "every step.",
        rows);

    (void)bench_options_read(&command, argc, argv);
}

int main(int argc, char **argv)
{
    bench_options options = {.folder       = ".",
                             .elems        = (size_t)683 << 20,
                             .limit_bytes  = (size_t)4 << 30,
                             .steps        = 3,
                             .buffer_elems = (size_t)4 << 20};

    options_parse(argc, argv, &options);
    if (options.activation_elems == 0) {
        options.activation_elems = options.elems / UNITS;
    }
    return options.part != NULL ? part_run(&options) : both_run(&options, argc, argv);
}
