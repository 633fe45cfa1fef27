/* bench-checkpoint: saving and loading against what memory and the drive allow. In every round, one
 * after the other:
 *
 *   copy              the same bytes from memory to memory, by the backend's own copy
 *   asynchronous      sherd_checkpoint_save with is_async: the time for which the trainer is
 *                     blocked
 *   bare write        the same bytes to a file of the same folder by the queue of requests alone:
 *                     room reserved, synced
 *   save              sherd_checkpoint_save, blocking
 *   bare read         the same bytes from that file by the queue alone
 *   load              sherd_checkpoint_load
 *   save, linked      sherd_checkpoint_save of an engine whose state is on the drive: links
 *
 * and torch.save, torch.distributed.checkpoint where --peers names a Python that has them. A ratio
 * is taken inside each round; the median of the rounds is shown. */
#include "bench/options.h"
#include "bench/peers.h"
#include "bench/timing.h"

#include "base/clock.h"
#include "engine/checkpoint/folder.h"
#include "engine/run/engine_impl.h"
#include "offload/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ROW_COPY,
    ROW_ASYNC,
    ROW_BARE_WRITE,
    ROW_SAVE,
    ROW_BARE_READ,
    ROW_LOAD,
    ROW_KEPT,
    OWN_ROWS,
    MOST_ROWS = OWN_ROWS + BENCH_MAX_PEERS
};

#define UNITS         16
#define REQUEST_BYTES ((size_t)1 << 20)
#define DEPTH         16
#define BARE_NAME     "bare"

typedef struct bench_options {
    const char *dir, *json, *python;
    size_t      elems, rounds;
} bench_options;

typedef struct bench_engine {
    sherd_engine *engine;
    sherd_unit    units[UNITS];
    char          folder[4096];
} bench_engine;

typedef struct bench {
    const bench_options    *options;
    sherd_world            *world;
    bench_engine            memory, drive;
    sherd_checkpoint_report reports[OWN_ROWS];
    bench_peers             peers;
    char                    dir[3072];
    unsigned char          *from, *to; /* of the copy and of bare transfers */
    size_t                  bytes;     /* of the state */
    /* of staging, in addition to the memory that is held all the time */
    size_t     save_peak, load_peak;
    size_t     control_peak; /* of tables, likewise */
    sherdi_mem mem;
} bench;

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        (void)fprintf(stderr, "bench-checkpoint: %s: %s\n", what, sherd_last_error());
        exit(1);
    }
}

/* -------------------------------------------------------------------- engines -- */

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = 0.01f * (float)((first_elem + i) % 199) - 1.0f;
    }
    return SHERD_OK;
}

static sherd_config *config_make(const bench *b, const char *device)
{
    sherd_config *config;
    char          json[4096];
    int           is_drive = strcmp(device, "nvme") == 0;
    int           len =
        snprintf(json, sizeof(json),
                 "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1,"
                 " \"bf16\": {\"enabled\": true},"
                 " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},"
                 " \"checkpoint\": {\"async\": %s},"
                 " \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"%s\""
                 "%s%s%s}}}",
                 is_drive ? "false" : "true", device, is_drive ? ", \"nvme_path\": \"" : "",
                 is_drive ? b->dir : "", is_drive ? "\"" : "");

    must(sherd_config_parse(json, (size_t)len, &config), "configuration");
    return config;
}

