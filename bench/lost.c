/* bench-lost: how long a training stands still when a rank is lost. In each trial processes train over
 * shm, and one of them is killed (-9) at a drawn moment of a step. Of the survivors the last counts:
 *
 *   noticed   from the death to the call that returns E_PEER_LOST: a rank computes until its next call
 *   agreed    sherd_world_shrink
 *   planned   in sherd_engine_move: who acts for whom, ends of updates, plans and new memory
 *   moved     the rest of it: values
 *   step      the first new step
 *
 * The limit is 2 s and the bytes that the survivors move, at the rate at which this machine copies to
 * memory that was free for some seconds (a hypervisor may have taken that away, and gives it back
 * slowly), and the ranks together read and write their state on the drive, as measured in the same
 * run. The step itself has no products of matrices: it gathers,
 * reduces and updates. */
#include "bench/drive.h"
#include "bench/options.h"
#include "bench/timing.h"

#include "base/clock.h"
#include "sherd.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNITS      16
#define MOST_RANKS 16
#define STEPS      3 /* before the one in which a rank is killed */

enum { NOTICED, AGREED, PLANNED, MOVED, STOOD, STEP, PARTS };

static const char *const NAMES[] = {"noticed", "agreed", "planned", "moved", "stood still", "step"};

typedef struct bench_options {
    size_t      elems, trials;
    int         ranks, stage;
    const char *redundancy;
    const char *nvme; /* the folder of the state; NULL: it is in memory */
} bench_options;

/* In memory that all processes share. */
typedef struct shared {
    double  delay_s; /* of the death, from the beginning of its step */
    int     victim;
    int64_t died_ns;
    double  step_s; /* of rank 0, before */
    double  parts[MOST_RANKS][PARTS];
    double moved_bytes, held_bytes; /* over the wire, and from memory to memory, of all survivors */
    double nvme_bytes;              /* read and written by all survivors */
    double drive_s[MOST_RANKS];     /* in which the ranks have read and written .. */
    double drive_bytes[MOST_RANKS]; /* .. their state, at the same time */
    int    step_kept;
} shared;

static const bench_options *options;
static shared              *s;

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        (void)fprintf(stderr, "bench-lost: %s: %s\n", what, sherd_last_error());
        _exit(1);
    }
}

static int is_peer(void)
{
    return strcmp(options->redundancy, "peer") == 0;
}

static double now_s(void)
{
    return (double)sherdi_now_ns() * 1e-9;
}

/* ---------------------------------------------------------------------- the engine -- */

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = 0.01f * (float)((first_elem + i) % 199) - 1.0f;
    }
    return SHERD_OK;
}

static void engine_open(sherd_world *world, sherd_engine **engine, sherd_unit *units)
{
    sherd_config *config;
    sherd_param   params[UNITS];
    char          json[1024];
    int           len = snprintf(
                  json, sizeof(json),
                  "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1,"
                            " \"bf16\": {\"enabled\": true}, \"deterministic\": true,"
                            " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},"
                            " \"sherd\": {\"redundancy\": \"%s\"}, \"zero_optimization\": {\"stage\": %d%s%s%s}}",
        options->nvme == NULL ? options->redundancy : "none", options->stage,
        options->nvme == NULL ? ""
                                        : ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"",
        options->nvme == NULL ? "" : options->nvme, options->nvme == NULL ? "" : "\"}");

    must(sherd_config_parse(json, (size_t)len, &config), "configuration");
    must(sherd_engine_create(world, config, engine), "engine");
    sherd_config_destroy(config);
    for (int u = 0; u < UNITS; u++) {
        sherd_unit_params  unit;
        sherd_param_params param;
        char               name[32];

        (void)snprintf(name, sizeof(name), "unit.%d", u);
        sherd_unit_params_init(&unit);
        unit.name = name;
        must(sherd_unit_add(*engine, &unit, &units[u]), "unit");
        sherd_param_params_init(&param);
        param.name     = name;
        param.ndim     = 1;
        param.shape[0] = options->elems / UNITS;
        must(sherd_param_add(*engine, units[u], &param, &params[u]), "parameter");
    }
    must(sherd_engine_seal(*engine), "seal");
    for (int u = 0; u < UNITS; u++) {
        must(sherd_param_fill(*engine, params[u], fill, NULL), "fill");
    }
}

