/* bench-gpu-offload: a training step on a GPU whose optimizer state rests in host memory or on
 * NVMe, against its lower limit. In every round, one after the other:
 *
 *   link alone      the bytes that a step moves between host and device, both ways at once
 *   host alone      the boundary of the same training on the CPU: norm and update; on NVMe its
 *                   transfers too
 *   compute alone   the synthetic compute of a step (copies of device memory) on the engine's
 *                   stream
 *   step            backward with that compute, gradients going down meanwhile, and the boundary
 *   its boundary    from the end of the compute to new parameters on the device
 *
 * The update cannot begin before the norm of all gradients is known: so the boundary is held
 * against the longer of link and host, the step against the longest of the three and against
 * compute and that together. Ratios are taken inside each round; the median of the rounds is shown.
 * Exits 77 where there is no device. */
#include "bench/link.h"
#include "bench/options.h"
#include "bench/timing.h"
#include "engine/run/engine_impl.h"
#include "kernels/devices.h"
#include "models/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_LINK, ROW_HOST, ROW_COMPUTE, ROW_STEP, ROW_BOUNDARY, NUM_ROWS };

static const char *const ROW_NAMES[NUM_ROWS] = {"link alone", "host alone", "compute alone", "step",
                                                "its boundary"};

#define UNITS       16
#define WARM_ROUNDS 2
#define EXIT_SKIP   77

typedef struct bench_options {
    const char *tiers, *folder, *json, *dtype;
    size_t      elems, rounds;
    double      compute_ms; /* below 0: as long as the host takes */
    int         device;
    int         is_durable;
} bench_options;

typedef struct bench_engine {
    sherd_world  *world;
    sherd_engine *engine;
    sherd_unit    units[UNITS];
} bench_engine;

/* Copies to keep the device busy, on the memory of the link alone. */
typedef struct bench_copies {
    bench_link link;
    double     copy_s;   /* of one portion on the device */
    size_t     per_unit; /* copies of a unit's synthetic compute */
} bench_copies;

typedef struct bench {
    const bench_options *options;
    const char          *tier;
    bench_engine         gpu, host;
    bench_copies         copies;
    sherd_step_report    report; /* of the GPU's last step */
    double              *seconds;
} bench;

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        (void)fprintf(stderr, "bench-gpu-offload: %s: %s\n", what, sherd_last_error());
        exit(1);
    }
}

/* ---------------------------------------------------------------- engines -- */

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = 0.01f * (float)((first_elem + i) % 199) - 1.0f;
    }
    return SHERD_OK;
}

/* Stage 2: gradients go down while backward runs. */
static sherd_config *config_make(const bench_options *o, const char *tier)
{
    sherd_config *config;
    char          json[1024];
    int           len = snprintf(
                  json, sizeof(json),
                  "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1,"
                            " \"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": %s},"
                            " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},"
                            " \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"%s\","
                            " \"nvme_path\": \"%s\", \"fast_init\": true, \"pin_memory\": true, \"durable\": %s}}}",
        strcmp(o->dtype, "bf16") == 0 ? "true" : "false", tier, o->folder,
        o->is_durable ? "true" : "false");

    if (len < 0 || (size_t)len >= sizeof(json)) {
        (void)fprintf(stderr, "bench-gpu-offload: --dir is too long\n");
        exit(2);
    }
    must(sherd_config_parse(json, (size_t)len, &config), "configuration");
    return config;
}

/* Not there is E_NOTSUP: a build without the libraries that the tier needs. */
static sherd_status engine_open(const bench_options *o, const char *backend, const char *tier,
                                bench_engine *out)
{
    sherd_config      *config = config_make(o, tier);
    sherd_world_params params;
    sherd_param        handles[UNITS];
    sherd_status       status;

    sherd_world_params_init(&params);
    params.backend = backend;
    params.device  = o->device;
    must(sherd_world_create(0, 1, NULL, &params, &out->world), backend);
    must(sherd_engine_create(out->world, config, &out->engine), "engine");
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
        param.shape[0] = o->elems / UNITS;
        must(sherd_param_add(out->engine, out->units[u], &param, &handles[u]), "parameter");
    }
    status = sherd_engine_seal(out->engine);
    if (status == SHERD_E_NOTSUP) {
        return status;
    }
    must(status, "seal");
    for (int u = 0; u < UNITS; u++) {
        must(sherd_param_fill(out->engine, handles[u], fill, NULL), "fill");
    }
    return SHERD_OK;
}

