/* See rig.h. */
#include "tests/engine/rig.h"

#include "engine/run/engine_impl.h"
#include "kernels/formulas.h"
#include "tests/engine/elements.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float noise(uint64_t stream, uint64_t index)
{
    uint64_t state = stream * 0x100000001b3u + index;

    return test_random_float(&state);
}

const char *rig_state_keys(sherd_dtype dtype, const char *top)
{
    static _Thread_local char keys[256];
    const char               *given = getenv("SHERD_TEST_STATE");

    if (given == NULL || dtype != SHERD_BF16 || (top != NULL && strstr(top, "\"sherd\"") != NULL)) {
        return "";
    }
    (void)snprintf(keys, sizeof(keys), ", \"sherd\": {%s}", given);
    return keys;
}

const char *rig_json(const rig_options *options)
{
    static _Thread_local char json[2048];
    const char *precision = options->dtype == SHERD_BF16  ? ", \"bf16\": {\"enabled\": true}"
                            : options->dtype == SHERD_F16 ? ", \"fp16\": {\"enabled\": true, "
                                                            "\"initial_scale_power\": 4, "
                                                            "\"loss_scale_window\": 2, "
                                                            "\"hysteresis\": 1}"
                                                          : "";

    (void)snprintf(json, sizeof(json),
                   "{\"train_micro_batch_size_per_gpu\": %d, \"%s\": %d,"
                   "\"gradient_clipping\": %g, \"optimizer\": {\"type\": \"%s\", \"params\": {"
                   "\"lr\": 0.01, \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1%s}},"
                   "\"zero_optimization\": {\"stage\": %d%s%s}%s%s%s}",
                   options->micro_batch == 0 ? 1 : options->micro_batch,
                   options->train_batch > 0 ? "train_batch_size" : "gradient_accumulation_steps",
                   options->train_batch > 0     ? options->train_batch
                   : options->accumulation == 0 ? 1
                                                : options->accumulation,
                   options->clip, options->optimizer == NULL ? "AdamW" : options->optimizer,
                   options->params == NULL ? "" : options->params, options->stage,
                   options->zero != NULL && strstr(options->zero, "param_persistence") != NULL
                       ? ""
                       : ", \"stage3_param_persistence_threshold\": 0",
                   options->zero == NULL ? "" : options->zero, precision,
                   options->top == NULL ? "" : options->top,
                   rig_state_keys(options->dtype, options->top));
    return json;
}

sherd_status rig_create(sherd_world *world, const char *json, sherd_engine **out)
{
    sherd_config *config;
    sherd_status  status;

    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    status = sherd_engine_create(world, config, out);
    sherd_config_destroy(config);
    return status;
}

void rig_open(rig *r, sherd_world *world, const rig_options *options)
{
    memset(r, 0, sizeof(*r));
    r->world         = world;
    r->dtype         = options->dtype;
    r->backward_uses = options->backward_uses;
    r->retain_grads  = options->retain_grads;
    r->has_matrices  = options->has_matrices;
    r->wide          = options->wide;
    CHECK_OK(rig_create(world, rig_json(options), &r->engine));
}

void rig_close(rig *r)
{
    sherd_engine_destroy(r->engine);
    r->engine = NULL;
}

int rig_unit_as(rig *r, const char *name, sherd_unit_params *params)
{
    params->struct_size = sizeof(*params);
    params->name        = name;
    CHECK(r->num_units < RIG_UNITS);
    CHECK_OK(sherd_unit_add(r->engine, params, &r->units[r->num_units]));
    return r->num_units++;
}

int rig_unit(rig *r, const char *name)
{
    sherd_unit_params params;

    sherd_unit_params_init(&params);
    params.backward_uses = r->backward_uses;
    params.retain_grads  = r->retain_grads;
    return rig_unit_as(r, name, &params);
}