static void engine_open(bench *b, const char *device, bench_engine *out)
{
    sherd_config *config = config_make(b, device);
    sherd_param   params[UNITS];

    must(sherd_engine_create(b->world, config, &out->engine), "engine");
    sherd_config_destroy(config);
    (void)snprintf(out->folder, sizeof(out->folder), "%s/of-%s", b->dir, device);
    for (int u = 0; u < UNITS; u++) {
        sherd_unit_params  unit;
        sherd_param_params param;
        char               name[32];

        (void)snprintf(name, sizeof(name), "unit.%d", u);
        sherd_unit_params_init(&unit);
        unit.name = name;
        must(sherd_unit_add(out->engine, &unit, &out->units[u]), "unit");
        sherd_param_params_init(&param);
        param.name     = name;
        param.ndim     = 1;
        param.shape[0] = b->options->elems / UNITS;
        must(sherd_param_add(out->engine, out->units[u], &param, &params[u]), "parameter");
    }
    must(sherd_engine_seal(out->engine), "seal");
    for (int u = 0; u < UNITS; u++) {
        must(sherd_param_fill(out->engine, params[u], fill, NULL), "fill");
    }
}

/* A micro-batch whose gradients are zero; then the step. */
static void step_run(bench_engine *e)
{
    for (int u = UNITS - 1; u >= 0; u--) {
        must(sherd_unit_acquire(e->engine, e->units[u], SHERD_BACKWARD), "acquire");
        must(sherd_unit_release(e->engine, e->units[u], SHERD_BACKWARD), "release");
    }
    must(sherd_step(e->engine, NULL), "step");
}

/* ----------------------------------------------------------------------- rows -- */

/* One transfer over all of the bytes: the queue cuts it into requests. */
static double bare_run(bench *b, int is_write)
{
    const char        *folder = b->dir;
    sherdi_ioq_params  params = {.request_bytes = REQUEST_BYTES, .depth = DEPTH};
    sherdi_file_params about  = {.folders        = &folder,
                                 .num_folders    = 1,
                                 .name           = BARE_NAME,
                                 .capacity_bytes = b->bytes,
                                 .stripe_bytes   = SHERD_ALIGN_BYTES,
                                 .flags          = is_write ? SHERDI_FILE_CREATE | SHERDI_FILE_PLAIN
                                                            : SHERDI_FILE_READ};
    sherdi_io          io     = {.is_write = is_write, .memory = b->to, .len_bytes = b->bytes};
    sherdi_ioq        *queue;
    char               path[4096];
    int64_t            start;

    (void)snprintf(path, sizeof(path), "%s/%s", b->dir, BARE_NAME);
    if (is_write) {
        (void)unlink(path);
    }
    start = sherdi_now_ns();
    must(sherdi_ioq_create(&params, &b->mem, &queue), "queue");
    must(sherdi_file_open(queue, &about, &io.file), "bare file");
    sherdi_io_start(queue, &io);
    must(sherdi_io_wait(queue, &io), "bare transfer");
    must(is_write ? sherdi_file_sync(io.file) : SHERD_OK, "bare sync");
    sherdi_file_close(io.file, 0);
    sherdi_ioq_destroy(queue);
    return (double)(sherdi_now_ns() - start) / 1e9;
}

static double copy_run(bench *b)
{
    const sherdi_backend *host  = b->memory.engine->host;
    int64_t               start = sherdi_now_ns();

    host->kernels->copy(host, b->to, b->from, b->bytes);
    return (double)(sherdi_now_ns() - start) / 1e9;
}

static void report_take(bench *b, int row, bench_engine *e)
{
    sherd_checkpoint_report_init(&b->reports[row]);
    must(sherd_checkpoint_wait(e->engine, &b->reports[row]), "wait");
}

static double save_run(bench *b, int row, bench_engine *e)
{
    const char             *tag = row == ROW_ASYNC ? "asynchronous" : "blocking";
    sherd_save_params       params;
    sherdi_checkpoint_found before;
    int64_t                 start;
    double                  seconds;

    sherd_save_params_init(&params);
    params.is_async = row == ROW_ASYNC;
    if (sherdi_checkpoint_look(e->folder, tag, &before)) {
        must(sherdi_checkpoint_remove(e->folder, tag), "removal");
    }
    start = sherdi_now_ns();
    must(sherd_checkpoint_save(e->engine, e->folder, tag, &params), "save");
    seconds = (double)(sherdi_now_ns() - start) / 1e9;
    report_take(b, row, e);
    return seconds;
}

