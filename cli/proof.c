/* The training run of `sherd test`. See proof.h. The gradient of an element is a function of the
 * number of the micro-batch, the element and its weight. So a wrong weight anywhere changes every
 * later step, and no rank needs data. */
#include "cli/proof.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUM_UNITS  4
#define NUM_PARAMS 8

typedef struct proof_param {
    const char *name;
    int         unit;
    size_t      rows, columns; /* columns is 0 for one dimension */
    int         is_frozen;
} proof_param;

/* No number of ranks divides these sizes. The head reads the embedding. */
static const proof_param PARAMS[NUM_PARAMS] = {
    {"embedding", 0, 257, 31, 0},  {"first.weight", 1, 129, 67, 0},  {"first.bias", 1, 129, 0, 0},
    {"first.fixed", 1, 19, 23, 1}, {"second.weight", 2, 71, 127, 0}, {"second.scale", 2, 1, 0, 0},
    {"head.weight", 3, 5, 509, 0}, {"head.bias", 3, 5, 0, 0},
};

static const char *const UNITS[NUM_UNITS] = {"embedding", "first", "second", "head"};

static size_t param_elems(const proof_param *param)
{
    return param->rows * (param->columns > 0 ? param->columns : 1);
}

/* Maps a counter to a number in (-1, 1), by splitmix64 (Steele, Lea, Flood 2014). */
static float noise(uint64_t stream, uint64_t index)
{
    uint64_t z = stream * 0x9e3779b97f4a7c15u + index;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (float)((double)(z >> 11) * 0x1p-52 - 1.0);
}

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = 0.1f * noise(1 + (uint64_t)(uintptr_t)ctx, first_elem + i);
    }
    return SHERD_OK;
}

/* ------------------------------------------------------ the compute types -- */

static float bits_to_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float load(const void *data, size_t i, sherd_dtype dtype)
{
    if (dtype == SHERD_BF16) {
        return bits_to_float((uint32_t)((const uint16_t *)data)[i] << 16);
    }
    return ((const float *)data)[i];
}

/* Adds to a gradient. In bf16 the sum is rounded to the nearest, ties to even. */
static void add(void *data, size_t i, sherd_dtype dtype, float value)
{
    float    sum = load(data, i, dtype) + value;
    uint32_t bits;

    if (dtype == SHERD_BF16) {
        memcpy(&bits, &sum, sizeof(bits));
        ((uint16_t *)data)[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    } else {
        ((float *)data)[i] = sum;
    }
}

/* ------------------------------------------------------------ the training -- */

/* Elements of the largest parameter. */
#define MOST_ELEMS 9024

typedef struct proof {
    const proof_layout *layout;
    sherd_engine       *engine;
    sherd_unit          units[NUM_UNITS];
    sherd_param         params[NUM_PARAMS];
    float               data[MOST_ELEMS], grad[MOST_ELEMS]; /* copies, in the compute type */
} proof;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        sherd_status try_status_ = (call);                                                         \
        if (try_status_ != SHERD_OK) {                                                             \
            return try_status_;                                                                    \
        }                                                                                          \
    } while (0)

static sherd_status vectors_group(const proof *p, sherd_group *out)
{
    sherd_group_params group;

    *out = SHERD_GROUP_DEFAULT;
    if (p->layout->optimizer->of_vectors == NULL) {
        return SHERD_OK;
    }
    sherd_group_params_init(&group);
    group.name      = "vectors";
    group.optimizer = p->layout->optimizer->of_vectors;
    return sherd_group_add(p->engine, &group, out);
}

