/* bench-offload: the optimizer's step with its state on NVMe, against what the drive and the update
 * allow. In every round, one after the other:
 *
 *   I/O alone      the same blocks through the same slots, the same flips, the same commit; no update
 *   step           sherd_step: norm, update, commit
 *   update alone   sherd_step of an engine whose state is in host memory
 *   serial step    sherd_step without reading ahead and writing behind
 *   beside bf16    sherd_step with masters beside their bf16 parameters (--beside): 10 bytes of an element read
 *                  instead of 12
 *
 * and in every other round the other way about, so that no row always follows the same one. A ratio is taken inside
 * each round; the median of the rounds is shown. The window of a step is closed
 * by hand, so that no read has begun in backward. */
#include "bench/plot.h"

#include "bench/options.h"
#include "bench/timing.h"
#include "engine/run/engine_impl.h"
#include "engine/run/fill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROW_IO, ROW_STEP, ROW_UPDATE, ROW_SERIAL, ROW_BESIDE, NUM_ROWS };

static const char *const ROW_NAMES[NUM_ROWS] = {"I/O alone", "step", "update alone", "serial step",
                                                "beside bf16"};

#define UNITS 16

typedef struct bench_options {
    const char *folder;
    const char *json;
    const char *plot;
    size_t      elems, rounds, buffer_elems;
    int         buffers, depth;
    size_t      request_bytes;
    const char *engine;
    const char *dtype;
    int         is_durable, has_beside;
} bench_options;

typedef struct bench_engine {
    sherd_engine *engine;
    sherd_unit    units[UNITS];
} bench_engine;

typedef struct bench {
    const bench_options *options;
    sherd_world         *world;
    bench_engine         piped, serial, memory, beside;
    sherd_step_report    reports[NUM_ROWS];
} bench;

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        (void)fprintf(stderr, "bench-offload: %s: %s\n", what, sherd_last_error());
        exit(1);
    }
}

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = 0.01f * (float)((first_elem + i) % 199) - 1.0f;
    }
    return SHERD_OK;
}

static void number_set(sherd_config *config, const char *key, size_t value)
{
    char text[32];

    if (value > 0) {
        (void)snprintf(text, sizeof(text), "%zu", value);
        must(sherd_config_set(config, key, text), key);
    }
}

static sherd_config *config_make(const bench_options *o, const char *device, int is_serial,
                                 const char *master)
{
    sherd_config *config;
    char          json[2048];
    int           len = snprintf(
                  json, sizeof(json),
                  "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2,"
                            " \"bf16\": {\"enabled\": %s}, \"aio\": {\"engine\": \"%s\"},"
                            " \"sherd\": {\"master_encoding\": \"%s\"},"
                            " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},"
                            " \"data_types\": {\"grad_accum_dtype\": \"%s\"},"
                            " \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"%s\","
                            " \"nvme_path\": \"%s\", \"fast_init\": true, \"durable\": %s, \"pipeline_read\": %s,"
                            " \"pipeline_write\": %s}}}",
        strcmp(o->dtype, "bf16") == 0 ? "true" : "false", o->engine, master, o->dtype, device,
                  o->folder, o->is_durable ? "true" : "false", is_serial ? "false" : "true",
        is_serial ? "false" : "true");

    must(sherd_config_parse(json, (size_t)len, &config), "configuration");
    number_set(config, "!zero_optimization.offload_optimizer.buffer_size", o->buffer_elems);
    number_set(config, "!zero_optimization.offload_optimizer.buffer_count", (size_t)o->buffers);
    number_set(config, "!aio.block_size", o->request_bytes);
    number_set(config, "!aio.queue_depth", (size_t)o->depth);
    return config;
}

static void engine_open(bench *b, const char *device, int is_serial, const char *master,
                        bench_engine *out)
{
    sherd_config *config = config_make(b->options, device, is_serial, master);
    sherd_param   params[UNITS];

    must(sherd_engine_create(b->world, config, &out->engine), "engine");
    sherd_config_destroy(config);
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
    must(sherdi_fill_settle(out->engine), "write"); /* as the first acquire would */
}