static double load_run(bench *b)
{
    int64_t start = sherdi_now_ns();
    double  seconds;

    must(sherd_checkpoint_load(b->memory.engine, b->memory.folder, NULL, NULL), "load");
    seconds = (double)(sherdi_now_ns() - start) / 1e9;
    report_take(b, ROW_LOAD, &b->memory);
    return seconds;
}

/* A step before each, so that every save has a generation of its own. */
static double kept_run(bench *b)
{
    step_run(&b->drive);
    return save_run(b, ROW_KEPT, &b->drive);
}

static double row_run(bench *b, size_t row)
{
    switch (row) {
    case ROW_COPY:
        return copy_run(b);
    case ROW_BARE_WRITE:
    case ROW_BARE_READ:
        return bare_run(b, row == ROW_BARE_WRITE);
    case ROW_ASYNC:
    case ROW_SAVE:
        return save_run(b, (int)row, &b->memory);
    case ROW_LOAD:
        return load_run(b);
    case ROW_KEPT:
        return kept_run(b);
    default:
        return bench_peer_seconds(&b->peers, row - OWN_ROWS, 1);
    }
}

static void row_time(void *ctx, size_t row, double *seconds)
{
    *seconds = row_run(ctx, row);
}

static double *rounds_run(bench *b)
{
    size_t  rows    = OWN_ROWS + b->peers.count;
    double *seconds = calloc(b->options->rounds * rows, sizeof(*seconds));

    must(seconds == NULL ? SHERD_E_NOMEM : SHERD_OK, "rounds");
    for (size_t round = 0; round <= b->options->rounds; round++) { /* one to warm up */
        for (size_t row = 0; row < rows; row++) {
            double taken;

            row_time(b, row, &taken);
            if (round > 0) {
                seconds[(round - 1) * rows + row] = taken;
            }
        }
        (void)fprintf(stderr, "\rround %zu of %zu", round, b->options->rounds);
    }
    (void)fprintf(stderr, "\n");
    return seconds;
}

/* --------------------------------------------------------------------- memory -- */

static size_t peak_of(const bench *b, sherdi_mem_purpose purpose)
{
    return atomic_load(&b->memory.engine->mem.peak_bytes[purpose]);
}

/* A first save and load, which are not timed: their memory, by the engine's account. */
static void memory_measure(bench *b)
{
    const sherdi_mem *mem = &b->memory.engine->mem;
    size_t            held, tables;

    step_run(&b->memory);
    held   = sherdi_mem_held(mem, SHERDI_MEM_HOST_STAGING);
    tables = sherdi_mem_held(mem, SHERDI_MEM_CONTROL);
    (void)save_run(b, ROW_SAVE, &b->memory);
    b->save_peak = peak_of(b, SHERDI_MEM_HOST_STAGING) - held;
    (void)load_run(b);
    b->load_peak    = peak_of(b, SHERDI_MEM_HOST_STAGING) - held;
    b->control_peak = peak_of(b, SHERDI_MEM_CONTROL) - tables;
}

/* -------------------------------------------------------------------- results -- */

static const char *row_name(const bench *b, size_t row)
{
    static const char *const NAMES[OWN_ROWS] = {"copy",      "asynchronous", "bare write",  "save",
                                                "bare read", "load",         "save, linked"};

    return row < OWN_ROWS ? NAMES[row] : b->peers.names[row - OWN_ROWS];
}

/* Of one row's seconds (over < 0), or of `row` over `over`, round by round. */
static bench_stat row_stat(const bench *b, const double *seconds, size_t row, int over)
{
    size_t     rows   = OWN_ROWS + b->peers.count;
    double    *values = calloc(b->options->rounds, sizeof(*values));
    bench_stat stat;

    must(values == NULL ? SHERD_E_NOMEM : SHERD_OK, "statistics");
    for (size_t r = 0; r < b->options->rounds; r++) {
        values[r] = seconds[r * rows + row] / (over < 0 ? 1 : seconds[r * rows + (size_t)over]);
    }
    stat = bench_stat_of(values, b->options->rounds);
    free(values);
    return stat;
}