/* A micro-batch whose gradients are zero for most elements; then the step. */
static sherd_status step_make(sherd_engine *engine, const sherd_unit *units)
{
    sherd_share  share;
    sherd_status status;

    sherd_share_init(&share);
    status = sherd_step_share(engine, &share);
    for (int c = 0; c < share.calls && status == SHERD_OK; c++) {
        if (c >= share.count) {
            status = sherd_micro_batch_skip(engine);
        }
        for (int k = 0; k < 2 * UNITS && status == SHERD_OK && c < share.count; k++) {
            sherd_pass pass = k < UNITS ? SHERD_FORWARD : SHERD_BACKWARD;
            sherd_unit unit = units[k < UNITS ? k : 2 * UNITS - 1 - k];

            status = sherd_unit_acquire(engine, unit, pass);
            if (status == SHERD_OK) {
                status = sherd_unit_release(engine, unit, pass);
            }
        }
        if (status == SHERD_OK) {
            status = sherd_step(engine, NULL);
        }
    }
    return status;
}

/* ------------------------------------------------------------------------ a trial -- */

static void *die(void *raw)
{
    (void)usleep((useconds_t)(1e6 * s->delay_s));
    s->died_ns = sherdi_now_ns();
    (void)kill(getpid(), SIGKILL);
    return raw;
}

static void survivor_measure(int rank, sherd_world *world, sherd_engine *engine,
                             const sherd_unit *units)
{
    double            died    = (double)s->died_ns * 1e-9;
    double            noticed = now_s();
    double            agreed, moved, stepped;
    sherd_world      *next;
    sherd_move_report report;

    must(sherd_world_shrink(world, &next), "shrink");
    agreed = now_s();
    must(sherd_engine_move(engine, next), "move");
    moved = now_s();
    sherd_move_report_init(&report);
    must(sherd_move_query(engine, &report), "report");
    must(step_make(engine, units), "first new step");
    stepped                 = now_s();
    s->parts[rank][NOTICED] = noticed - died;
    s->parts[rank][AGREED]  = agreed - noticed;
    s->parts[rank][PLANNED] = report.planned_s;
    s->parts[rank][MOVED]   = moved - agreed - report.planned_s;
    s->parts[rank][STOOD]   = moved - died;
    s->parts[rank][STEP]    = stepped - moved;
    {
        double bytes[3] = {(double)report.received_bytes, (double)report.kept_bytes,
                           (double)(report.nvme_read_bytes + report.nvme_written_bytes)};

        must(sherd_world_sum_f64(next, bytes, 3), "sum");
        s->moved_bytes = bytes[0];
        s->held_bytes  = bytes[1];
        s->nvme_bytes  = bytes[2];
    }
    s->step_kept = (int)report.step;
    sherd_engine_destroy(engine);
    sherd_world_destroy(world);
    sherd_world_destroy(next);
}

static void rank_run(int rank, const char *address)
{
    sherd_unit    units[UNITS];
    sherd_world  *world;
    sherd_engine *engine;
    sherd_status  status = SHERD_OK;
    pthread_t     thread;
    double        start;

    must(sherd_world_create(rank, options->ranks, address, NULL, &world), "world");
    engine_open(world, &engine, units);
    for (int i = 0; i < STEPS; i++) {
        start = now_s();
        must(step_make(engine, units), "step");
        if (rank == 0) {
            s->step_s = now_s() - start;
        }
        must(sherd_world_barrier(world), "barrier");
    }
    if (options->nvme != NULL) {
        must(bench_drive_run(engine, &s->drive_s[rank]), "drive");
        s->drive_bytes[rank] = (double)engine->plan->nvme_bytes[SHERDI_RING_STATE];
        must(step_make(engine, units), "step");
        must(sherd_world_barrier(world), "barrier");
    }
    if (rank == s->victim && pthread_create(&thread, NULL, die, NULL) != 0) {
        _exit(1);
    }
    while (status == SHERD_OK) {
        status = step_make(engine, units);
    }
    survivor_measure(rank, world, engine, units);
}

/* Fills the largest of each part over the survivors. */
static int trial_run(int number, double *parts)
{
    char  address[128];
    pid_t children[MOST_RANKS];
    int   failed = 0;

    (void)snprintf(address, sizeof(address), "unix:///tmp/sherd-bench-lost-%d-%d", (int)getpid(),
                   number);
    memset(s, 0, sizeof(*s));
    s->victim = rand() % options->ranks;
    /* a share of a step, whose time is not known yet: the first trial says it */
    s->delay_s = parts[STEP] * (double)(rand() % 1000) / 1000;
    (void)fflush(NULL);
    for (int r = 0; r < options->ranks; r++) {
        children[r] = fork();
        if (children[r] == 0) {
            rank_run(r, address);
            _exit(0);
        }
    }
    for (int r = 0; r < options->ranks; r++) {
        int raw = -1;

        (void)waitpid(children[r], &raw, 0);
        failed |= r != s->victim && raw != 0;
    }
    for (int p = 0; p < PARTS; p++) {
        parts[p] = 0;
        for (int r = 0; r < options->ranks; r++) {
            parts[p] = s->parts[r][p] > parts[p] ? s->parts[r][p] : parts[p];
        }
    }
    return failed;
}