static double now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A micro-batch whose gradients are zero, and the end of its window; then the step, timed. */
static double step_run(bench_engine *e, sherd_step_report *report)
{
    double start;

    for (int u = UNITS - 1; u >= 0; u--) {
        must(sherd_unit_acquire(e->engine, e->units[u], SHERD_BACKWARD), "acquire");
        must(sherd_unit_release(e->engine, e->units[u], SHERD_BACKWARD), "release");
    }
    must(sherd_step_close_window(e->engine), "window");
    sherd_step_report_init(report);
    start = now_s();
    must(sherd_step(e->engine, report), "step");
    return now_s() - start;
}

/* Every extent read and written through the slots, as an update does, and nothing computed. */
static double io_run(sherd_engine *engine)
{
    size_t extents = engine->plan->num_extents[SHERDI_SPACE_STORAGE];
    size_t slots   = sherdi_ring_slots(engine->plan, SHERDI_RING_STATE);
    double start   = now_s();

    must(sherdi_program_read_ahead(&engine->run.program), "read");
    for (size_t e = 0; e < extents; e++) {
        must(sherdi_program_write(&engine->run.program, SHERDI_RING_STATE, e, e, -1), "write");
        if (e + slots < extents) {
            must(sherdi_program_read(&engine->run.program, SHERDI_RING_STATE, e + slots, e + slots,
                                     -1),
                 "read");
        }
    }
    must(sherdi_run_settle(engine, SHERDI_RING_STATE), "write");
    must(sherdi_run_commit(engine, engine->step, engine->fingerprints.own, &engine->scaler),
         "commit");
    start = now_s() - start;
    /* the next step shall tell of itself */
    memset(engine->run.drive.waits, 0, sizeof(engine->run.drive.waits));
    return start;
}

static double row_run(bench *b, int row)
{
    switch (row) {
    case ROW_IO:
        return io_run(b->piped.engine);
    case ROW_STEP:
        return step_run(&b->piped, &b->reports[row]);
    case ROW_UPDATE:
        return step_run(&b->memory, &b->reports[row]);
    case ROW_BESIDE:
        return step_run(&b->beside, &b->reports[row]);
    default:
        return step_run(&b->serial, &b->reports[row]);
    }
}

static int rows_of(const bench *b)
{
    return b->options->has_beside ? NUM_ROWS : ROW_BESIDE;
}

static double *rounds_run(bench *b)
{
    size_t  rounds  = b->options->rounds;
    double *seconds = calloc(rounds * NUM_ROWS, sizeof(*seconds));

    must(seconds == NULL ? SHERD_E_NOMEM : SHERD_OK, "rounds");
    for (size_t round = 0; round < rounds + 2; round++) { /* two to write both slots once */
        for (int i = 0; i < rows_of(b); i++) {
            int    row   = round % 2 == 0 ? i : rows_of(b) - 1 - i;
            double taken = row_run(b, row);

            if (round >= 2) {
                seconds[(round - 2) * NUM_ROWS + (size_t)row] = taken;
            }
        }
        (void)fprintf(stderr, "\rround %zu of %zu", round + 1, rounds + 2);
    }
    (void)fprintf(stderr, "\n");
    return seconds;
}

/* Median over the rounds of one row, or of its ratio to another. */
static bench_stat row_stat(const bench *b, const double *seconds, int row, int to)
{
    size_t     rounds = b->options->rounds;
    double    *values = calloc(rounds, sizeof(*values));
    bench_stat stat;

    must(values == NULL ? SHERD_E_NOMEM : SHERD_OK, "statistics");
    for (size_t r = 0; r < rounds; r++) {
        const double *round = seconds + r * NUM_ROWS;
        double        base  = to == ROW_IO && round[ROW_UPDATE] > round[ROW_IO] && row == ROW_STEP
                                  ? round[ROW_UPDATE] /* the longer of both */
                                  : round[to < 0 ? row : to];

        values[r] = to < 0 ? round[row] : round[row] / base;
    }
    stat = bench_stat_of(values, rounds);
    free(values);
    return stat;
}