typedef struct line {
    const char *name, *key;
    int         row, over;
    const char *bound;
} line;

static const line LINES[] = {
    {"asynchronous / copy", "async_to_copy", ROW_ASYNC, ROW_COPY, "at most 1.2"},
    {"bare write / save (rates)", "save_to_bare", ROW_BARE_WRITE, ROW_SAVE, "at least 0.9"},
    {"bare read / load (rates)", "load_to_bare", ROW_BARE_READ, ROW_LOAD, "at least 0.9"},
};
#define NUM_LINES (sizeof(LINES) / sizeof(LINES[0]))

static double kept_share(const bench *b)
{
    return (double)b->reports[ROW_KEPT].bytes / (double)b->reports[ROW_SAVE].bytes;
}

static size_t slots_bytes(const bench *b)
{
    const sherdi_plan *plan = b->memory.engine->plan;

    return plan->packing.checkpoint_slots * plan->packing.checkpoint_slot_bytes;
}

static void memory_print(const bench *b)
{
    const sherdi_plan *plan = b->memory.engine->plan;

    (void)printf(
        "memory of a save %.2f MiB (slots: %.2f), of a load %.2f (slots and two: %.2f), tables "
        "%.2f; a snapshot %.2f (state %.2f)\n",
        (double)b->save_peak / 0x1p20, (double)slots_bytes(b) / 0x1p20,
        (double)b->load_peak / 0x1p20,
        (double)(slots_bytes(b) + 2 * plan->packing.checkpoint_slot_bytes) / 0x1p20,
        (double)b->control_peak / 0x1p20,
        (double)plan->packing.buffers[SHERDI_BUFFER_SNAPSHOT].bytes / 0x1p20,
        (double)b->bytes / 0x1p20);
}

static void results_print(const bench *b, const double *seconds)
{
    (void)printf("%-20s %10s %10s %10s %8s\n", "row", "median s", "min", "max", "GB/s");
    for (size_t row = 0; row < OWN_ROWS + b->peers.count; row++) {
        bench_stat stat = row_stat(b, seconds, row, -1);

        (void)printf("%-20s %10.4f %10.4f %10.4f %8.2f\n", row_name(b, row), stat.median, stat.min,
                     stat.max, row == ROW_KEPT ? 0.0 : (double)b->bytes / stat.median / 1e9);
    }
    for (size_t i = 0; i < NUM_LINES; i++) {
        bench_stat stat = row_stat(b, seconds, (size_t)LINES[i].row, LINES[i].over);

        (void)printf("%-28s %.3f (%.3f to %.3f), wanted %s\n", LINES[i].name, stat.median, stat.min,
                     stat.max, LINES[i].bound);
    }
    (void)printf("%-28s %.5f, wanted below 0.05\n", "bytes written, state linked", kept_share(b));
    memory_print(b);
}

static void results_json(const bench *b, const double *seconds, int argc, char **argv)
{
    FILE *file = freopen(b->options->json, "w", stdout);

    must(file == NULL ? SHERD_E_IO : SHERD_OK, b->options->json);
    (void)printf("{");
    bench_print_machine_json(argc, argv);
    (void)printf(", \"bytes\": %zu, \"rows\": {", b->bytes);
    for (size_t row = 0; row < OWN_ROWS + b->peers.count; row++) {
        bench_stat stat = row_stat(b, seconds, row, -1);

        (void)printf("%s\"%s\": {\"median_s\": %.6f, \"min_s\": %.6f, \"max_s\": %.6f}",
                     row == 0 ? "" : ", ", row_name(b, row), stat.median, stat.min, stat.max);
    }
    (void)printf("}");
    for (size_t i = 0; i < NUM_LINES; i++) {
        (void)printf(", \"%s\": %.4f", LINES[i].key,
                     row_stat(b, seconds, (size_t)LINES[i].row, LINES[i].over).median);
    }
    (void)printf(", \"kept_share\": %.6f, \"save_peak_bytes\": %zu, \"load_peak_bytes\": %zu, "
                 "\"slots_bytes\": %zu}\n",
                 kept_share(b), b->save_peak, b->load_peak, slots_bytes(b));
}

