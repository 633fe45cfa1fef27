/* bench-trainer: a training step of the example's model on one rank against the matrix products in
 * it at the same shapes on other memory, done in two ways: cut over the trainer's own threads, and
 * whole with the threads of OpenBLAS. All take turns; the ratio is taken inside each round, to the
 * way whose median is better: OpenBLAS's threads wait for each other without sleeping, so that on
 * a machine with other work they may take many times as long. 1 would be a step that costs nothing
 * but its products. With --backend cuda the step alone, on a GPU: trainer_gpu.c. */
#include "bench/options.h"
#include "bench/timing.h"
#include "bench/trainer_gpu.h"

#include "models/blas.h"
#include "models/clock.h"
#include "trainer/declare.h"
#include "trainer/passes.h"
#include "trainer/gemm.h"
#include "trainer/init.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_options {
    arch            sizes;
    size_t          batch, length, rounds;
    int             threads;
    int             stage;
    const char     *precision;
    int             is_gpu, is_recomputed;
    compute_choices choices; /* of a GPU */
    const char     *offload;
    double          peak_tflops;
} bench_options;

typedef struct bench_run {
    const bench_options *o;
    /* the trainer */
    sherd_world  *world;
    sherd_engine *engine;
    pool         *threads;
    passes       *passes;
    int32_t      *tokens;                         /* inputs, targets */
    double       *model_seconds, *update_seconds; /* parts of the step, one a call */
    size_t        num_steps;
    /* the products: memory of the same sizes */
    float *weights, *grads; /* of all parameters */
    float *x, *y;           /* [rows, the widest] */
    int    has_failed;
} bench_run;

enum { ROW_STEP, ROW_SPLIT, ROW_LIBRARY, NUM_ROWS };

/* ----------------------------------------------------------------- rows -- */

static void step_call(bench_run *run)
{
    const bench_options *o     = run->o;
    double               start = clock_now_s(), middle, loss;
    sherd_status         status;

    status = passes_train(run->passes, run->tokens, run->tokens + o->batch * o->length);
    if (status == SHERD_OK) {
        status = passes_losses_take(run->passes, &loss);
    }
    middle = clock_now_s();
    if (status == SHERD_OK) {
        status = sherd_step(run->engine, NULL);
    }
    if (status != SHERD_OK) {
        run->has_failed = 1;
    }
    run->model_seconds[run->num_steps]  = middle - start;
    run->update_seconds[run->num_steps] = clock_now_s() - middle;
    run->num_steps++;
}

/* One product, cut along its columns into as many parts as there are threads. */
typedef struct product {
    size_t      m, n, k, parts;
    float       alpha;
    gemm_matrix a, b;
    float      *c;
} product;

static void part_call(void *ctx, size_t part, int thread)
{
    const product *p     = ctx;
    size_t         each  = (p->n / 16 + p->parts - 1) / p->parts * 16;
    size_t         first = part * each;
    size_t         count = part + 1 == p->parts || first + each > p->n ? p->n - first : each;
    gemm_matrix    b     = p->b;

    (void)thread;
    if (first >= p->n) {
        return;
    }
    b.data += b.is_transposed ? first * b.stride : first;
    gemm(p->m, count, p->k, p->alpha, p->a, b, 0.0f, p->c + first, p->n);
}

static void product_call(const bench_run *run, product p, int by_library)
{
    p.parts = by_library ? 1 : (size_t)run->o->threads;
    pool_run(run->threads, p.parts, part_call, &p);
}

/* Forward, gradient of the input, gradient of the weight: y = x w^T, x = y w, dw = y^T x. */
static void products_of(const bench_run *run, size_t in, size_t out, const float *w, float *dw,
                        int by_library)
{
    size_t      rows    = run->o->batch * run->o->length;
    gemm_matrix x       = {.data = run->x, .stride = in};
    gemm_matrix y       = {.data = run->y, .stride = out};
    gemm_matrix weight  = {.data = w, .stride = in};
    product     forward = {rows, out, in, 1, 1.0f, x, weight, run->y};
    product     input   = {rows, in, out, 1, 1e-6f, y, weight, run->x};
    product     grad    = {out, in, rows, 1, 1e-6f, y, x, dw};

    forward.b.is_transposed = 1;
    grad.a.is_transposed    = 1;
    product_call(run, forward, by_library);
    product_call(run, input, by_library);
    product_call(run, grad, by_library);
}