static sherd_status declare(proof *p)
{
    sherd_group vectors;

    TRY(vectors_group(p, &vectors));
    for (int u = 0; u < NUM_UNITS; u++) {
        sherd_unit_params unit;

        sherd_unit_params_init(&unit);
        unit.name = UNITS[u];
        TRY(sherd_unit_add(p->engine, &unit, &p->units[u]));
    }
    for (int i = 0; i < NUM_PARAMS; i++) {
        sherd_param_params param;

        sherd_param_params_init(&param);
        param.name     = PARAMS[i].name;
        param.ndim     = PARAMS[i].columns > 0 ? 2 : 1;
        param.shape[0] = PARAMS[i].rows;
        param.shape[1] = PARAMS[i].columns;
        param.frozen   = PARAMS[i].is_frozen;
        param.group    = PARAMS[i].columns > 0 ? SHERD_GROUP_DEFAULT : vectors;
        TRY(sherd_param_add(p->engine, p->units[PARAMS[i].unit], &param, &p->params[i]));
    }
    return sherd_unit_reads(p->engine, p->units[3], p->params[0]);
}

static sherd_status proof_open(proof *p, sherd_world *world)
{
    const proof_layout *layout = p->layout;
    sherd_config       *config;
    sherd_status        status;
    char                json[2048];
    int                 len;

    len =
        snprintf(json, sizeof(json),
                 "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d,"
                 " \"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": %s}, \"deterministic\": %s,"
                 " \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01,"
                 " \"weight_decay\": 0.1%s}}, \"zero_optimization\": {\"stage\": %d,"
                 " \"stage3_param_persistence_threshold\": 8%s}}",
                 layout->accumulation, layout->dtype == SHERD_BF16 ? "true" : "false",
                 layout->is_deterministic ? "true" : "false", layout->optimizer->name,
                 layout->optimizer->params, layout->stage,
                 layout->zero_extra == NULL ? "" : layout->zero_extra);
    if (len < 0 || (size_t)len >= sizeof(json)) {
        return SHERD_E_INVAL;
    }
    TRY(sherd_config_parse(json, (size_t)len, &config));
    status = sherd_engine_create(world, config, &p->engine);
    sherd_config_destroy(config);
    TRY(status);
    TRY(declare(p));
    TRY(sherd_engine_seal(p->engine));
    for (int i = 0; i < NUM_PARAMS; i++) {
        TRY(sherd_param_fill(p->engine, p->params[i], fill, (void *)(uintptr_t)i));
    }
    return SHERD_OK;
}

/* Computes on the host, wherever the engine's memory is. */
static sherd_status add_gradient(proof *p, int i, int64_t micro)
{
    sherd_dtype dtype = p->layout->dtype;
    size_t      elems = param_elems(&PARAMS[i]);
    size_t      len   = elems * sherd_dtype_bytes(dtype);
    const void *data  = sherd_param_data(p->engine, p->params[i]);
    void       *grad  = sherd_param_grad(p->engine, p->params[i]);

    if (data == NULL || grad == NULL) {
        return SHERD_E_STATE;
    }
    TRY(sherd_copy(p->engine, p->data, data, len));
    TRY(sherd_copy(p->engine, p->grad, grad, len));
    for (size_t e = 0; e < elems; e++) {
        add(p->grad, e, dtype,
            noise(100 + (uint64_t)micro * NUM_PARAMS + (uint64_t)i, e) + load(p->data, e, dtype));
    }
    return sherd_copy(p->engine, grad, p->grad, len);
}

static sherd_status micro_batch(proof *p, int64_t micro)
{
    for (int u = 0; u < NUM_UNITS; u++) {
        TRY(sherd_unit_acquire(p->engine, p->units[u], SHERD_FORWARD));
        TRY(sherd_unit_release(p->engine, p->units[u], SHERD_FORWARD));
    }
    for (int u = NUM_UNITS - 1; u >= 0; u--) {
        TRY(sherd_unit_acquire(p->engine, p->units[u], SHERD_BACKWARD));
        if (u == 3) {
            TRY(add_gradient(p, 0, micro)); /* the head's share of the tied embedding's gradient */
        }
        for (int i = 0; i < NUM_PARAMS; i++) {
            if (PARAMS[i].unit == u && !PARAMS[i].is_frozen) {
                TRY(add_gradient(p, i, micro));
            }
        }
        TRY(sherd_unit_release(p->engine, p->units[u], SHERD_BACKWARD));
    }
    return SHERD_OK;
}