static void engine_close(bench_engine *e)
{
    sherd_engine_destroy(e->engine);
    sherd_world_destroy(e->world);
    *e = (bench_engine){.engine = NULL};
}

/* ----------------------------------------------------------------- copies -- */

/* Stand-in for a unit's kernels. */
static void compute_queue(const bench_copies *c, const sherdi_backend *lane)
{
    for (size_t i = 0; i < c->per_unit; i++) {
        size_t at = (i % BENCH_LINK_PORTIONS) * BENCH_LINK_PORTION;

        lane->kernels->copy(lane, c->link.to + at, c->link.from + at, BENCH_LINK_PORTION);
    }
}

static double compute_run(const bench_copies *c, const sherdi_backend *lane)
{
    double start = clock_now_s();

    for (int u = 0; u < UNITS; u++) {
        compute_queue(c, lane);
    }
    must(sherdi_lane_wait(lane), "compute");
    return clock_now_s() - start;
}

/* The number of copies that make a step's compute of this duration. */
static void compute_calibrate(bench_copies *c, const sherdi_backend *lane, double want_s)
{
    c->per_unit = 0;
    if (want_s == 0) {
        return;
    }
    c->per_unit = 64;
    (void)compute_run(c, lane);
    c->copy_s   = compute_run(c, lane) / (UNITS * 64);
    c->per_unit = (size_t)(want_s / UNITS / c->copy_s + 0.5);
}

/* ------------------------------------------------------------------- rows -- */

/* A micro-batch whose gradients are zero. */
static void backward_run(bench_engine *e, const bench_copies *c)
{
    for (int u = UNITS - 1; u >= 0; u--) {
        must(sherd_unit_acquire(e->engine, e->units[u], SHERD_BACKWARD), "acquire");
        if (c != NULL) {
            compute_queue(c, e->engine->backend);
        }
        must(sherd_unit_release(e->engine, e->units[u], SHERD_BACKWARD), "release");
    }
}

static double host_run(bench *b)
{
    sherd_step_report report;
    double            start;

    sherd_step_report_init(&report);
    backward_run(&b->host, NULL);
    start = clock_now_s();
    must(sherd_step(b->host.engine, &report), "step on the CPU");
    return clock_now_s() - start;
}

static void step_run(bench *b, double *step_s, double *boundary_s)
{
    sherd_engine *engine = b->gpu.engine;
    double        start  = clock_now_s();
    double        computed;

    backward_run(&b->gpu, &b->copies);
    must(sherdi_lane_wait(engine->backend), "backward");
    computed = clock_now_s();
    sherd_step_report_init(&b->report);
    must(sherd_step(engine, &b->report), "step");
    must(sherd_step_wait(engine, &b->report), "step");
    must(sherdi_lane_wait(engine->backend), "step");
    *step_s     = clock_now_s() - start;
    *boundary_s = clock_now_s() - computed;
}

static void round_run(bench *b, double *seconds)
{
    must(bench_link_run(&b->copies.link, b->report.link_down_bytes, b->report.link_up_bytes,
                        &seconds[ROW_LINK]),
         "link");
    seconds[ROW_HOST]    = host_run(b);
    seconds[ROW_COMPUTE] = compute_run(&b->copies, b->gpu.engine->backend);
    step_run(b, &seconds[ROW_STEP], &seconds[ROW_BOUNDARY]);
}

static void rounds_run(bench *b)
{
    double thrown[NUM_ROWS];
    size_t rounds = b->options->rounds;

    step_run(b, &thrown[ROW_STEP], &thrown[ROW_BOUNDARY]); /* which has the link's bytes */
    for (int i = 0; i < WARM_ROUNDS; i++) {
        round_run(b, thrown);
    }
    compute_calibrate(&b->copies, b->gpu.engine->backend,
                      b->options->compute_ms < 0 ? thrown[ROW_HOST]
                                                 : b->options->compute_ms * 1e-3);
    for (size_t round = 0; round < rounds; round++) {
        round_run(b, b->seconds + round * NUM_ROWS);
        (void)fprintf(stderr, "\r%s: round %zu of %zu", b->tier, round + 1, rounds);
    }
    (void)fprintf(stderr, "\n");
}

