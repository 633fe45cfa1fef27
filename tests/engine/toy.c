/* The toy trainer, and the same training without an engine. See toy.h. */
#include "tests/engine/toy.h"

#include "collectives/world.h"
#include "tests/engine/elements.h"
#include "tests/engine/plain.h"
#include "tests/engine/rig.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#ifdef TOY_ON_STREAM
#include "emulator.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct toy_param {
    const char *name;
    int         unit;
    int         ndim;
    size_t      shape[2];
    int         is_frozen;
    int         group;
} toy_param;

/* The parameters of the toy. Unit 3 (the head) also reads the embedding, so that is tied. No size
 * is a round number. */
static const toy_param PARAMS[TOY_PARAMS] = {
    {"embed", 0, 2, {37, 11}, 0, 0},    {"layer1.w", 1, 2, {29, 31}, 0, 0},
    {"layer1.b", 1, 1, {29, 0}, 0, 1},  {"layer1.fixed", 1, 2, {13, 17}, 1, 0},
    {"layer2.w", 2, 2, {67, 5}, 0, 0},  {"layer2.scale", 2, 0, {0, 0}, 0, 1},
    {"layer2.one", 2, 1, {1, 0}, 0, 0}, {"head.w", 3, 2, {3, 129}, 0, 0},
    {"head.b", 3, 1, {3, 0}, 0, 1},
};

static const char *const UNITS[TOY_UNITS] = {"embedding", "layer1", "layer2", "head"};

#ifdef TEST_EMULATED
static const int IS_EMULATED = 1;
#else
static const int IS_EMULATED = 0;
#endif

int toy_takes_ranks(int world_size)
{
    if (getenv("SHERD_BACKEND") == NULL || test_is_long()) {
        return 1;
    }
    return world_size == 3 || (world_size == 1 && !IS_EMULATED);
}

int toy_takes_stage(int stage, int least, int row)
{
    int is_real_device = !IS_EMULATED && getenv("SHERD_BACKEND") != NULL;

    return is_real_device || test_is_long() || stage == least + row % (4 - least);
}

static size_t param_elems(const toy_param *param)
{
    size_t elems = 1;

    for (int i = 0; i < param->ndim; i++) {
        elems *= param->shape[i];
    }
    return elems;
}

/* Returns the type in which the trainer reads the parameter. */
static sherd_dtype param_dtype(const toy_options *options, size_t p)
{
    return options->wide >> p & 1 ? SHERD_F32 : options->dtype;
}

static float noise(uint64_t stream, uint64_t index)
{
    uint64_t state = stream * 0x100000001b3u + index;

    return test_random_float(&state);
}

/* Returns the gradient of micro-batch n, times the loss scale. It depends on the weight, so a wrong
 * weight shows in every later step. */
static float micro_gradient(int64_t n, size_t param, size_t index, float weight, float loss_scale)
{
    float g = noise(1000 + (uint64_t)n * TOY_PARAMS + param, index) + 0.25f * weight;

    return g * loss_scale;
}

sherd_status toy_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    size_t param = (size_t)(uintptr_t)ctx;

    for (size_t i = 0; i < count_elems; i++) {
        out[i] = noise(param, first_elem + i);
    }
    return SHERD_OK;
}

static plain_kind kind_of(const toy_options *options)
{
    return options->lamb == 0 ? options->kind : options->lamb == 1 ? PLAIN_LAMB : PLAIN_LAMB_PAPER;
}