static void products_call(const bench_run *run, int by_library)
{
    size_t offset = 0;

    for (size_t k = 0; k < arch_param_count(&run->o->sizes); k++) {
        arch_param param;

        arch_param_get(&run->o->sizes, k, &param);
        if (arch_is_product(&run->o->sizes, &param)) {
            products_of(run, param.shape[1], param.shape[0], run->weights + offset,
                        run->grads + offset, by_library);
        }
        offset += arch_param_elems(&param);
    }
}

static void row_call(void *ctx, size_t row)
{
    const bench_run *run = ctx;

    switch (row) {
    case ROW_STEP:
        step_call(ctx);
        return;
    case ROW_SPLIT:
        products_call(run, 0);
        return;
    default:
        blas_threads_set(run->o->threads);
        products_call(run, 1);
        blas_threads_set(1);
    }
}

/* --------------------------------------------------------------- set-up -- */

static sherd_status engine_open(bench_run *run)
{
    const bench_options *o = run->o;
    sherd_config        *config;
    char                 json[512], block[64] = "";
    sherd_status         status;

    if (strcmp(o->precision, "fp32") != 0) {
        (void)snprintf(block, sizeof(block), "\"%s\": {\"enabled\": true},", o->precision);
    }
    (void)snprintf(json, sizeof(json),
                   "{\"train_micro_batch_size_per_gpu\": %zu, %s"
                   " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},"
                   " \"zero_optimization\": {\"stage\": %d}}",
                   o->batch, block, o->stage);
    status = sherd_config_parse(json, strlen(json), &config);
    if (status != SHERD_OK) {
        return status;
    }
    status = sherd_world_self(&run->world);
    if (status == SHERD_OK) {
        status = sherd_engine_create(run->world, config, &run->engine);
    }
    sherd_config_destroy(config);
    if (status == SHERD_OK) {
        status = arch_declare(&o->sizes, run->engine);
    }
    if (status == SHERD_OK) {
        status = sherd_engine_seal(run->engine);
    }
    run->threads = pool_create(o->threads);
    if (status == SHERD_OK && run->threads == NULL) {
        status = SHERD_E_NOMEM;
    }
    return status == SHERD_OK ? init_fill(&o->sizes, run->engine, 1, run->threads) : status;
}

static size_t widest_of(const arch *sizes)
{
    size_t widest = 0;

    for (size_t k = 0; k < arch_param_count(sizes); k++) {
        arch_param param;

        arch_param_get(sizes, k, &param);
        widest = param.shape[0] > widest ? param.shape[0] : widest;
        widest = param.shape[1] > widest ? param.shape[1] : widest;
    }
    return widest;
}

/* Small values all over: zeros would be easier on the machine than a model is. */
static float *values_make(size_t count)
{
    float *values = malloc(count * sizeof(*values));

    for (size_t i = 0; values != NULL && i < count; i++) {
        values[i] = 0.01f * (float)((i * 2654435761u >> 16) % 199) - 1.0f;
    }
    return values;
}

static int memory_make(bench_run *run)
{
    const bench_options *o    = run->o;
    size_t               rows = o->batch * o->length, elems = arch_elems(&o->sizes);
    char                 why[256];
    sherd_engine_info    info   = {.struct_size = sizeof(info)};
    model_params         params = {.sizes = o->sizes, .batch = o->batch, .length = o->length};

    if (sherd_engine_query(run->engine, &info) != SHERD_OK) {
        return -1;
    }
    params.threads      = run->threads;
    params.dtype        = info.compute_dtype;
    run->passes         = passes_create(run->engine, &params, why, sizeof(why));
    run->tokens         = calloc(2 * rows, sizeof(*run->tokens));
    run->weights        = values_make(elems);
    run->grads          = values_make(elems);
    run->x              = values_make(rows * widest_of(&o->sizes));
    run->y              = values_make(rows * widest_of(&o->sizes));
    run->model_seconds  = calloc(o->rounds + 1, sizeof(double));
    run->update_seconds = calloc(o->rounds + 1, sizeof(double));
    if (run->passes == NULL || run->tokens == NULL || run->weights == NULL || run->grads == NULL ||
        run->x == NULL || run->y == NULL || run->model_seconds == NULL ||
        run->update_seconds == NULL) {
        return -1;
    }
    for (size_t i = 0; i < 2 * rows; i++) {
        run->tokens[i] = (int32_t)(i * 2654435761u % o->sizes.vocab);
    }
    return 0;
}