static sherd_status train(proof *p, sherd_world *world, proof_result *out)
{
    int64_t micro = 0;

    TRY(proof_open(p, world));
    for (int step = 0; step < PROOF_STEPS; step++) {
        sherd_step_report report;

        sherd_step_report_init(&report);
        for (int k = 0; k < p->layout->accumulation; k++, micro++) {
            TRY(micro_batch(p, micro * sherd_world_size(world) + sherd_world_rank(world)));
            TRY(sherd_step(p->engine, &report));
        }
        out->step_fingerprints[step] = report.fingerprint;
        out->grad_norm               = report.grad_norm;
    }
    return sherd_engine_fingerprint(p->engine, &out->fingerprint);
}

static void result_fail(proof_result *out, sherd_status status, const char *why)
{
    memset(out, 0, sizeof(*out));
    out->status = status;
    (void)snprintf(out->error, sizeof(out->error), "%s", why);
}

void proof_run(sherd_world *world, const proof_layout *layout, proof_result *out)
{
    proof *p = calloc(1, sizeof(*p));

    if (p == NULL) {
        result_fail(out, SHERD_E_NOMEM, "no memory for the trainer");
        return;
    }
    memset(out, 0, sizeof(*out));
    p->layout   = layout;
    out->status = train(p, world, out);
    if (out->status != SHERD_OK) {
        (void)snprintf(out->error, sizeof(out->error), "%s", sherd_last_error());
    }
    sherd_engine_destroy(p->engine);
    free(p);
}

/* --------------------------------------------------------- ranks as threads -- */

typedef struct proof_thread {
    pthread_t           thread;
    sherd_world        *world;
    const proof_layout *layout;
    proof_result        result;
} proof_thread;

static void *thread_main(void *raw)
{
    proof_thread *self = raw;

    proof_run(self->world, self->layout, &self->result);
    if (self->result.status != SHERD_OK) {
        sherd_world_abort(self->world, self->result.error);
    }
    sherd_world_destroy(self->world);
    return NULL;
}

void proof_run_threads(int ranks, const sherd_world_params *params, const proof_layout *layout,
                       proof_result *out)
{
    proof_thread *threads = calloc((size_t)ranks, sizeof(*threads));
    sherd_world **worlds  = calloc((size_t)ranks, sizeof(*worlds));
    int           started = 0;

    if (threads == NULL || worlds == NULL) {
        result_fail(out, SHERD_E_NOMEM, "no memory for the ranks");
    } else if (sherd_world_threads_with(ranks, params, worlds) != SHERD_OK) {
        result_fail(out, SHERD_E_NOMEM, sherd_last_error());
    } else {
        for (int r = 0; r < ranks; r++) {
            threads[r].world  = worlds[r];
            threads[r].layout = layout;
            if (pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]) != 0) {
                sherd_world_abort(worlds[r], "no thread for this rank");
                break;
            }
            started++;
        }
        for (int r = 0; r < started; r++) {
            (void)pthread_join(threads[r].thread, NULL);
        }
        for (int r = started; r < ranks; r++) {
            sherd_world_destroy(worlds[r]);
        }
        *out = threads[0].result;
        for (int r = 1; r < started && out->status == SHERD_OK; r++) {
            if (threads[r].result.status != SHERD_OK ||
                threads[r].result.fingerprint != out->fingerprint) {
                *out = threads[r].result;
            }
        }
    }
    free(worlds);
    free(threads);
}

int proof_is_equal(const proof_result *a, const proof_result *b, int *step_out)
{
    *step_out = 0;
    for (int step = 0; step < PROOF_STEPS; step++) {
        *step_out = step + 1;
        if (a->step_fingerprints[step] != b->step_fingerprints[step]) {
            return 0;
        }
    }
    return a->status == SHERD_OK && b->status == SHERD_OK && a->fingerprint == b->fingerprint;
}