/* Bytes a second of a copy to memory that is taken from the system as it is written: to as much as a
 * move takes, since some of what is free may have been used just before. */
static double rate_measure(void)
{
    size_t         part  = (size_t)64 << 20;
    size_t         parts = 1 + options->elems * (size_t)(is_peer() ? 28 : 14) / part;
    unsigned char *from  = malloc(part);
    unsigned char *to    = malloc(part * parts);
    double         start;

    if (from == NULL || to == NULL) {
        return 0;
    }
    memset(from, 1, part);
    (void)sleep(5);
    start = now_s();
    for (size_t i = 0; i < parts; i++) {
        memcpy(to + i * part, from, part);
    }
    start = now_s() - start;
    __asm__ volatile("" : : "r"(to) : "memory"); /* it was made */
    free(from);
    free(to);
    return (double)(part * parts) / start;
}

/* Seconds that the drive takes for what the survivors have moved there. */
static double drive_seconds(void)
{
    double bytes = 0, slowest = 0;

    for (int r = 0; r < options->ranks; r++) {
        bytes += s->drive_bytes[r];
        slowest = s->drive_s[r] > slowest ? s->drive_s[r] : slowest;
    }
    if (bytes == 0) {
        return 0;
    }
    printf("# %.1f MB from the drive and to it, at %.2f GB/s\n", 1e-6 * s->nvme_bytes,
           1e-9 * bytes / slowest);
    return s->nvme_bytes / bytes * slowest;
}

int main(int argc, char **argv)
{
    bench_options given = {
        .elems = 27000000, .trials = 10, .ranks = 4, .stage = 3, .redundancy = "host"};
    const bench_option rows[] = {
        {"elems", "N", "elements of the model (default: 27000000)", BENCH_SIZE, &given.elems, 1024,
         1e12, NULL, NULL},
        {"ranks", "N", "processes (default: 4)", BENCH_INT, &given.ranks, 2, MOST_RANKS, NULL,
         NULL},
        {"stage", "N", "of ZeRO, 1 to 3 (default: 3)", BENCH_INT, &given.stage, 1, 3, NULL, NULL},
        {"redundancy", "NAME", "host or peer (default: host)", BENCH_TEXT, &given.redundancy, 0, 0,
         "host|peer", NULL},
        {"nvme", "DIR", "the state rests in files in DIR, which outlive a rank", BENCH_TEXT,
         &given.nvme, 0, 0, NULL, NULL},
        {"trials", "N", "deaths (default: 10)", BENCH_SIZE, &given.trials, 1, 1000, NULL, NULL},
    };
    const bench_command command =
        BENCH_COMMAND("lost", "Measures how long training stands still when a rank is lost.", rows);
    double *values;
    double  parts[PARTS] = {0};
    double  rate, limit;
    int     failed = 0;

    (void)bench_options_read(&command, argc, argv);
    options = &given;
    s       = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    values  = calloc(given.trials * PARTS, sizeof(*values));
    if (s == MAP_FAILED || values == NULL) {
        return 1;
    }
    bench_print_machine(argc, argv);
    rate = rate_measure();
    failed |= trial_run(0, parts); /* discarded: it says how long a step is */
    for (size_t t = 0; t < given.trials; t++) {
        parts[STEP] = s->step_s;
        failed |= trial_run((int)t + 1, parts);
        for (int p = 0; p < PARTS; p++) {
            values[(size_t)p * given.trials + t] = parts[p];
        }
    }
    if (failed) {
        (void)fprintf(stderr, "bench-lost: a rank that should have survived has failed\n");
        return 1;
    }
    limit = 2 + (s->moved_bytes + s->held_bytes) / rate + drive_seconds();
    printf("# %zu elements on %d ranks, stage %d, %s: state %.2f GB; a step before %.3f s\n",
           given.elems, given.ranks, given.stage,
           given.nvme == NULL ? given.redundancy : "state on NVMe", 12e-9 * (double)given.elems,
           s->step_s);
    printf(
        "# bytes of the last move: %.1f MB from rank to rank, %.1f MB from old to new memory, at "
        "%.2f GB/s\n",
        1e-6 * s->moved_bytes, 1e-6 * s->held_bytes, 1e-9 * rate);
    printf("%-12s %10s %10s\n", "part", "median s", "worst s");
    for (int p = 0; p < PARTS; p++) {
        bench_stat stat = bench_stat_of(values + (size_t)p * given.trials, given.trials);

        printf("%-12s %10.3f %10.3f\n", NAMES[p], stat.median, stat.max);
        if (p == STOOD) {
            printf("%-12s %10.3f %10s\n", "limit", limit, "");
            printf("%-12s %10.3f %10.3f\n", "ratio", stat.median / limit, stat.max / limit);
        }
    }
    return 0;
}