static void run_close(bench_run *run)
{
    passes_destroy(run->passes);
    sherd_engine_destroy(run->engine);
    sherd_world_destroy(run->world);
    pool_destroy(run->threads);
    free(run->tokens);
    free(run->weights);
    free(run->grads);
    free(run->x);
    free(run->y);
    free(run->model_seconds);
    free(run->update_seconds);
}

/* --------------------------------------------------------------- report -- */

static double flops_of(const bench_options *o)
{
    double products = 0.0;

    for (size_t k = 0; k < arch_param_count(&o->sizes); k++) {
        arch_param param;

        arch_param_get(&o->sizes, k, &param);
        products += arch_is_product(&o->sizes, &param) ? (double)arch_param_elems(&param) : 0.0;
    }
    return 6.0 * products * (double)(o->batch * o->length);
}

static void line_print(const char *name, double *values, size_t count, double flops)
{
    bench_stat stat = bench_stat_of(values, count);

    printf("%-28s %8.1f ms  (%.1f .. %.1f)", name, stat.median * 1e3, stat.min * 1e3,
           stat.max * 1e3);
    if (flops > 0.0) {
        printf("  %6.1f GFLOP/s", flops / stat.median * 1e-9);
    }
    printf("\n");
}

static void report_print(bench_run *run, const double *seconds)
{
    size_t  rounds = run->o->rounds;
    double *model = run->model_seconds, *column = calloc((NUM_ROWS + 1) * rounds, sizeof(*column));
    double  flops = flops_of(run->o), *ratio;
    char    blas[256];
    size_t  better;

    if (column == NULL) {
        return;
    }
    for (size_t i = 0; i < rounds; i++) {
        for (size_t row = 0; row < NUM_ROWS; row++) {
            column[row * rounds + i] = seconds[i * NUM_ROWS + row];
        }
    }
    printf("products by %s\n", blas_describe(blas));
    line_print("step", column, rounds, flops);
    line_print("  forward and backward", model + 1, rounds, flops); /* the first was a trial */
    line_print("  update", run->update_seconds + 1, rounds, 0.0);
    line_print("products on our threads", column + ROW_SPLIT * rounds, rounds, flops);
    line_print("products on OpenBLAS's", column + ROW_LIBRARY * rounds, rounds, flops);
    better = bench_stat_of(column + ROW_SPLIT * rounds, rounds).median <=
                     bench_stat_of(column + ROW_LIBRARY * rounds, rounds).median
                 ? ROW_SPLIT
                 : ROW_LIBRARY;
    ratio  = column + NUM_ROWS * rounds;
    for (size_t i = 0; i < rounds; i++) {
        ratio[i] = seconds[i * NUM_ROWS + better] / seconds[i * NUM_ROWS + ROW_STEP];
    }
    printf("ratio products / step        %8.3f\n", bench_stat_of(ratio, rounds).median);
    free(column);
}

/* ------------------------------------------------------------------ main -- */