const char *toy_json(const toy_options *options)
{
    static _Thread_local char json[2048];
    char                      fixed_scale[64];
    char                      comm[64] = "";
    const char *precision = options->dtype == SHERD_BF16  ? ", \"bf16\": {\"enabled\": true}"
                            : options->dtype != SHERD_F16 ? ""
                            : options->loss_scale != 0
                                ? fixed_scale
                                : ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 6}";

    (void)snprintf(fixed_scale, sizeof(fixed_scale),
                   ", \"fp16\": {\"enabled\": true, \"loss_scale\": %g}", options->loss_scale);
    if (options->comm != NULL) {
        (void)snprintf(comm, sizeof(comm), ", \"communication_data_type\": \"%s\"", options->comm);
    }
    (void)snprintf(
        json, sizeof(json),
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d,"
        "\"gradient_clipping\": %g, \"optimizer\": {\"type\": %s"
        "\"lr\": 0.01, \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1%s}},"
        "\"zero_optimization\": {\"stage\": %d, \"stage3_param_persistence_threshold\": 4%s}"
        "%s%s%s%s}",
        options->accumulation, options->clip, plain_type(kind_of(options)),
        options->lamb == 2 ? ", \"max_coeff\": 2.5" : "", options->stage,
        options->zero_extra == NULL ? "" : options->zero_extra, precision, comm,
        options->top_extra == NULL ? "" : options->top_extra,
        rig_state_keys(options->dtype, options->top_extra));
    return json;
}

void toy_declare(sherd_engine *engine, sherd_unit *units, sherd_param *params)
{
    toy_declare_wide(engine, 0, units, params);
}

void toy_declare_wide(sherd_engine *engine, unsigned wide, sherd_unit *units, sherd_param *params)
{
    sherd_group_params group;
    sherd_group        bias_group;

    sherd_group_params_init(&group);
    group.name         = "no decay";
    group.weight_decay = 0;
    group.lr           = 0.02;
    group.exclude_1d   = 1;
    CHECK_OK(sherd_group_add(engine, &group, &bias_group));
    CHECK_INT(1, bias_group);
    for (int u = 0; u < TOY_UNITS; u++) {
        sherd_unit_params unit;

        sherd_unit_params_init(&unit);
        unit.name = UNITS[u];
        CHECK_OK(sherd_unit_add(engine, &unit, &units[u]));
    }
    for (int p = 0; p < TOY_PARAMS; p++) {
        sherd_param_params param;

        sherd_param_params_init(&param);
        param.name   = PARAMS[p].name;
        param.ndim   = PARAMS[p].ndim;
        param.group  = PARAMS[p].group;
        param.frozen = PARAMS[p].is_frozen;
        param.dtype  = wide >> p & 1 ? SHERD_F32 : -1;
        memcpy(param.shape, PARAMS[p].shape, sizeof(PARAMS[p].shape));
        CHECK_OK(sherd_param_add(engine, units[PARAMS[p].unit], &param, &params[p]));
    }
    CHECK_OK(sherd_unit_reads(engine, units[3], params[0]));
}

/* ----------------------------------------------------------- on the engine -- */

typedef struct toy {
    sherd_engine      *engine;
    sherd_world       *world;
    sherdi_mem         mem; /* counts the bound memory */
    const toy_options *options;
    sherd_unit         units[TOY_UNITS];
    sherd_param        params[TOY_PARAMS];
    void              *bound_data[TOY_PARAMS], *bound_grad[TOY_PARAMS];
} toy;

#define MOST_ELEMS 1024

/* What the trainer computes with one parameter, on memory that the engine handed out. */
typedef struct toy_work {
    const toy  *t;
    size_t      p;
    const void *data;
    void       *grad; /* NULL: the work only reads */
    int64_t     n;
    float       loss_scale;
} toy_work;

static void work_run(const toy_work *work, const void *data, void *grad)
{
    sherd_dtype dtype = param_dtype(work->t->options, work->p);

    for (size_t i = 0; i < param_elems(&PARAMS[work->p]); i++) {
        float weight = load(data, i, dtype);

        CHECK(isfinite(weight));
        if (grad != NULL) {
            float g = micro_gradient(work->n, work->p, i, weight, work->loss_scale);

            store(grad, i, dtype, load(grad, i, dtype) + g);
        }
    }
}