/* ---------------------------------------------------------------- results -- */

enum { RATIO_BOUNDARY, RATIO_STEP, RATIO_SUM, NUM_RATIOS };

static const char *const RATIO_NAMES[NUM_RATIOS] = {"boundary / max(link, host)",
                                                    "step / max(link, host, compute)",
                                                    "step / (compute + max(link, host))"};
static const char *const RATIO_KEYS[NUM_RATIOS]  = {"step_to_limit", "step_to_longest",
                                                    "step_to_sum"};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double round_ratio(const double *round, int ratio)
{
    double outside = larger(round[ROW_LINK], round[ROW_HOST]);

    switch (ratio) {
    case RATIO_BOUNDARY:
        return round[ROW_BOUNDARY] / outside;
    case RATIO_STEP:
        return round[ROW_STEP] / larger(outside, round[ROW_COMPUTE]);
    default:
        return round[ROW_STEP] / (outside + round[ROW_COMPUTE]);
    }
}

/* Of a row's seconds, or from NUM_ROWS on of a ratio. */
static bench_stat stat_of(const bench *b, int row)
{
    size_t     rounds = b->options->rounds;
    double    *values = calloc(rounds, sizeof(*values));
    bench_stat stat;

    must(values == NULL ? SHERD_E_NOMEM : SHERD_OK, "statistics");
    for (size_t r = 0; r < rounds; r++) {
        const double *round = b->seconds + r * NUM_ROWS;

        values[r] = row < NUM_ROWS ? round[row] : round_ratio(round, row - NUM_ROWS);
    }
    stat = bench_stat_of(values, rounds);
    free(values);
    return stat;
}

static void results_print(const bench *b)
{
    double bytes = (double)(b->report.link_down_bytes + b->report.link_up_bytes);

    (void)printf("\nstate on %s, %.4g million parameters, %s\n", b->tier,
                 (double)b->options->elems * 1e-6, b->options->dtype);
    (void)printf("%-14s %10s %10s %10s\n", "row", "median s", "min", "max");
    for (int row = 0; row < NUM_ROWS; row++) {
        bench_stat stat = stat_of(b, row);

        (void)printf("%-14s %10.4f %10.4f %10.4f", ROW_NAMES[row], stat.median, stat.min, stat.max);
        if (row == ROW_LINK) {
            (void)printf("   %.1f GB/s, both ways", bytes / stat.median * 1e-9);
        }
        (void)printf("\n");
    }
    for (int ratio = 0; ratio < NUM_RATIOS; ratio++) {
        bench_stat stat = stat_of(b, NUM_ROWS + ratio);

        (void)printf("%s: %.3f (%.3f to %.3f)\n", RATIO_NAMES[ratio], stat.median, stat.min,
                     stat.max);
    }
    (void)printf("the last step moved %.3f GB down and %.3f up, waited %.3f s for reads and %.3f s "
                 "for writes\n",
                 (double)b->report.link_down_bytes * 1e-9, (double)b->report.link_up_bytes * 1e-9,
                 b->report.wait_read_s, b->report.wait_write_s);
    (void)fflush(stdout);
}

static void stat_json(FILE *file, const char *name, const bench_stat *stat)
{
    (void)fprintf(file, ", \"%s\": [%.6f, %.6f, %.6f]", name, stat->median, stat->min, stat->max);
}

static void results_json(const bench *b, FILE *file, int is_first)
{
    (void)fprintf(file, "%s\n{\"place\": \"%s\", \"elems\": %zu, \"dtype\": \"%s\"",
                  is_first ? "" : ",", b->tier, b->options->elems, b->options->dtype);
    for (int row = 0; row < NUM_ROWS; row++) {
        bench_stat stat = stat_of(b, row);

        stat_json(file, ROW_NAMES[row], &stat);
    }
    for (int ratio = 0; ratio < NUM_RATIOS; ratio++) {
        bench_stat stat = stat_of(b, NUM_ROWS + ratio);

        stat_json(file, RATIO_KEYS[ratio], &stat);
    }
    (void)fprintf(file, "}");
}

/* ---------------------------------------------------------------- command -- */

