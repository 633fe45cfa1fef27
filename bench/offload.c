/* bench-offload: the optimizer's step with its state on NVMe, against the limit of the drive and
 * the update. In every round, one after the other:
 *
 *   I/O alone      the same blocks through the same slots, the same flips, the same commit; no
 *                  update
 *   step           sherd_step: norm, update, commit
 *   update alone   sherd_step of an engine whose state is in host memory
 *   serial step    sherd_step without reading ahead and writing behind
 *   split bf16     sherd_step with split masters (--beside): 10 bytes of an element read instead of
 *                  12
 *
 * and in every other round the other way about, so that no row always follows the same one. A ratio
 * is taken inside each round; the median of the rounds is shown. The window of a step is closed by
 * hand, so that no read has begun in backward.
 *
 * With --trainer something else: whole steps of the C trainer. See offload_trainer.c. */
#include "bench/plot.h"

#include "bench/drive.h"
#include "bench/offload_trainer.h"
#include "bench/options.h"
#include "bench/timing.h"
#include "engine/run/fill.h"
#include "engine/report.h"
#include "models/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_IO, ROW_STEP, ROW_UPDATE, ROW_SERIAL, ROW_BESIDE, NUM_ROWS };

static const char *const ROW_NAMES[NUM_ROWS] = {"I/O alone", "step", "update alone", "serial step",
                                                "split bf16"};

#define UNITS 16