#ifdef TOY_ON_STREAM
/* Does the work as a kernel would, when the engine's stream comes to it. */
static void work_on_stream(void *raw)
{
    toy_work *work = raw;

    work_run(work, work->data, work->grad);
    free(work);
}

static void work_do(toy *t, const toy_work *what)
{
    cudaStream_t stream = sherd_engine_stream(t->engine);
    toy_work    *work   = malloc(sizeof(*work));

    CHECK(work != NULL && stream != NULL);
    *work = *what;
    CHECK_INT(cudaSuccess, emulator_call(stream, work_on_stream, work));
}
#else
/* Does the work on the host, with copies, wherever the memory is. */
static void work_do(toy *t, const toy_work *work)
{
    size_t len =
        param_elems(&PARAMS[work->p]) * sherd_dtype_bytes(param_dtype(t->options, work->p));
    float data[MOST_ELEMS], grad[MOST_ELEMS];

    CHECK_OK(sherd_copy(t->engine, data, work->data, len));
    if (work->grad != NULL) {
        CHECK_OK(sherd_copy(t->engine, grad, work->grad, len));
    }
    work_run(work, data, work->grad == NULL ? NULL : grad);
    if (work->grad != NULL) {
        CHECK_OK(sherd_copy(t->engine, work->grad, grad, len));
    }
}
#endif

static void add_gradient(toy *t, size_t p, int64_t n, float loss_scale)
{
    toy_work work = {.t          = t,
                     .p          = p,
                     .data       = sherd_param_data(t->engine, t->params[p]),
                     .grad       = sherd_param_grad(t->engine, t->params[p]),
                     .n          = n,
                     .loss_scale = loss_scale};

    CHECK(work.data != NULL && work.grad != NULL);
    work_do(t, &work);
}

static void read_all(toy *t, int unit)
{
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        toy_work work = {.t = t, .p = p};

        if (PARAMS[p].unit != unit && !(unit == 3 && p == 0)) {
            continue;
        }
        work.data = sherd_param_data(t->engine, t->params[p]);
        CHECK(work.data != NULL);
        work_do(t, &work);
    }
}

static void pass_forward(toy *t, sherd_pass pass)
{
    for (int u = 0; u < TOY_UNITS; u++) {
        CHECK_OK(sherd_unit_acquire(t->engine, t->units[u], pass));
        read_all(t, u);
        CHECK_OK(sherd_unit_release(t->engine, t->units[u], pass));
    }
}

static void pass_backward(toy *t, int64_t n)
{
    static const int ORDER[2][TOY_UNITS] = {{3, 2, 1, 0}, {3, 1, 2, 0}};
    float            loss_scale          = sherd_loss_scale(t->engine);

    for (int i = 0; i < TOY_UNITS; i++) {
        int u = ORDER[t->options->is_off_plan != 0][i];

        if (t->options->skips_unit && u == 2) {
            continue;
        }
        if (t->options->has_recompute) {
            CHECK_OK(sherd_unit_acquire(t->engine, t->units[u], SHERD_FORWARD));
            read_all(t, u);
            CHECK_OK(sherd_unit_release(t->engine, t->units[u], SHERD_FORWARD));
        }
        CHECK_OK(sherd_unit_acquire(t->engine, t->units[u], SHERD_BACKWARD));
        if (u == 3) {
            /* The head is tied: it adds to the embedding's gradient first. */
            add_gradient(t, 0, n, loss_scale);
        }
        for (size_t p = 0; p < TOY_PARAMS; p++) {
            if (PARAMS[p].unit == u && !PARAMS[p].is_frozen) {
                add_gradient(t, p, n, loss_scale);
            }
        }
        CHECK_OK(sherd_unit_release(t->engine, t->units[u], SHERD_BACKWARD));
    }
}

static int window_of(const toy_options *options, int step)
{
    return options->short_window && step == TOY_STEPS - 1 ? 1 : options->accumulation;
}

