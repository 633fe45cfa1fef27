/* bench-limited: a model that is larger than the memory it may use. One process trains it with all
 * in memory; another, in a memory control group or under RLIMIT_DATA, with state, parameters and
 * activations on NVMe. Every step of both must have the same fingerprint, and gradients are made of
 * the activations. bf16, one micro-batch, one rank, stage 3. A bare loop on the drive, before and
 * after its steps, gives the limit that they are held against. From that and from the parts of the
 * step in memory the step is predicted.
 *
 * The program starts itself once for each. */
#include "bench/limit.h"
#include "bench/options.h"
#include "bench/timing.h"
#include "models/clock.h"
#include "models/process.h"
#include "sherd_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNITS      32
#define MOST_STEPS 64

typedef struct bench_options {
    const char *folder;
    size_t      elems, limit_bytes, buffer_elems, activation_elems;
    int         steps;
    size_t      drive_bytes, drive_rounds;
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

/* Creates an engine and declares the model. */
static void engine_make(run *r, sherd_world *world)
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
}

static void engine_open(run *r, sherd_world *world)
{
    engine_make(r, world);
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

/* The gradient of an element: a weight or a number of the activation, so that a wrong one shows in
 * every later step, and a plain function of step and index. */
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

/* Planned, held, pinned as planned and as held, then the most pages of this process so far, and
 * those that are locked. */
static void memory_send(sherd_engine *engine)
{
    process_memory      system = process_memory_now();
    sherd_memory_report memory;

    sherd_memory_report_init(&memory);
    must(sherd_engine_memory(engine, &memory), "memory");
    (void)printf("%zu %zu %zu %zu %zu %zu\n", memory.total_planned, memory.total_held,
                 memory.pinned_planned, memory.pinned_held, system.peak, system.locked);
}

static int part_run(const bench_options *o)
{
    run          r = {.options = o, .unit_elems = o->elems / UNITS};
    sherd_world *world;

    must(sherd_world_self(&world), "world");
    engine_open(&r, world);
    for (int step = 0; step < o->steps; step++) {
        sherd_step_report report;
        double            start = clock_now_s();

        for (int u = 0; u < UNITS; u++) {
            unit_forward(&r, u, step);
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            unit_backward(&r, u, step);
        }
        sherd_step_report_init(&report);
        must(sherd_step(r.engine, &report), "step");
        (void)printf("%lld %016llx %.3f %.3f %.3f %.3f %.3f %llu %llu %.4f %.4f\n",
                     (long long)report.step, (unsigned long long)report.fingerprint,
                     clock_now_s() - start, report.wait_read_s, report.wait_write_s,
                     report.wait_param_s, report.wait_activation_s,
                     (unsigned long long)report.nvme_read_bytes,
                     (unsigned long long)report.nvme_written_bytes, report.compute_s,
                     report.update_s + report.norm_s);
        (void)fflush(stdout);
    }
    memory_send(r.engine);
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

/* A control group of our own with a limit, in the folder of either version; 0 when there is
 * none. */
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

/* The numbers that a part prints for a step, and at the end for its memory. */
typedef struct part_step {
    unsigned long long fingerprint, read_bytes, written_bytes;
    double             seconds, read_s, write_s, param_s, activation_s; /* of them waits */
    double             compute_s, update_s;
} part_step;

typedef struct part_result {
    part_step steps[MOST_STEPS];
    size_t    planned, held, pinned_planned, pinned_held, peak, locked; /* bytes */
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

static void step_print(const char *part, long long number, const part_step *step)
{
    double moved = (double)step->read_bytes + (double)step->written_bytes;

    (void)printf("%-8s step %lld  %016llx  %7.2f s", part, number, step->fingerprint,
                 step->seconds);
    if (step->read_bytes > 0) {
        (void)printf(
            "  waited %.2f s for reads, %.2f s for writes, %.2f s for parameters, %.2f s for "
            "activations; NVMe %.2f GB read, %.2f GB written, %.2f GB/s",
            step->read_s, step->write_s, step->param_s, step->activation_s,
            (double)step->read_bytes / 1e9, (double)step->written_bytes / 1e9,
            moved / 1e9 / step->seconds);
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

static void part_read(FILE *from, const bench_options *o, const char *part, part_result *out)
{
    char line[512];

    for (int i = 0; i < o->steps && fgets(line, sizeof(line), from) != NULL; i++) {
        part_step *step = &out->steps[i];
        long long  number;

        if (sscanf(line, "%lld %llx %lf %lf %lf %lf %lf %llu %llu %lf %lf", &number,
                   &step->fingerprint, &step->seconds, &step->read_s, &step->write_s,
                   &step->param_s, &step->activation_s, &step->read_bytes, &step->written_bytes,
                   &step->compute_s, &step->update_s) != 11) {
            return;
        }
        step_print(part, number, step);
    }
    if (fgets(line, sizeof(line), from) != NULL) {
        (void)sscanf(line, "%zu %zu %zu %zu %zu %zu", &out->planned, &out->held,
                     &out->pinned_planned, &out->pinned_held, &out->peak, &out->locked);
    }
}

static void part_start(const bench_options *o, const char *part, const char *group,
                       part_result *out)
{
    int   pipes[2];
    int   is_limited = strcmp(part, "nvme") == 0;
    int   status;
    FILE *from;
    pid_t child;

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
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        (void)fprintf(stderr, "bench-limited: the part '%s' ended with %s %d\n", part,
                      WIFSIGNALED(status) ? "signal" : "status",
                      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        exit(1);
    }
}

/* ----------------------------------------------------- limit and prediction -- */

/* The median of a number of all steps but the first, which begins cold. */
static double median_of(const bench_options *o, const part_result *part,
                        double (*number)(const part_step *))
{
    double values[MOST_STEPS];
    size_t count = 0;

    for (int i = o->steps > 1; i < o->steps; i++) {
        values[count++] = number(&part->steps[i]);
    }
    return bench_stat_of(values, count).median;
}

static double seconds_of(const part_step *step)
{
    return step->seconds;
}

static double compute_of(const part_step *step)
{
    return step->compute_s;
}

static double update_of(const part_step *step)
{
    return step->update_s;
}

/* The bytes a second of a copy in memory, as those between an engine's pools on the CPU. */
static double copy_rate(void)
{
    enum { BYTES = 256 << 20 };
    unsigned char *from = malloc(BYTES), *to = malloc(BYTES);
    double         best = 0;

    if (from == NULL || to == NULL) {
        give_up("copying");
    }
    memset(from, 1, BYTES);
    memset(to, 2, BYTES);
    for (int i = 0; i < 3; i++) {
        double start = clock_now_s(), rate;

        memcpy(to, from, BYTES);
        rate = BYTES / (clock_now_s() - start);
        best = rate > best ? rate : best;
    }
    free(from);
    free(to);
    return best;
}

/* An engine of the part on a simulated rank, which plans and holds nothing. */
static sherd_engine *planned_open(const bench_options *o, const char *part, sherd_world *world)
{
    bench_options of = *o;
    run           r  = {.options = &of, .unit_elems = o->elems / UNITS};

    of.part = part;
    engine_make(&r, world);
    return r.engine;
}

/* Predicts the step on NVMe by the drive's rates alone, and the arithmetic and the update as they
 * were in memory. */
static double predict(const bench_options *o, const part_result *memory, const bench_limit *limit)
{
    sherd_prediction     predicted;
    sherd_traffic_report traffic;
    sherd_rates          rates;
    sherd_world         *world;
    sherd_engine        *engine;

    must(sherd_world_simulate(0, 1, &world), "world");
    engine = planned_open(o, "memory", world);
    sherd_traffic_report_init(&traffic);
    must(sherd_engine_traffic(engine, &traffic), "traffic");
    sherd_engine_destroy(engine);
    engine = planned_open(o, "nvme", world);
    sherd_rates_init(&rates);
    rates.nvme_read  = bench_limit_rate(limit, BENCH_BARE_READ);
    rates.nvme_write = bench_limit_rate(limit, BENCH_BARE_WRITE);
    rates.device     = rates.host =
        (double)traffic.update_device_planned / median_of(o, memory, update_of);
    rates.down = rates.up = copy_rate();
    rates.compute_s       = median_of(o, memory, compute_of);
    sherd_prediction_init(&predicted);
    must(sherd_engine_predict(engine, &rates, &predicted), "prediction");
    sherd_engine_destroy(engine);
    sherd_world_destroy(world);
    (void)printf(
        "predicted by the drive's rates, with arithmetic of %.2f s and the update at %.1f GB/s "
        "as in memory: ",
        rates.compute_s, rates.host / 1e9);
    return predicted.step_s;
}

static void limit_print(const bench_options *o, const part_result *memory, const part_result *nvme,
                        const bench_limit *limit)
{
    const part_step *last = &nvme->steps[o->steps - 1];
    double           read = (double)last->read_bytes, written = (double)last->written_bytes;
    double           step_s  = median_of(o, nvme, seconds_of);
    double           both    = bench_limit_rate(limit, BENCH_BARE_BOTH);
    double           drive_s = (read + written) / both;
    double           planned_s;

    (void)printf(
        "the drive alone, requests of 1 MiB, 8 in flight, %zu rounds: reads %.2f GB/s, writes "
        "%.2f GB/s, both in turn %.2f GB/s\n",
        limit->rounds, bench_limit_rate(limit, BENCH_BARE_READ) / 1e9,
        bench_limit_rate(limit, BENCH_BARE_WRITE) / 1e9, both / 1e9);
    (void)printf(
        "a step on NVMe: %.2f s, %.2f GB/s, %.2f of the drive's rate; the drive alone would take "
        "%.2f s, in memory it takes %.2f s: %.2f times the longer\n",
        step_s, (read + written) / 1e9 / step_s, (read + written) / step_s / both, drive_s,
        median_of(o, memory, seconds_of),
        step_s / (drive_s > median_of(o, memory, seconds_of) ? drive_s
                                                             : median_of(o, memory, seconds_of)));
    planned_s = predict(o, memory, limit);
    (void)printf("%.2f s, ratio %.2f\n", planned_s, planned_s / step_s);
}

/* Rounds on the drive alone; without them there is no limit. */
static void limit_measure(const bench_options *o, bench_limit *limit)
{
    char why[256] = "";

    if (limit->bare != NULL && bench_limit_rounds(limit, o->drive_rounds, why, sizeof(why)) != 0) {
        (void)printf("# no limit of the drive: %s\n", why);
        bench_limit_close(limit);
        limit->rounds = 0;
    }
}

static void memory_print(const char *part, const part_result *result)
{
    (void)printf(
        "memory, %s: %.2f GiB planned, %.2f held, pinned %.2f planned, %.2f held; the system "
        "reports %.2f at its most, %.2f locked\n",
        part, (double)result->planned / 0x1p30, (double)result->held / 0x1p30,
        (double)result->pinned_planned / 0x1p30, (double)result->pinned_held / 0x1p30,
        (double)result->peak / 0x1p30, (double)result->locked / 0x1p30);
}

/* Runs the part on NVMe between two halves of the rounds on the drive. */
static void limited_start(const bench_options *o, part_result *out, bench_limit *limit)
{
    char group[256] = "";
    char why[256];
    int  has_group = group_make(o->limit_bytes, group);

    (void)printf(" by %s\n", has_group ? "a control group" : "RLIMIT_DATA");
    (void)fflush(stdout);
    if (bench_limit_open(o->folder, o->drive_bytes, limit, why, sizeof(why)) != 0) {
        (void)printf("# no limit of the drive: %s\n", why);
    }
    limit_measure(o, limit);
    part_start(o, "nvme", has_group ? group : NULL, out);
    limit_measure(o, limit);
    bench_limit_close(limit);
    if (has_group) {
        (void)rmdir(group);
    }
}

static int both_run(const bench_options *o, int argc, char **argv)
{
    part_result memory = {0};
    part_result nvme   = {0};
    bench_limit limit;

    bench_print_machine(argc, argv);
    (void)printf("# state %.2f GiB, parameters %.2f GiB, activations %.2f GiB, limit %.2f GiB",
                 (double)o->elems * 12 / 0x1p30, (double)o->elems * 2 / 0x1p30,
                 (double)o->activation_elems * UNITS * 2 / 0x1p30, (double)o->limit_bytes / 0x1p30);
    limited_start(o, &nvme, &limit);
    part_start(o, "memory", NULL, &memory);
    for (int step = 0; step < o->steps; step++) {
        if (memory.steps[step].fingerprint != nvme.steps[step].fingerprint) {
            (void)printf("step %d DIFFERS\n", step + 1);
            return 1;
        }
    }
    (void)printf("the same fingerprints in %d steps\n", o->steps);
    memory_print("all in memory", &memory);
    memory_print("on NVMe", &nvme);
    if (limit.rounds > 0) {
        limit_print(o, &memory, &nvme, &limit);
    }
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
        {"drive-size", "BYTES", "file of the bare loop on the drive (default 1G)", BENCH_SIZE,
         .value = &o->drive_bytes, .least = 16 << 20},
        {"drive-rounds", "N", "its rounds before the steps on NVMe, and as many behind (default 3)",
         BENCH_SIZE, .value = &o->drive_rounds, .least = 1, .most = BENCH_LIMIT_MOST_ROUNDS / 2},
        {"buffer-size", "N", "elements of a buffer of state (default: the engine's)", BENCH_SIZE,
         .value = &o->buffer_elems, .least = 4096},
        {"part", "NAME", NULL, BENCH_TEXT, .value = &o->part, .choices = "memory|nvme"}};
    const bench_command command = BENCH_COMMAND(
        "limited",
        "Trains one model twice, in memory and with state, parameters and activations on "
        "NVMe in a process whose memory is limited, and compares the fingerprint of "
        "every step. A bare loop on the drive gives the limit, and with the step in memory the "
        "prediction.",
        rows);

    (void)bench_options_read(&command, argc, argv);
}

int main(int argc, char **argv)
{
    bench_options options = {.folder       = ".",
                             .elems        = (size_t)683 << 20,
                             .limit_bytes  = (size_t)4 << 30,
                             .steps        = 3,
                             .drive_bytes  = (size_t)1 << 30,
                             .drive_rounds = 3,
                             .buffer_elems = (size_t)4 << 20};

    options_parse(argc, argv, &options);
    if (options.activation_elems == 0) {
        options.activation_elems = options.elems / UNITS;
    }
    return options.part != NULL ? part_run(&options) : both_run(&options, argc, argv);
}