int rig_param_as(rig *r, int unit, const char *name, size_t elems, const sherd_param_params *params)
{
    rig_param_info    *info  = &r->params[r->num_params];
    sherd_param_params given = *params;

    CHECK(r->num_params < RIG_PARAMS);
    given.struct_size = sizeof(given);
    given.name        = name;
    if (given.ndim == 0) {
        given.ndim     = r->has_matrices ? 2 : 1;
        given.shape[0] = elems;
        given.shape[1] = 1;
    }
    given.dtype = r->wide >> r->num_params & 1 ? SHERD_F32 : given.dtype;
    *info       = (rig_param_info){
              .unit = unit, .elems = elems, .is_frozen = given.frozen, .dtype = r->dtype};
    if (given.dtype >= 0) {
        info->dtype = (sherd_dtype)given.dtype;
    }
    CHECK_OK(sherd_param_add(r->engine, r->units[unit], &given, &info->handle));
    return r->num_params++;
}

int rig_param(rig *r, int unit, const char *name, size_t elems)
{
    sherd_param_params params;

    sherd_param_params_init(&params);
    return rig_param_as(r, unit, name, elems, &params);
}

void rig_three(rig *r, size_t elems)
{
    static const char *const NAMES[] = {"a", "b", "c"};

    for (int u = 0; u < 3; u++) {
        char name[16];

        (void)rig_unit(r, NAMES[u]);
        (void)snprintf(name, sizeof(name), "%s.w", NAMES[u]);
        (void)rig_param(r, u, name, elems + (size_t)u * 641);
    }
}

sherd_status rig_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = noise((uint64_t)(uintptr_t)ctx, first_elem + i);
    }
    return SHERD_OK;
}

void rig_seal(rig *r)
{
    CHECK_OK(sherd_engine_seal(r->engine));
    for (int p = 0; p < r->num_params; p++) {
        CHECK_OK(sherd_param_fill(r->engine, r->params[p].handle, rig_fill, (void *)(uintptr_t)p));
    }
}

void rig_acquire(rig *r, int unit, sherd_pass pass)
{
    CHECK_OK(sherd_unit_acquire(r->engine, r->units[unit], pass));
}

void rig_release(rig *r, int unit, sherd_pass pass)
{
    CHECK_OK(sherd_unit_release(r->engine, r->units[unit], pass));
}

static int is_on_host(const rig *r)
{
    sherd_engine_info info;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    return strcmp(info.backend, "cpu") == 0;
}

/* Returns what the engine handed out, in host memory: the memory itself, or a copy that exists
 * until it is pushed back. */
static void *pulled(rig *r, int param, void *from)
{
    size_t len = r->params[param].elems * sherd_dtype_bytes(r->params[param].dtype);
    void  *copy;

    CHECK(from != NULL);
    if (is_on_host(r)) {
        return from;
    }
    copy = malloc(len + 1);
    CHECK(copy != NULL);
    CHECK_OK(sherd_copy(r->engine, copy, from, len));
    return copy;
}

/* Copies back to the engine's memory if there is a copy, and frees it; `to` is NULL if it was only
 * read. */
static void pushed(rig *r, int param, void *to, void *copy)
{
    if (is_on_host(r)) {
        return;
    }
    if (to != NULL) {
        CHECK_OK(sherd_copy(r->engine, to, copy,
                            r->params[param].elems * sherd_dtype_bytes(r->params[param].dtype)));
    }
    free(copy);
}

static size_t stride_of(const rig *r)
{
    return r->stride > 0 ? r->stride : 1;
}

double rig_read(rig *r, int param)
{
    void  *data = pulled(r, param, sherd_param_data(r->engine, r->params[param].handle));
    double sum  = 0;

    for (size_t i = 0; i < r->params[param].elems; i += stride_of(r)) {
        sum += load(data, i, r->params[param].dtype);
    }
    pushed(r, param, NULL, data);
    CHECK(isfinite(sum));
    return sum;
}

