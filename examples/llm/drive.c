/* The life cycle of a micro-batch. See drive.h. */
#include "drive.h"

#include "try.h"

#include <stdio.h>
#include <stdlib.h>

struct drive {
    sherd_engine    *engine;
    arch             sizes;
    sherd_dtype      dtype;
    model           *m;
    arch_role       *roles; /* of parameter k */
    drive_observe_fn observe;
    void            *observe_ctx;
};

drive *drive_create(sherd_engine *engine, const model_params *params, char *why, size_t why_bytes)
{
    size_t num_params = arch_param_count(&params->sizes);
    drive *d          = calloc(1, sizeof(*d));

    if (d != NULL) {
        d->roles = calloc(num_params, sizeof(*d->roles));
    }
    if (d == NULL || d->roles == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        free(d);
        return NULL;
    }
    d->engine = engine;
    d->sizes  = params->sizes;
    d->dtype  = params->dtype;
    d->m      = model_create(params, why, why_bytes);
    if (d->m == NULL) {
        drive_destroy(d);
        return NULL;
    }
    for (size_t k = 0; k < num_params; k++) {
        arch_param info;

        arch_param_get(&d->sizes, k, &info);
        d->roles[k] = info.role;
    }
    return d;
}

void drive_destroy(drive *d)
{
    if (d == NULL) {
        return;
    }
    model_destroy(d->m);
    free(d->roles);
    free(d);
}

size_t drive_bytes(const drive *d)
{
    return model_bytes(d->m);
}

const char *drive_device(const drive *d)
{
    return model_device(d->m);
}

void drive_logits_get(drive *d, size_t row, float *out)
{
    model_logits_get(d->m, row, out);
}

sherd_status drive_losses_take(drive *d, double *sum_out)
{
    return model_losses_take(d->m, sum_out);
}

const char *drive_why(const drive *d)
{
    return model_why(d->m);
}

void drive_observe(drive *d, drive_observe_fn observe, void *ctx)
{
    d->observe     = observe;
    d->observe_ctx = ctx;
}

static sherd_status tensor_get(drive *d, size_t k, sherd_pass pass, model_unit *unit)
{
    tensor *t = &unit->by_role[d->roles[k]];

    t->dtype = d->dtype;
    t->data  = sherd_param_data(d->engine, (sherd_param)k);
    if (t->data == NULL) {
        return SHERD_E_STATE;
    }
    if (pass == SHERD_BACKWARD) {
        t->grad = sherd_param_grad(d->engine, (sherd_param)k);
        if (t->grad == NULL) {
            return SHERD_E_STATE;
        }
    }
    return SHERD_OK;
}

/* The parameters of an acquired unit; the last one reads the tokens' table too. */
static sherd_status unit_get(drive *d, size_t unit, sherd_pass pass, model_unit *out)
{
    *out = (model_unit){0};
    for (size_t k = arch_unit_first_param(&d->sizes, unit);
         k < arch_unit_first_param(&d->sizes, unit + 1); k++) {
        TRY(tensor_get(d, k, pass, out));
    }
    return unit == d->sizes.layers + 1 ? tensor_get(d, 0, pass, out) : SHERD_OK;
}

static sherd_status unit_run(drive *d, size_t unit, sherd_pass pass)
{
    model_unit params;

    TRY(sherd_unit_acquire(d->engine, (sherd_unit)unit, pass));
    TRY(unit_get(d, unit, pass, &params));
    if (pass == SHERD_BACKWARD) {
        model_backward(d->m, unit, &params);
        if (d->observe != NULL) {
            d->observe(d->observe_ctx, unit, &params);
        }
    } else {
        model_forward(d->m, unit, &params,
                      pass == SHERD_FORWARD ? sherd_loss_scale(d->engine) : 0.0f);
    }
    return sherd_unit_release(d->engine, (sherd_unit)unit, pass);
}

static sherd_status forward_run(drive *d, sherd_pass pass)
{
    for (size_t unit = 0; unit < arch_unit_count(&d->sizes); unit++) {
        TRY(unit_run(d, unit, pass));
    }
    return SHERD_OK;
}

sherd_status drive_train(drive *d, const int32_t *inputs, const int32_t *targets)
{
    model_batch_set(d->m, inputs, targets);
    TRY(forward_run(d, SHERD_FORWARD));
    for (size_t unit = arch_unit_count(&d->sizes); unit-- > 0;) {
        TRY(unit_run(d, unit, SHERD_BACKWARD));
    }
    return SHERD_OK;
}

sherd_status drive_eval(drive *d, const int32_t *inputs, const int32_t *targets)
{
    model_batch_set(d->m, inputs, targets);
    return forward_run(d, SHERD_EVAL);
}