/* Of one step: the report's count has the I/O alone between two steps too. */
static double row_bytes(const bench *b, int row)
{
    const sherd_engine      *engine = (row == ROW_BESIDE ? &b->beside : &b->piped)->engine;
    const sherdi_plan_moves *moves  = &engine->plan->moves;

    return row == ROW_UPDATE
               ? 0
               : (double)(moves->step[SHERDI_MOVES_READ] + moves->step[SHERDI_MOVES_WRITTEN]);
}

static void beside_print(const bench *b, const double *seconds)
{
    bench_stat               to_step = row_stat(b, seconds, ROW_BESIDE, ROW_STEP);
    const sherd_step_report *report  = &b->reports[ROW_BESIDE];

    (void)printf("beside bf16 / step: %.3f (%.3f to %.3f), with %.3f of its bytes\n",
                 to_step.median, to_step.min, to_step.max,
                 row_bytes(b, ROW_BESIDE) / row_bytes(b, ROW_STEP));
    (void)printf("its last step waited %.3f s for reads and %.3f s for writes and the commit, "
                 "computed %.3f s\n",
                 report->wait_read_s, report->wait_write_s, report->update_s);
}

static void results_print(const bench *b, const double *seconds)
{
    bench_stat               to_limit  = row_stat(b, seconds, ROW_STEP, ROW_IO);
    bench_stat               to_serial = row_stat(b, seconds, ROW_SERIAL, ROW_STEP);
    const sherd_step_report *report    = &b->reports[ROW_STEP];

    (void)printf("%-14s %10s %10s %10s %12s\n", "row", "median s", "min", "max", "NVMe GB/s");
    for (int row = 0; row < rows_of(b); row++) {
        bench_stat stat = row_stat(b, seconds, row, -1);

        (void)printf("%-14s %10.3f %10.3f %10.3f %12.2f\n", ROW_NAMES[row], stat.median, stat.min,
                     stat.max, row_bytes(b, row) / stat.median / 1e9);
    }
    (void)printf("step / max(I/O alone, update alone): %.3f (%.3f to %.3f)\n", to_limit.median,
                 to_limit.min, to_limit.max);
    (void)printf("serial step / step: %.3f (%.3f to %.3f)\n", to_serial.median, to_serial.min,
                 to_serial.max);
    (void)printf("the last step waited %.3f s for reads and %.3f s for writes and the commit, "
                 "computed %.3f s, norm %.3f s\n",
                 report->wait_read_s, report->wait_write_s, report->update_s, report->norm_s);
    if (b->options->has_beside) {
        beside_print(b, seconds);
    }
    (void)printf("staging %.1f MiB\n",
                 (double)b->piped.engine->plan->buffers[SHERDI_BUFFER_STATE_RING].bytes / 0x1p20);
}

static void results_json(const bench *b, const double *seconds, int argc, char **argv)
{
    FILE *file = freopen(b->options->json, "w", stdout);

    must(file == NULL ? SHERD_E_IO : SHERD_OK, b->options->json);
    (void)printf("{");
    bench_print_machine_json(argc, argv);
    (void)printf(", \"elems\": %zu, \"nvme_bytes\": %.0f", b->options->elems,
                 row_bytes(b, ROW_STEP));
    for (int row = 0; row < rows_of(b); row++) {
        bench_stat stat = row_stat(b, seconds, row, -1);

        (void)printf(", \"%s\": {\"median_s\": %.6f, \"min_s\": %.6f, \"max_s\": %.6f}",
                     ROW_NAMES[row], stat.median, stat.min, stat.max);
    }
    if (b->options->has_beside) {
        (void)printf(", \"beside_to_step\": %.4f",
                     row_stat(b, seconds, ROW_BESIDE, ROW_STEP).median);
    }
    (void)printf(", \"step_to_limit\": %.4f, \"serial_to_step\": %.4f}\n",
                 row_stat(b, seconds, ROW_STEP, ROW_IO).median,
                 row_stat(b, seconds, ROW_SERIAL, ROW_STEP).median);
}