void rig_touch(rig *r, int param, float share)
{
    void       *memory = sherd_param_grad(r->engine, r->params[param].handle);
    void       *data   = pulled(r, param, sherd_param_data(r->engine, r->params[param].handle));
    void       *grad   = pulled(r, param, memory);
    float       scale  = sherd_loss_scale(r->engine);
    sherd_dtype dtype  = r->params[param].dtype;
    uint64_t    n      = (uint64_t)(r->is_given ? r->number
                                                : r->micro * sherd_world_size(r->world) +
                                              sherd_world_rank(r->world));

    for (size_t i = 0; i < r->params[param].elems; i += stride_of(r)) {
        float g = noise(1000 + n * RIG_PARAMS + (uint64_t)param, i) + 0.25f * load(data, i, dtype);

        store(grad, i, dtype, load(grad, i, dtype) + share * scale * g);
    }
    pushed(r, param, memory, grad);
    pushed(r, param, NULL, data);
}

void rig_poke(rig *r, int param, size_t index, float value)
{
    unsigned char *grad = sherd_param_grad(r->engine, r->params[param].handle);
    size_t         elem = sherd_dtype_bytes(r->params[param].dtype);
    float          bits;

    CHECK(grad != NULL);
    store(&bits, 0, r->params[param].dtype, value);
    CHECK_OK(sherd_copy(r->engine, grad + index * elem, &bits, elem));
}

void rig_forward(rig *r, int unit, sherd_pass pass)
{
    rig_acquire(r, unit, pass);
    for (int p = 0; p < r->num_params; p++) {
        if (r->params[p].unit == unit) {
            (void)rig_read(r, p);
        }
    }
    rig_release(r, unit, pass);
}

void rig_backward(rig *r, int unit)
{
    rig_acquire(r, unit, SHERD_BACKWARD);
    for (int p = 0; p < r->num_params; p++) {
        if (r->params[p].unit == unit && !r->params[p].is_frozen) {
            rig_touch(r, p, 1);
        }
    }
    rig_release(r, unit, SHERD_BACKWARD);
}

void rig_micro_batch(rig *r)
{
    for (int u = 0; u < r->num_units; u++) {
        rig_forward(r, u, SHERD_FORWARD);
    }
    for (int u = r->num_units - 1; u >= 0; u--) {
        rig_backward(r, u);
    }
}

sherd_step_report rig_step(rig *r)
{
    sherd_step_report report;

    sherd_step_report_init(&report);
    CHECK_OK(sherd_step(r->engine, &report));
    r->micro++;
    return report;
}

sherd_step_report rig_train(rig *r, int count)
{
    sherd_step_report report = {0};

    for (int i = 0; i < count; i++) {
        rig_micro_batch(r);
        report = rig_step(r);
    }
    return report;
}

uint64_t rig_fingerprint(rig *r)
{
    uint64_t fingerprint;

    CHECK_OK(sherd_engine_fingerprint(r->engine, &fingerprint));
    return fingerprint;
}

/* The norm and the fingerprint are brought apart. */
size_t rig_scalars_down(const rig *r)
{
    const sherdi_plan *plan = r->engine->plan;

    return plan->machine.has_device ? plan->scalars.results_bytes + sizeof(uint64_t) : 0;
}

size_t rig_scalars_up(const rig *r)
{
    const sherdi_plan *plan = r->engine->plan;

    return plan->machine.has_device ? plan->scalars.shared_bytes - plan->scalars.inputs : 0;
}

void rig_values(rig *r, int param, float *out)
{
    const rig_param_info *info = &r->params[param];
    void                 *data;

    rig_acquire(r, info->unit, SHERD_EVAL);
    data = pulled(r, param, sherd_param_data(r->engine, info->handle));
    for (size_t i = 0; i < info->elems; i++) {
        out[i] = load(data, i, info->dtype);
    }
    pushed(r, param, NULL, data);
    rig_release(r, info->unit, SHERD_EVAL);
}