/* Allocates memory of the trainer's own, in the same space as the engine's. */
static void *bound_memory(toy *t, size_t p)
{
    return ways_alloc(t->world, &t->mem,
                      param_elems(&PARAMS[p]) * sherd_dtype_bytes(param_dtype(t->options, p)));
}

static void toy_open(toy *t, sherd_world *world, const toy_options *options)
{
    const char   *json = toy_json(options);
    sherd_config *config;

    memset(t, 0, sizeof(*t));
    sherdi_mem_init(&t->mem);
    t->options = options;
    t->world   = world;
    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_OK(sherd_engine_create(world, config, &t->engine));
    sherd_config_destroy(config);
    toy_declare_wide(t->engine, options->wide, t->units, t->params);
    for (size_t p = 0; p < TOY_PARAMS && options->is_bound; p++) {
        t->bound_data[p] = bound_memory(t, p);
        t->bound_grad[p] = bound_memory(t, p);
        CHECK_OK(sherd_param_bind(t->engine, t->params[p], t->bound_data[p],
                                  PARAMS[p].is_frozen ? NULL : t->bound_grad[p]));
    }
    CHECK_OK(sherd_engine_seal(t->engine));
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        CHECK_OK(sherd_param_fill(t->engine, t->params[p], toy_fill, (void *)(uintptr_t)p));
    }
}

static void toy_close(toy *t)
{
    sherd_engine_destroy(t->engine);
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        ways_free(t->world, t->bound_data[p]);
        ways_free(t->world, t->bound_grad[p]);
    }
}

static void toy_step(toy *t, int is_queued, sherd_step_report *report)
{
    if (!is_queued) {
        CHECK_OK(sherd_step(t->engine, report));
        return;
    }
    CHECK_OK(sherd_step_queue(t->engine));
    CHECK_OK(sherd_step_wait(t->engine, report));
}

void toy_train(sherd_world *world, const toy_options *options, toy_result *out)
{
    int64_t  micro = 0;
    uint64_t received;
    uint64_t sent_before;
    uint64_t recomputed;
    toy      t;

    toy_open(&t, world, options);
    /* This starts the engine, whose traffic is not counted. */
    CHECK_OK(sherd_engine_fingerprint(t.engine, &recomputed));
    sherd_world_traffic(world, &sent_before, &received);
    for (int step = 0; step < TOY_STEPS; step++) {
        int               window = window_of(options, step);
        sherd_step_report report = {0};

        for (int k = 0; k < window; k++, micro++) {
            sherd_step_report_init(&report);
            pass_forward(&t, SHERD_FORWARD);
            pass_backward(&t, micro * sherd_world_size(world) + sherd_world_rank(world));
            if (k == window - 1 && window < options->accumulation) {
                CHECK_OK(sherd_step_close_window(t.engine));
            }
            toy_step(&t, step % 2 == 1 && k == window - 1, &report);
            CHECK_INT(k == window - 1, report.is_boundary);
        }
        CHECK_INT(1, report.was_updated);
        CHECK_INT(step + 1, report.step);
        out->grad_norm[step] = report.grad_norm;
        out->fingerprint     = report.fingerprint;
        for (int p = 0; p < TOY_PARAMS && options->tells_params; p++) {
            CHECK_OK(
                sherd_param_fingerprint(t.engine, t.params[p], &out->param_fingerprints[step][p]));
        }
        if (options->has_eval) {
            pass_forward(&t, SHERD_EVAL);
            pass_forward(&t, SHERD_EVAL);
        }
    }
    sherd_world_traffic(world, &out->sent_bytes, &received);
    out->sent_bytes -= sent_before;
    CHECK_OK(sherd_engine_fingerprint(t.engine, &recomputed));
    CHECK_INT(out->fingerprint, recomputed);
    out->memory.struct_size = sizeof(out->memory);
    CHECK_OK(sherd_engine_memory(t.engine, &out->memory));
    toy_close(&t);
}