/* 0 when this build cannot: the row is omitted with a message. */
static int tier_run(bench *b, const char *tier)
{
    /* On the CPU host memory is device memory: without offload nothing is copied. */
    const char *on_host = strcmp(tier, "cpu") == 0 ? "none" : tier;

    b->tier = tier;
    if (engine_open(b->options, "cuda", tier, &b->gpu) != SHERD_OK) {
        (void)printf("\nstate on %s: skipped: %s\n", tier, sherd_last_error());
        engine_close(&b->gpu);
        return 0;
    }
    must(engine_open(b->options, "cpu", on_host, &b->host), "the CPU's engine");
    b->copies = (bench_copies){.per_unit = 0};
    must(bench_link_open(&b->copies.link, b->options->device), "link");
    rounds_run(b);
    results_print(b);
    bench_link_close(&b->copies.link);
    engine_close(&b->host);
    engine_close(&b->gpu);
    return 1;
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    int                is_fast = 0;
    const bench_option rows[]  = {
         {"place", "LIST", "cpu, nvme or both (default: cpu,nvme)", BENCH_TEXT, .value = &o->tiers,
          .choices = "cpu|nvme|cpu,nvme"},
         {"dir", "DIR", "folder on the drive (default: the current one)", BENCH_TEXT,
          .value = &o->folder},
         {"elems", "N", "parameters (default 128M)", BENCH_SIZE, .value = &o->elems, .least = UNITS},
         {"compute", "MS",
          "milliseconds of synthetic compute in a step (default: as long as the host alone)",
          BENCH_REAL, .value = &o->compute_ms},
         {"rounds", "N", "rounds (default 7)", BENCH_SIZE, .value = &o->rounds, .least = 1},
         {"dtype", "T", "bf16 (default) or fp32", BENCH_TEXT, .value = &o->dtype,
          .choices = "bf16|fp32"},
         {"device", "N", "number of the GPU (default 0)", BENCH_INT, .value = &o->device},
         {"fast", NULL, "commits need not reach the medium (\"durable\": false)", BENCH_SWITCH,
          .value = &is_fast},
         {"json", "FILE", "also write the results as JSON, a line for each place", BENCH_TEXT,
          .value = &o->json}};
    const bench_command command = {
        .name = "gpu-offload",
        .about =
            "Times a step on a GPU with optimizer state in host memory or on NVMe beside the link, "
            "the host's update and the compute alone, interleaved in one run.",
        .options     = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .end         = "Exits with 77 where there is no device."};

    (void)bench_options_read(&command, argc, argv);
    o->is_durable = !is_fast;
}

static FILE *json_begin(const bench_options *o, const char *device)
{
    FILE *file = o->json == NULL ? NULL : fopen(o->json, "we");

    if (o->json != NULL && file == NULL) {
        perror(o->json);
        exit(1);
    }
    if (file != NULL) {
        (void)fprintf(file, "{\"device\": \"%s\", \"rounds\": %zu, \"places\": [", device,
                      o->rounds);
    }
    return file;
}

int main(int argc, char **argv)
{
    static const char *const TIERS[]  = {"cpu", "nvme"};
    bench_options            options  = {.tiers      = "cpu,nvme",
                                         .folder     = ".",
                                         .dtype      = "bf16",
                                         .elems      = (size_t)128 << 20,
                                         .rounds     = 7,
                                         .compute_ms = -1};
    bench                    b        = {.options = &options};
    int                      is_first = 1;
    FILE                    *json;
    char                     device[256];

    options_parse(argc, argv, &options);
    if (sherd_device_count("cuda") == 0) {
        (void)printf("bench-gpu-offload: skipped: %s\n", sherd_last_error());
        return EXIT_SKIP;
    }
    b.seconds = calloc(options.rounds * NUM_ROWS, sizeof(*b.seconds));
    must(b.seconds == NULL ? SHERD_E_NOMEM : SHERD_OK, "rounds");
    bench_print_machine(argc, argv);
    sherdi_backend_device_describe("cuda", options.device, device, sizeof(device));
    (void)printf("# device   %s\n", device);
    json = json_begin(&options, device);
    for (int i = 0; i < 2; i++) {
        if (strstr(options.tiers, TIERS[i]) == NULL || !tier_run(&b, TIERS[i])) {
            continue;
        }
        if (json != NULL) {
            results_json(&b, json, is_first);
        }
        is_first = 0;
    }
    free(b.seconds);
    if (json != NULL && (fprintf(json, "\n]}\n") < 0 || fclose(json) != 0)) {
        perror(options.json);
        return 1;
    }
    return 0;
}
