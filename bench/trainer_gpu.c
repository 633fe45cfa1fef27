/* Steps on one GPU, queued as the trainer queues them, and each timed from one report to the next.
 * See trainer_gpu.h. */
#include "bench/trainer_gpu.h"

#include "bench/timing.h"

#include "models/clock.h"
#include "trainer/declare.h"
#include "trainer/passes.h"
#include "trainer/init.h"
#include "trainer/speed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_STEPS 5 /* the first ones choose kernels and wake the device */

typedef struct gpu_run {
    const trainer_gpu_params *p;
    sherd_world              *world;
    sherd_engine             *engine;
    pool                     *threads;
    passes                   *passes;
    int32_t                  *tokens;          /* inputs, targets */
    double                   *seconds;         /* [steps] */
    size_t                    queued, printed; /* steps, of the first WARM_STEPS too */
    double                    since_s;         /* when the last step was printed */
    double                    loss;
} gpu_run;

static sherd_status config_make(const trainer_gpu_params *p, sherd_config **out)
{
    char json[768], type[64] = "";

    if (strcmp(p->precision, "fp32") != 0) {
        (void)snprintf(type, sizeof(type), "\"%s\": {\"enabled\": true},", p->precision);
    }
    (void)snprintf(json, sizeof(json),
                   "{\"train_micro_batch_size_per_gpu\": %zu, \"gradient_clipping\": 1.0, %s"
                   " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},"
                   " \"zero_optimization\": {\"stage\": %d,"
                   " \"offload_optimizer\": {\"device\": \"%s\"}}}",
                   p->batch, type, p->stage, p->offload);
    return sherd_config_parse(json, strlen(json), out);
}

static sherd_status engine_open(gpu_run *run)
{
    sherd_world_params params;
    sherd_config      *config;
    sherd_status       status = config_make(run->p, &config);

    if (status != SHERD_OK) {
        return status;
    }
    sherd_world_params_init(&params);
    params.backend = "cuda";
    status         = sherd_world_from_env(&params, &run->world);
    if (status == SHERD_OK) {
        status = sherd_engine_create(run->world, config, &run->engine);
    }
    sherd_config_destroy(config);
    if (status == SHERD_OK) {
        status = arch_declare(&run->p->sizes, run->engine);
    }
    if (status == SHERD_OK) {
        status = sherd_engine_seal(run->engine);
    }
    run->threads = pool_create(1);
    if (status == SHERD_OK && run->threads == NULL) {
        status = SHERD_E_NOMEM;
    }
    return status == SHERD_OK ? init_fill(&run->p->sizes, run->engine, 1, run->threads) : status;
}

static int model_open(gpu_run *run)
{
    size_t            rows = run->p->batch * run->p->length;
    sherd_engine_info info = {.struct_size = sizeof(info)};
    model_params      made = {
             .sizes   = run->p->sizes,
             .batch   = run->p->batch,
             .length  = run->p->length,
             .places  = layer_places_all(run->p->is_recomputed ? LAYER_RECOMPUTED : LAYER_KEPT),
             .backend = "cuda",
             .choices = run->p->choices,
             .stream  = sherd_engine_stream(run->engine)};
    char why[256] = "out of memory";

    if (sherd_engine_query(run->engine, &info) == SHERD_OK) {
        made.dtype   = info.compute_dtype;
        made.threads = run->threads;
        run->passes  = passes_create(run->engine, &made, why, sizeof(why));
    }
    run->tokens  = calloc(2 * rows, sizeof(*run->tokens));
    run->seconds = calloc(run->p->steps, sizeof(*run->seconds));
    if (run->passes == NULL || run->tokens == NULL || run->seconds == NULL) {
        (void)fprintf(stderr, "bench-trainer: %s\n", why);
        return -1;
    }
    for (size_t i = 0; i < 2 * rows; i++) {
        run->tokens[i] = (int32_t)((i * 2654435761u >> 7) % run->p->sizes.vocab);
    }
    return 0;
}

static void run_close(gpu_run *run)
{
    passes_destroy(run->passes);
    sherd_engine_destroy(run->engine);
    sherd_world_destroy(run->world);
    pool_destroy(run->threads);
    free(run->tokens);
    free(run->seconds);
}