typedef struct threads_job {
    const toy_options *options;
    toy_result         results[64];
} threads_job;

static void train_rank(sherd_world *world, void *raw)
{
    threads_job *job = raw;

    toy_train(world, job->options, &job->results[sherd_world_rank(world)]);
}

void toy_train_threads(int world_size, const toy_options *options, toy_result *out)
{
    threads_job job = {.options = options};

    test_world(world_size, train_rank, &job);
    for (int r = 1; r < world_size; r++) {
        CHECK_INT(job.results[0].fingerprint, job.results[r].fingerprint);
        CHECK_BYTES_EQUAL(job.results[0].grad_norm, job.results[r].grad_norm,
                          sizeof(job.results[0].grad_norm));
    }
    *out = job.results[0];
}

/* ------------------------------------------------------------- unsharded -- */

/* Returns the gradient that a rank makes in one micro-batch, rounded as the type of its memory
 * rounds. */
static float rank_gradient(const toy_options *options, const plain_param *param, size_t p, size_t i,
                           int64_t n, float loss_scale)
{
    sherd_dtype dtype = param_dtype(options, p);
    float       g     = plain_round(micro_gradient(n, p, i, param->weight[i], loss_scale), dtype);

    if (options->skips_unit && PARAMS[p].unit == 2) {
        return 0;
    }
    if (p == 0) { /* the embedding is used twice */
        g = plain_round(g + micro_gradient(n, p, i, param->weight[i], loss_scale), dtype);
    }
    return g;
}

/* Returns the type to which a reduction rounds. */
static sherd_dtype comm_dtype(const toy_options *options, size_t p)
{
    return options->comm == NULL                ? param_dtype(options, p)
           : strcmp(options->comm, "fp32") == 0 ? SHERD_F32
           : strcmp(options->comm, "bf16") == 0 ? SHERD_BF16
                                                : SHERD_F16;
}

/* Reduces a window's gradient: stages 2 and 3 reduce in every micro-batch and add the results;
 * stages 0 and 1 add on each rank and reduce once. */
static float window_gradient(const toy_options *options, const plain_param *param, size_t p,
                             size_t i, int world_size, int64_t first_micro, int window,
                             float loss_scale)
{
    sherd_dtype comm    = comm_dtype(options, p);
    int         is_late = options->stage < 2 && options->accumulation > 1;
    float       total   = 0;
    float       own[64];

    memset(own, 0, sizeof(own));
    for (int k = 0; k < window; k++) {
        float g[64] = {0};

        for (int r = 0; r < world_size; r++) {
            g[r] =
                rank_gradient(options, param, p, i, (first_micro + k) * world_size + r, loss_scale);
            own[r] = k == 0 ? g[r] : own[r] + g[r];
            g[r]   = plain_round(g[r], comm); /* rounded as it is sent, if that type is narrower */
        }
        if (!is_late) {
            float mean = plain_mean(g, world_size, comm);

            total = k == 0 ? mean : total + mean;
        }
    }
    if (is_late) {
        for (int r = 0; r < world_size; r++) {
            own[r] = plain_round(own[r], comm);
        }
        total = plain_mean(own, world_size, comm);
    }
    return total;
}

static int is_deterministic(const toy_options *options)
{
    return options->top_extra != NULL && strstr(options->top_extra, "deterministic") != NULL;
}

/* Adds a window's gradients as integers, as the deterministic mode does; `count` is the
 * micro-batches of all ranks. */
static float window_gradient_fixed(const toy_options *options, const plain_param *param, size_t p,
                                   size_t i, int64_t first_micro, int count, int shift,
                                   float loss_scale)
{
    int64_t sum = 0;

    for (int k = 0; k < count; k++) {
        float g = rank_gradient(options, param, p, i, first_micro + k, loss_scale);

        sum += plain_fixed(g, loss_scale, shift, 1);
    }
    return (float)(double)sum;
}