/* -------------------------------------------------------------------- options -- */

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"dir", "DIR", "folder on the drive (default: the current one)", BENCH_TEXT,
         .value = &o->dir},
        {"elems", "N", "parameters, of 12 bytes of state each (default 24M)", BENCH_SIZE,
         .value = &o->elems, .least = UNITS * 1024.0},
        {"rounds", "N", "rounds (default 7)", BENCH_SIZE, .value = &o->rounds, .least = 1},
        {"peers", "PYTHON",
         "also time torch.save and torch.distributed.checkpoint with this interpreter", BENCH_TEXT,
         .value = &o->python},
        {"json", "FILE", "also write the results as JSON", BENCH_TEXT, .value = &o->json}};
    const bench_command command =
        BENCH_COMMAND("checkpoint",
                      "Times saving and loading of checkpoints, a copy in memory, and "
                      "the queue of requests alone, interleaved in one run.",
                      rows);

    (void)bench_options_read(&command, argc, argv);
}

static void bench_open(bench *b)
{
    const bench_options *o = b->options;

    (void)snprintf(b->dir, sizeof(b->dir), "%s/bench-checkpoint-XXXXXX", o->dir);
    must(mkdtemp(b->dir) == NULL ? sherdi_fail(SHERD_E_IO, "no folder %s", b->dir) : SHERD_OK,
         "folder");
    sherdi_mem_init(&b->mem);
    must(sherd_world_self(&b->world), "world");
    engine_open(b, "cpu", &b->memory);
    engine_open(b, "nvme", &b->drive);
    b->bytes = o->elems / UNITS * UNITS * 3 * sizeof(float);
    b->bytes -= b->bytes % SHERD_ALIGN_BYTES;
    b->from = sherdi_alloc(&b->mem, SHERDI_MEM_STAGING, b->bytes);
    b->to   = sherdi_alloc(&b->mem, SHERDI_MEM_STAGING, b->bytes);
    must(b->from == NULL || b->to == NULL ? SHERD_E_NOMEM : SHERD_OK, "memory");
    memset(b->from, 1, b->bytes);
    if (o->python != NULL) {
        (void)setenv("TMPDIR", b->dir, 1); /* where the script puts its files */
        bench_peers_start(&b->peers, o->python, BENCH_PEERS);
        bench_peers_setup(&b->peers, "%zu %d", o->elems, b->memory.engine->host->threads);
    }
}

static void bench_close(bench *b)
{
    char command[4096];

    sherd_engine_destroy(b->memory.engine);
    sherd_engine_destroy(b->drive.engine);
    sherd_world_destroy(b->world);
    sherdi_free(b->from);
    sherdi_free(b->to);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", b->dir);
    if (system(command) != 0) {
        (void)fprintf(stderr, "bench-checkpoint: %s stays\n", b->dir);
    }
}

int main(int argc, char **argv)
{
    bench_options options = {.dir = ".", .elems = (size_t)24 << 20, .rounds = 7};
    bench         b       = {.options = &options};
    double       *seconds;

    options_parse(argc, argv, &options);
    bench_open(&b);
    bench_print_machine(argc, argv);
    memory_measure(&b);
    seconds = rounds_run(&b);
    results_print(&b, seconds);
    if (options.json != NULL) {
        results_json(&b, seconds, argc, argv);
    }
    free(seconds);
    bench_close(&b);
    return 0;
}