static int fail(const char *why)
{
    (void)fprintf(stderr, "bench-trainer: %s\n", why);
    return -1;
}

/* Waits for the report and the loss of the step that was queued. Its time is that since the step
 * before it was printed. The last step has none, because no passes are queued after it. */
static int step_print(gpu_run *run)
{
    sherd_step_report report;
    double            now;

    sherd_step_report_init(&report);
    if (sherd_step_wait(run->engine, &report) != SHERD_OK) {
        return fail(sherd_last_error());
    }
    if (passes_losses_take(run->passes, &run->loss) != SHERD_OK) {
        return fail(passes_why(run->passes));
    }
    now = clock_now_s();
    if (run->printed >= WARM_STEPS && run->printed < WARM_STEPS + run->p->steps) {
        run->seconds[run->printed - WARM_STEPS] = now - run->since_s;
    }
    run->since_s = now;
    run->printed++;
    return 0;
}

static void batch_set(gpu_run *run)
{
    passes_batch_set(run->passes, run->tokens, run->tokens + run->p->batch * run->p->length);
}

/* Runs one step without waiting for its update. The step before it is printed after these passes,
 * as in the trainer. */
static int step_queue(gpu_run *run, int is_last)
{
    if (passes_train(run->passes, NULL, NULL) != SHERD_OK) {
        return fail(sherd_last_error());
    }
    if (run->printed < run->queued && step_print(run) != 0) {
        return -1;
    }
    if (!is_last) {
        batch_set(run);
    }
    if (sherd_step_queue(run->engine) != SHERD_OK) {
        return fail(sherd_last_error());
    }
    passes_losses_close(run->passes);
    run->queued++;
    return 0;
}

static int steps_run(gpu_run *run)
{
    size_t count = WARM_STEPS + run->p->steps + 1;

    batch_set(run);
    while (run->queued < count) {
        if (step_queue(run, run->queued + 1 == count) != 0) {
            return -1;
        }
    }
    return step_print(run);
}

static void report_print(gpu_run *run)
{
    const trainer_gpu_params *p      = run->p;
    double                    tokens = (double)(p->batch * p->length);
    double                    flops  = tokens * speed_flops_per_token(&p->sizes, p->length);
    double                    peak   = 1e12 * p->peak_tflops;
    bench_stat                stat   = bench_stat_of(run->seconds, p->steps);

    if (peak == 0.0) {
        peak = speed_peak_flops(passes_device(run->passes),
                                strcmp(p->precision, "fp32") == 0 ? SHERD_F32 : SHERD_BF16);
    }
    printf("# on %s, %.1f GiB of activations and scratch\n", passes_device(run->passes),
           (double)passes_bytes(run->passes) / 0x1p30);
    if (passes_note(run->passes)[0] != '\0') {
        printf("# %s\n", passes_note(run->passes));
    }
    printf("step %.2f ms (%.2f .. %.2f), %.0f tokens/s, %.1f TFLOP/s", stat.median * 1e3,
           stat.min * 1e3, stat.max * 1e3, tokens / stat.median, 1e-12 * flops / stat.median);
    if (peak > 0.0) {
        printf(", MFU %.1f %% of %.0f", 100.0 * flops / stat.median / peak, 1e-12 * peak);
    }
    printf("; loss %.4f\n", run->loss);
}

int trainer_gpu_run(const trainer_gpu_params *params)
{
    gpu_run run    = {.p = params};
    int     result = 0;

    if (sherd_device_count("cuda") == 0) {
        printf("skipped: %s\n", sherd_last_error());
        return 77;
    }
    if (engine_open(&run) != SHERD_OK) {
        (void)fprintf(stderr, "bench-trainer: %s\n", sherd_last_error());
        result = -1;
    }
    if (result == 0) {
        result = model_open(&run);
    }
    if (result == 0) {
        result = steps_run(&run);
    }
    if (result == 0) {
        report_print(&run);
    }
    run_close(&run);
    return result == 0 ? 0 : 1;
}