void toy_difference(const toy_result *want, const toy_result *got, char *text, size_t len_bytes)
{
    for (int step = 0; step < TOY_STEPS; step++) {
        for (int p = 0; p < TOY_PARAMS; p++) {
            if (want->param_fingerprints[step][p] != got->param_fingerprints[step][p]) {
                (void)snprintf(text, len_bytes, "step %d, unit %s, parameter %s", step + 1,
                               UNITS[PARAMS[p].unit], PARAMS[p].name);
                return;
            }
        }
    }
    (void)snprintf(text, len_bytes, "no parameter; only what the steps report");
}

static plain_rule plain_rule_of(const toy_options *options)
{
    return (plain_rule){.kind      = kind_of(options),
                        .beta1     = 0.9,
                        .beta2     = 0.95,
                        .eps       = 1e-8,
                        .max_coeff = options->lamb == 2 ? 2.5 : 10};
}

static void plain_params_open(plain_param *params, const toy_options *options)
{
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        plain_param *param = &params[p];

        plain_param_init(param, param_elems(&PARAMS[p]));
        param->dtype        = param_dtype(options, p);
        param->is_frozen    = PARAMS[p].is_frozen;
        param->lr           = PARAMS[p].group == 1 ? 0.02 : 0.01;
        param->decay        = PARAMS[p].group == 1 ? 0 : 0.1;
        param->has_no_ratio = PARAMS[p].group == 1 && PARAMS[p].ndim <= 1;
        (void)toy_fill((void *)(uintptr_t)p, 0, param->elems, param->master);
        for (size_t i = 0; i < param->elems; i++) {
            param->weight[i] = plain_round(param->master[i], param->dtype);
        }
    }
}

void toy_reference(int world_size, const toy_options *options, toy_result *out)
{
    plain_param params[TOY_PARAMS];
    plain_rule  rule       = plain_rule_of(options);
    int64_t     micro      = 0;
    double      loss_scale = options->dtype != SHERD_F16 ? 1
                             : options->loss_scale != 0  ? options->loss_scale
                                                         : 64;

    plain_params_open(params, options);
    for (int step = 0; step < TOY_STEPS; step++) {
        int    window  = window_of(options, step);
        double unscale = 1 / (loss_scale * window);
        int    shift   = plain_fixed_shift(world_size * options->accumulation);
        double norm;
        double clip = 1;

        if (is_deterministic(options)) {
            unscale = ldexp(1, -shift) / ((double)world_size * window);
        }

        for (size_t p = 0; p < TOY_PARAMS; p++) {
            for (size_t i = 0; i < param_elems(&PARAMS[p]) && !PARAMS[p].is_frozen; i++) {
                if (is_deterministic(options)) {
                    params[p].grad[i] =
                        window_gradient_fixed(options, &params[p], p, i, micro * world_size,
                                              window * world_size, shift, (float)loss_scale);
                    continue;
                }
                params[p].grad[i] = window_gradient(options, &params[p], p, i, world_size, micro,
                                                    window, (float)loss_scale);
            }
        }
        norm = sqrt(plain_sumsq(params, TOY_PARAMS)) * unscale;
        if (options->clip > 0 && options->clip / (norm + 1e-6) < 1) {
            clip = options->clip / (norm + 1e-6);
        }
        for (size_t p = 0; p < TOY_PARAMS; p++) {
            if (!PARAMS[p].is_frozen) {
                plain_update(&params[p], &rule, clip * unscale, step + 1);
            }
        }
        out->grad_norm[step] = norm;
        for (size_t p = 0; p < TOY_PARAMS && options->tells_params; p++) {
            out->param_fingerprints[step][p] = plain_param_fingerprint(params, p);
        }
        micro += window;
    }
    out->fingerprint = plain_fingerprint(params, TOY_PARAMS);
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        plain_param_fini(&params[p]);
    }
}