typedef struct bench_options {
    bench_drive drive;
    const char *json;
    const char *plot;
    size_t      elems, rounds;
    const char *dtype;
    int         has_beside;
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

static sherd_config *config_make(const bench_options *o, const char *device, int is_serial,
                                 const char *master)
{
    sherd_config *config;
    char          json[2048];
    int           len = snprintf(
                  json, sizeof(json),
                  "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2,"
                            " \"bf16\": {\"enabled\": %s}, \"sherd\": {\"master_encoding\": \"%s\"},"
                            " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},"
                            " \"data_types\": {\"grad_accum_dtype\": \"%s\"},"
                            " \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"%s\","
                            " \"nvme_path\": \"%s\", \"pipeline_read\": %s, \"pipeline_write\": %s}}}",
        strcmp(o->dtype, "bf16") == 0 ? "true" : "false", master, o->dtype, device, o->drive.folder,
        is_serial ? "false" : "true", is_serial ? "false" : "true");

    must(sherd_config_parse(json, (size_t)len, &config), "configuration");
    must(bench_drive_set(&o->drive, config), "configuration");
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
    start = clock_now_s();
    must(sherd_step(e->engine, report), "step");
    return clock_now_s() - start;
}

static double io_run(sherd_engine *engine)
{
    double seconds;

    must(bench_drive_run(engine, &seconds), "transfers");
    return seconds;
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
    const sherdi_plan_moves *moves  = sherdi_plan_moves_of(engine->plan);

    return row == ROW_UPDATE
               ? 0
               : (double)(moves->step[SHERDI_MOVES_READ] + moves->step[SHERDI_MOVES_WRITTEN]);
}

static void beside_print(const bench *b, const double *seconds)
{
    bench_stat               to_step = row_stat(b, seconds, ROW_BESIDE, ROW_STEP);
    const sherd_step_report *report  = &b->reports[ROW_BESIDE];

    (void)printf("split bf16 / step: %.3f (%.3f to %.3f), with %.3f of its bytes\n", to_step.median,
                 to_step.min, to_step.max, row_bytes(b, ROW_BESIDE) / row_bytes(b, ROW_STEP));
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
                 (double)b->piped.engine->plan->packing.buffers[SHERDI_BUFFER_STATE_RING].bytes /
                     0x1p20);
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

/* The options of --trainer in addition to those of both. */
typedef struct trainer_options {
    int                    is_wanted;
    offload_trainer_params params;
    const char            *arch, *preset;
    size_t                 layers, hidden, heads, inner, vocab; /* 0: the preset's */
} trainer_options;

static void trainer_complete(const bench_command *command, const bench_options *o,
                             trainer_options *t)
{
    offload_setup *setup = &t->params.setup;
    arch          *sizes = &setup->sizes;
    arch_kind      kind;
    char           why[256];

    if (arch_kind_find(t->arch, &kind) != 0 || arch_preset(kind, t->preset, sizes) != 0) {
        bench_options_refuse(command, "there is no --arch %s with --preset %s", t->arch, t->preset);
    }
    sizes->layers   = t->layers > 0 ? t->layers : sizes->layers;
    sizes->vocab    = t->vocab > 0 ? t->vocab : sizes->vocab;
    sizes->hidden   = t->hidden > 0 ? t->hidden : sizes->hidden;
    sizes->kv_heads = t->heads > 0 ? t->heads : sizes->kv_heads;
    sizes->heads    = t->heads > 0 ? t->heads : sizes->heads;
    sizes->inner    = t->inner > 0 ? t->inner : t->hidden > 0 ? 0 : sizes->inner;
    arch_complete(sizes);
    if (arch_check(sizes, why, sizeof(why)) != NULL) {
        bench_options_refuse(command, "%s", why);
    }
    for (size_t i = 0; i < t->params.shapes.count; i++) {
        if (t->params.shapes.values[i].length > sizes->max_length) {
            bench_options_refuse(command, "--shapes has more than the model's %zu tokens",
                                 sizes->max_length);
        }
    }
    if (t->params.peers != NULL && (kind != ARCH_GPT2 || strcmp(setup->backend, "cpu") != 0 ||
                                    strcmp(setup->place, "nvme") != 0)) {
        bench_options_refuse(command, "--peers needs --arch gpt2, --backend cpu and --place nvme");
    }
    setup->drive         = o->drive;
    t->params.precisions = o->dtype != NULL ? o->dtype : "fp32,bf16";
    t->params.rounds     = o->rounds;
    t->params.json       = o->json;
}

static int recompute_read(const char *text, void *value)
{
    (void)text;
    ((offload_setup *)value)->activations = "recompute";
    return 0;
}

static void options_parse(int argc, char **argv, bench_options *o, trainer_options *t)
{
    int                is_fast = 0;
    offload_setup     *setup   = &t->params.setup;
    const bench_option rows[]  = {
         {"dir", "DIR", "folder on the drive (default: the current one)", BENCH_TEXT,
          .value = &o->drive.folder},
         {"elems", "N", "parameters (default 128M)", BENCH_SIZE, .value = &o->elems, .least = UNITS},
         {"rounds", "N", "rounds (default 7)", BENCH_SIZE, .value = &o->rounds, .least = 1},
         {"dtype", "T", "bf16 (default) or fp32; trainer: by default both", BENCH_TEXT,
          .value = &o->dtype, .choices = "bf16|fp32"},
         {"buffer-size", "N", "elements of a buffer (default: the engine's)", BENCH_SIZE,
          .value = &o->drive.buffer_elems, .least = 1},
         {"buffer-count", "N", "number of buffers (default: the engine's)", BENCH_INT,
          .value = &o->drive.buffers, .least = 1},
         {"block-size", "N", "bytes of a request (default: the engine's)", BENCH_SIZE,
          .value = &o->drive.request_bytes, .least = 1},
         {"queue-depth", "N", "requests in flight (default: the engine's)", BENCH_INT,
          .value = &o->drive.depth, .least = 1},
         {"engine", "E", "auto (default), io_uring or threads", BENCH_TEXT,
          .value = &o->drive.engine, .choices = "auto|io_uring|threads"},
         {"fast", NULL, "commits need not reach the medium (\"durable\": false)", BENCH_SWITCH,
          .value = &is_fast},
         {"beside", NULL, "also time a step with split masters", BENCH_SWITCH,
          .value = &o->has_beside},
         {"json", "FILE", "also write the results as JSON", BENCH_TEXT, .value = &o->json},
         {"plot", "FILE.svg", "draw a chart, if gnuplot is installed", BENCH_TEXT,
          .value = &o->plot},
         {"trainer", NULL,
          "whole steps of the C trainer instead: the update during the next forward, waited for, "
           "and "
           "no offload, with their parts, the limit that these give, and how far a step is above it",
          BENCH_SWITCH, .value = &t->is_wanted},
         {"shapes", "LIST", "trainer: sequences x tokens of micro-batches (default: 2x64,4x128)",
          BENCH_CALL, .value = &t->params.shapes, .read = offload_shapes_read},
         {"steps", "N", "trainer: steps of a turn (default: 3)", BENCH_SIZE,
          .value = &t->params.steps, .least = 1},
         {"place", "NAME", "trainer: where the state rests, nvme (default) or cpu", BENCH_TEXT,
          .value = &setup->place, .choices = "nvme|cpu"},
         {"stage", "N", "trainer: ZeRO stage (default: 1)", BENCH_INT, .value = &setup->stage,
          .most = 3},
         {"threads", "N", "trainer: threads (default: 2)", BENCH_INT, .value = &setup->threads,
          .least = 1, .most = 256},
         {"backend", "NAME", "trainer: cpu (default) or cuda", BENCH_TEXT, .value = &setup->backend,
          .choices = "cpu|cuda"},
         {"recompute", NULL, "trainer: compute activations again in backward", BENCH_CALL,
          .value = setup, .read = recompute_read},
         {"arch", "NAME", "trainer: " ARCH_KIND_NAMES " (default: gpt2)", BENCH_TEXT,
          .value = &t->arch},
         {"preset", "NAME", "trainer: sizes of the model (default: 124m)", BENCH_TEXT,
          .value = &t->preset},
         {"layers", "N", "trainer: number of layers (default: the preset's; so the four below)",
          BENCH_SIZE, .value = &t->layers, .least = 1},
         {"hidden", "N", "trainer: width", BENCH_SIZE, .value = &t->hidden, .least = 1},
         {"heads", "N", "trainer: attention heads", BENCH_SIZE, .value = &t->heads, .least = 1},
         {"inner", "N", "trainer: width of the feed-forward part", BENCH_SIZE, .value = &t->inner,
          .least = 1},
         {"vocab", "N", "trainer: tokens that the model knows", BENCH_SIZE, .value = &t->vocab,
          .least = 1},
         {"peers", "PYTHON",
          "trainer: also DeepSpeed's steps, in this interpreter (its first step compiles, which "
           "takes "
           "minutes)",
          BENCH_TEXT, .value = &t->params.peers},
         {"peers-limit", "S", "trainer: seconds for an answer of DeepSpeed's (default: 600)",
          BENCH_REAL, .value = &t->params.peers_limit_s}};
    const bench_command command = {
        .name = "offload",
        .about =
            "Times the optimizer's step with state on NVMe beside I/O alone, the update alone and "
            "a "
            "serial step, interleaved in one run. With --trainer: steps of the C trainer, the same "
            "way.",
        .options     = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .end         = "--trainer --backend cuda exits with 77 where there is no device."};

    (void)bench_options_read(&command, argc, argv);
    o->drive.is_durable = !is_fast;
    if (t->is_wanted) {
        trainer_complete(&command, o, t);
    }
    o->dtype = o->dtype != NULL ? o->dtype : "bf16";
}

int main(int argc, char **argv)
{
    bench_options options = {
        .drive = {.folder = ".", .engine = "auto"}, .elems = (size_t)128 << 20, .rounds = 7};
    trainer_options trainer = {
        .params = {.setup         = {.backend = "cpu", .place = "nvme", .stage = 1, .threads = 2},
                   .shapes        = {.values = {{2, 64}, {4, 128}}, .count = 2},
                   .steps         = 3,
                   .peers_limit_s = 600.0},
        .arch   = "gpt2",
        .preset = "124m"};
    bench   b = {.options = &options};
    double *seconds;
    int     status = 0;

    options_parse(argc, argv, &options, &trainer);
    if (trainer.is_wanted) {
        return offload_trainer_run(&trainer.params, argc, argv);
    }
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