static int plot_write(const bench *b, const double *seconds)
{
    static const char *const SERIES[] = {"seconds"};
    double                   values[NUM_ROWS];
    bench_bars               bars = {.title      = "A step with its state on NVMe",
                                     .y_label    = "seconds",
                                     .groups     = ROW_NAMES,
                                     .num_groups = (size_t)rows_of(b),
                                     .series     = SERIES,
                                     .num_series = 1,
                                     .values     = values};

    for (int row = 0; row < rows_of(b); row++) {
        values[row] = row_stat(b, seconds, row, -1).median;
    }
    return bench_plot_bars(&bars, b->options->plot);
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    int                is_fast = 0;
    const bench_option rows[]  = {
         {"dir", "DIR", "folder on the drive (default: the current one)", BENCH_TEXT,
          .value = &o->folder},
         {"elems", "N", "parameters (default 128M)", BENCH_SIZE, .value = &o->elems, .least = UNITS},
         {"rounds", "N", "rounds (default 7)", BENCH_SIZE, .value = &o->rounds, .least = 1},
         {"dtype", "T", "bf16 (default) or fp32", BENCH_TEXT, .value = &o->dtype,
          .choices = "bf16|fp32"},
         {"buffer-size", "N", "elements of a buffer (default: the engine's)", BENCH_SIZE,
          .value = &o->buffer_elems, .least = 1},
         {"buffer-count", "N", "number of buffers (default: the engine's)", BENCH_INT,
          .value = &o->buffers, .least = 1},
         {"block-size", "N", "bytes of a request (default: the engine's)", BENCH_SIZE,
          .value = &o->request_bytes, .least = 1},
         {"queue-depth", "N", "requests in flight (default: the engine's)", BENCH_INT,
          .value = &o->depth, .least = 1},
         {"engine", "E", "auto (default), io_uring or threads", BENCH_TEXT, .value = &o->engine,
          .choices = "auto|io_uring|threads"},
         {"fast", NULL, "commits need not reach the medium (\"durable\": false)", BENCH_SWITCH,
          .value = &is_fast},
         {"beside", NULL, "also time a step with masters beside their bf16 parameters", BENCH_SWITCH,
          .value = &o->has_beside},
         {"json", "FILE", "also write the results as JSON", BENCH_TEXT, .value = &o->json},
         {"plot", "FILE.svg", "draw a chart, if gnuplot is installed", BENCH_TEXT,
          .value = &o->plot}};
    const bench_command command = BENCH_COMMAND("offload",
                                                "Times the optimizer's step with state on NVMe "
                                                "beside I/O alone, the update alone and a serial "
                                                "step, interleaved in one run.",
                                                rows);

    (void)bench_options_read(&command, argc, argv);
    o->is_durable = !is_fast;
}

int main(int argc, char **argv)
{
    bench_options options = {
        .folder = ".", .elems = (size_t)128 << 20, .rounds = 7, .engine = "auto", .dtype = "bf16"};
    bench   b = {.options = &options};
    double *seconds;
    int     status = 0;

    options_parse(argc, argv, &options);
    must(sherd_world_self(&b.world), "world");
    engine_open(&b, "nvme", 0, "fp32", &b.piped);
    engine_open(&b, "nvme", 1, "fp32", &b.serial);
    engine_open(&b, "cpu", 0, "fp32", &b.memory);
    if (options.has_beside) {
        engine_open(&b, "nvme", 0, "bf16_beside", &b.beside);
    }
    bench_print_machine(argc, argv);
    seconds = rounds_run(&b);
    results_print(&b, seconds);
    if (options.plot != NULL && plot_write(&b, seconds) != 0) {
        status = 1;
    }
    if (options.json != NULL) {
        results_json(&b, seconds, argc, argv);
    }
    free(seconds);
    sherd_engine_destroy(b.piped.engine);
    sherd_engine_destroy(b.serial.engine);
    sherd_engine_destroy(b.memory.engine);
    sherd_engine_destroy(b.beside.engine);
    sherd_world_destroy(b.world);
    return status;
}