static void options_read(int argc, char **argv, bench_options *o)
{
    const char        *arch_name = "gpt2";
    const char        *preset    = "124m";
    const char        *backend   = "cpu";
    const char        *attention = "auto";
    const bench_option rows[]    = {
           {"backend", "NAME", "cpu (default) or cuda", BENCH_TEXT, .value = &backend,
            .choices = "cpu|cuda"},
           {"arch", "NAME", ARCH_KIND_NAMES " (default: gpt2)", BENCH_TEXT, .value = &arch_name},
           {"preset", "NAME", "sizes of the model (default: 124m)", BENCH_TEXT, .value = &preset},
           {"batch", "N", "sequences (default: 4; cuda: 32)", BENCH_SIZE, .value = &o->batch,
            .least = 1},
           {"length", "N", "tokens of a sequence (default: 64; cuda: 1024)", BENCH_SIZE,
            .value = &o->length, .least = 1},
           {"threads", "N", "threads of the step and of OpenBLAS (default: 2)", BENCH_INT,
            .value = &o->threads, .least = 1, .most = POOL_MAX_THREADS},
           {"stage", "N", "ZeRO stage (default: 0)", BENCH_INT, .value = &o->stage, .most = 3},
           {"precision", "TYPE", "fp32 (default), bf16 (default of cuda) or fp16", BENCH_TEXT,
            .value = &o->precision, .choices = "fp32|bf16|fp16"},
           {"rounds", "N", "rounds (default: 7; cuda: 20 steps)", BENCH_SIZE, .value = &o->rounds,
            .least = 1},
           {"offload", "TIER", "cuda: where optimizer state rests, none (default) or cpu", BENCH_TEXT,
            .value = &o->offload, .choices = "none|cpu"},
           {"recompute", NULL, "cuda: compute activations again in backward", BENCH_SWITCH,
            .value = &o->is_recomputed},
           {"attention", "NAME", "cuda: auto (default), own or cudnn", BENCH_TEXT, .value = &attention,
            .choices = "auto|own|cudnn"},
           {"logits-rows", "N", "cuda: tokens whose logits exist at a time (default: by their memory)",
            BENCH_INT, .value = &o->choices.logits_rows, .most = 1 << 30},
           {"tune", "N", "cuda: kernels that are timed for each product (default: 0)", BENCH_INT,
            .value = &o->choices.tune, .most = 16},
           {"tuned", "FILE", "cuda: file of what was timed (default: in the user's cache)", BENCH_TEXT,
            .value = &o->choices.tuned},
           {"graphs", NULL, "cuda: launch the pass of a unit as one graph", BENCH_SWITCH,
            .value = &o->choices.is_graphed},
           {"peak-tflops", "N", "cuda: peak of the device in TFLOPS (default: by its name)",
            BENCH_REAL, .value = &o->peak_tflops}};
    const bench_command command =
        BENCH_COMMAND("trainer",
                      "Times a training step on one rank, and its matrix products in OpenBLAS "
                      "alone; on a GPU tells "
                      "tokens per second and their share of its peak (MFU). Times are medians.",
                      rows);
    arch_kind kind;

    *o = (bench_options){.threads = 2, .offload = "none"};
    (void)bench_options_read(&command, argc, argv);
    o->is_gpu = strcmp(backend, "cuda") == 0;
    (void)compute_attention_find(attention, &o->choices.attention);
    o->batch  = o->batch > 0 ? o->batch : o->is_gpu ? 32 : 4;
    o->length = o->length > 0 ? o->length : o->is_gpu ? 1024 : 64;
    o->rounds = o->rounds > 0 ? o->rounds : o->is_gpu ? 20 : 7;
    if (o->precision == NULL) {
        o->precision = o->is_gpu ? "bf16" : "fp32";
    }
    if (arch_kind_find(arch_name, &kind) != 0 || arch_preset(kind, preset, &o->sizes) != 0) {
        bench_options_refuse(&command, "there is no --arch %s with --preset %s", arch_name, preset);
    }
    if (o->length > o->sizes.max_length) {
        bench_options_refuse(&command, "--length %zu is more than the %zu tokens of --preset %s",
                             o->length, (size_t)o->sizes.max_length, preset);
    }
}

int main(int argc, char **argv)
{
    bench_options o;
    bench_run     run    = {.o = &o};
    int           result = 0;
    char          threads[16];
    double       *seconds;

    options_read(argc, argv, &o);
    bench_print_machine(argc, argv);
    if (o.is_gpu) {
        return trainer_gpu_run(&(trainer_gpu_params){.sizes         = o.sizes,
                                                     .batch         = o.batch,
                                                     .length        = o.length,
                                                     .steps         = o.rounds,
                                                     .stage         = o.stage,
                                                     .precision     = o.precision,
                                                     .offload       = o.offload,
                                                     .is_recomputed = o.is_recomputed,
                                                     .choices       = o.choices,
                                                     .peak_tflops   = o.peak_tflops});
    }
    (void)snprintf(threads, sizeof(threads), "%d", o.threads);
    (void)setenv("SHERD_THREADS", threads, 1); /* for the engine's kernels */
    (void)blas_open();
    seconds = calloc(o.rounds * NUM_ROWS, sizeof(*seconds));
    if (seconds == NULL || engine_open(&run) != SHERD_OK || memory_make(&run) != 0) {
        (void)fprintf(stderr, "bench-trainer: %s\n", sherd_last_error());
        result = 1;
    } else {
        bench_rounds(o.rounds, NUM_ROWS, row_call, &run, seconds);
        result = run.has_failed;
        if (run.has_failed) {
            (void)fprintf(stderr, "bench-trainer: %s\n", sherd_last_error());
        } else {
            report_print(&run, seconds);
        }
    }
    free(seconds);
    run_close(&run);
    return result;
}
