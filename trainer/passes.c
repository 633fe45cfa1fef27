/* Acquires and releases the units of a micro-batch around the computation of model.h. See
 * passes.h. */
#include "passes.h"

#include "models/clock.h"
#include "try.h"

#include <stdio.h>
#include <stdlib.h>

struct passes {
    sherd_engine     *engine;
    arch              sizes;
    sherd_dtype       dtype;
    model            *m;
    arch_role        *roles;        /* of parameter k */
    double            first_wait_s; /* see passes_first_wait_s */
    passes_observe_fn observe;
    void             *observe_ctx;
    layer_places      places;
};

passes *passes_create(sherd_engine *engine, const model_params *params, char *why, size_t why_bytes)
{
    size_t  num_params = arch_param_count(&params->sizes);
    passes *passes     = calloc(1, sizeof(*passes));

    if (passes != NULL) {
        passes->roles = calloc(num_params, sizeof(*passes->roles));
    }
    if (passes == NULL || passes->roles == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        free(passes);
        return NULL;
    }
    passes->engine = engine;
    passes->sizes  = params->sizes;
    passes->dtype  = params->dtype;
    passes->places = params->places;
    passes->m      = model_create(params, why, why_bytes);
    if (passes->m == NULL) {
        passes_destroy(passes);
        return NULL;
    }
    for (size_t k = 0; k < num_params; k++) {
        arch_param info;

        arch_param_get(&passes->sizes, k, &info);
        passes->roles[k] = info.role;
    }
    return passes;
}

void passes_destroy(passes *passes)
{
    if (passes == NULL) {
        return;
    }
    model_destroy(passes->m);
    free(passes->roles);
    free(passes);
}

size_t passes_bytes(const passes *passes)
{
    return model_bytes(passes->m);
}

const char *passes_note(const passes *passes)
{
    return model_note(passes->m);
}

const char *passes_device(const passes *passes)
{
    return model_device(passes->m);
}

void passes_logits_get(passes *passes, size_t row, float *out)
{
    model_logits_get(passes->m, row, out);
}

void passes_losses_close(passes *passes)
{
    model_losses_close(passes->m);
}

sherd_status passes_losses_take(passes *passes, double *sum_out)
{
    return model_losses_take(passes->m, sum_out);
}

const char *passes_why(const passes *passes)
{
    return model_why(passes->m);
}

void passes_observe(passes *passes, passes_observe_fn observe, void *ctx)
{
    passes->observe     = observe;
    passes->observe_ctx = ctx;
}

static sherd_status tensor_get(passes *passes, size_t k, sherd_pass pass, model_unit *unit)
{
    tensor *t = &unit->by_role[passes->roles[k]];

    t->dtype = passes->dtype;
    t->data  = sherd_param_data(passes->engine, (sherd_param)k);
    if (t->data == NULL) {
        return SHERD_E_STATE;
    }
    if (pass == SHERD_BACKWARD) {
        t->grad = sherd_param_grad(passes->engine, (sherd_param)k);
        if (t->grad == NULL) {
            return SHERD_E_STATE;
        }
    }
    return SHERD_OK;
}

/* Gives the parameters of an acquired unit; the last unit reads the table of tokens, unless it has
 * a head of its own. */
static sherd_status unit_get(passes *passes, size_t unit, sherd_pass pass, model_unit *out)
{
    *out = (model_unit){0};
    for (size_t k = arch_unit_first_param(&passes->sizes, unit);
         k < arch_unit_first_param(&passes->sizes, unit + 1); k++) {
        TRY(tensor_get(passes, k, pass, out));
    }
    return unit == passes->sizes.layers + 1 && !passes->sizes.is_untied
               ? tensor_get(passes, 0, pass, out)
               : SHERD_OK;
}

/* The memory of a layer's activations, where it is the engine's. */
static sherd_status activation_get(passes *passes, size_t unit, sherd_pass pass, model_unit *out)
{
    if (unit == 0 || unit > passes->sizes.layers ||
        !layer_place_is_moved(layer_place_of(&passes->places, unit - 1))) {
        return SHERD_OK;
    }
    return pass == SHERD_BACKWARD
               ? sherd_activation_get(passes->engine, (sherd_unit)unit, &out->activation)
               : sherd_activation_put(passes->engine, (sherd_unit)unit, &out->activation);
}

static sherd_status unit_run(passes *passes, size_t unit, sherd_pass pass)
{
    double     start = clock_now_s();
    model_unit params;

    TRY(sherd_unit_acquire(passes->engine, (sherd_unit)unit, pass));
    if (unit == 0 && pass == SHERD_FORWARD) {
        passes->first_wait_s = clock_now_s() - start;
    }
    TRY(unit_get(passes, unit, pass, &params));
    TRY(activation_get(passes, unit, pass, &params));
    if (pass == SHERD_BACKWARD) {
        model_backward(passes->m, unit, &params);
        if (passes->observe != NULL) {
            passes->observe(passes->observe_ctx, unit, &params);
        }
    } else {
        model_forward(passes->m, unit, &params,
                      pass == SHERD_FORWARD ? sherd_loss_scale(passes->engine) : 0.0f);
    }
    return sherd_unit_release(passes->engine, (sherd_unit)unit, pass);
}

static sherd_status units_run(passes *passes, sherd_pass pass)
{
    for (size_t unit = 0; unit < arch_unit_count(&passes->sizes); unit++) {
        TRY(unit_run(passes, unit, pass));
    }
    return SHERD_OK;
}

void passes_batch_set(passes *passes, const int32_t *inputs, const int32_t *targets)
{
    model_batch_set(passes->m, inputs, targets);
}

sherd_status passes_forward(passes *passes)
{
    return units_run(passes, SHERD_FORWARD);
}

sherd_status passes_backward(passes *passes)
{
    for (size_t unit = arch_unit_count(&passes->sizes); unit-- > 0;) {
        TRY(unit_run(passes, unit, SHERD_BACKWARD));
    }
    return SHERD_OK;
}

double passes_first_wait_s(const passes *passes)
{
    return passes->first_wait_s;
}

sherd_status passes_train(passes *passes, const int32_t *inputs, const int32_t *targets)
{
    if (inputs != NULL) {
        passes_batch_set(passes, inputs, targets);
    }
    TRY(passes_forward(passes));
    return passes_backward(passes);
}

sherd_status passes_eval(passes *passes, const int32_t *inputs, const int32_t *targets)
{
    model_batch_set(passes->m, inputs, targets);
    return units_run(passes, SHERD_EVAL);
}
