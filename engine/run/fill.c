/* First values: copies the values of a trainer's fill function to every place where this rank holds
 * a part of the parameter. sherdi_fill_finish, at the start, checks that everything is filled;
 * first_values.c, that it is equal on all ranks. */
#include "engine/run/fill.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"
#include "engine/run/kernels.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"
#include "engine/run/update.h"

#include <string.h>

sherd_status sherdi_fill_open(sherd_engine *engine)
{
    sherdi_fill *fill   = &engine->fill;
    sherdi_mem  *mem    = &engine->mem;
    size_t       params = engine->plan->layout.num_params;

    fill->is_filled = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->is_filled));
    fill->shares    = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->shares));
    fill->samples   = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->samples));
    return fill->is_filled == NULL || fill->shares == NULL || fill->samples == NULL ? SHERD_E_NOMEM
                                                                                    : SHERD_OK;
}

void sherdi_fill_close(sherd_engine *engine)
{
    sherdi_free(engine->fill.is_filled);
    sherdi_free(engine->fill.shares);
    sherdi_free(engine->fill.samples);
    engine->fill = (sherdi_fill){0};
}

/* ------------------------------------------------------------------ values -- */

/* How many elements are converted on the stack at a time. */
#define FEW_ELEMS 2048

/* Rounds values to a type; they stay fp32. */
static void values_round(const sherd_engine *engine, sherd_dtype dtype, float *values, size_t count)
{
    float cast[FEW_ELEMS];

    for (size_t at = 0; at < count && dtype != SHERD_F32; at += FEW_ELEMS) {
        size_t some = sherdi_min_size(FEW_ELEMS, count - at);

        engine->host->kernels->cast(engine->host, cast, dtype, values + at, SHERD_F32, some);
        engine->host->kernels->cast(engine->host, values + at, SHERD_F32, cast, dtype, some);
    }
}

sherd_status sherdi_values_pass(sherd_engine *engine, const sherdi_op *op, float *values)
{
    size_t first = (size_t)(op->index - engine->model.params[op->param].first_index);

    return engine->values_call.fn(engine->values_call.ctx, op->part, first, op->elems, values);
}

sherd_status sherdi_call_fill(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    float *values = sherdi_run_address(engine, op, SHERDI_USE_DST);

    (void)number_out;
    SHERDI_TRY(sherdi_values_pass(engine, op, values));
    if (op->part == SHERDI_VALUE_COMPUTE) {
        values_round(engine, engine->plan->layout.segments[op->segment].types.compute, values,
                     op->elems);
    }
    return SHERD_OK;
}

/* --------------------------------------------------------------- functions -- */

sherd_status sherdi_fill_ask(void *raw, int part, size_t at, size_t count, float *values)
{
    const sherdi_fill_source *given = raw;
    sherd_status              status;

    (void)part;
    sherdi_engine_callback_begin(given->engine, given->call);
    status = given->fn(given->ctx, at, count, values);
    sherdi_engine_callback_end(given->engine);
    if ((unsigned)status > SHERD_E_DEVICE) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the fill function of parameter %s returned %d at element %zu, which is "
                           "no sherd_status; return SHERD_OK or one of its errors",
                           given->engine->model.params[given->param].name, (int)status, at);
    }
    if (status != SHERD_OK) {
        return sherdi_fail(status, "the fill function of parameter %s returned %s at element %zu",
                           given->engine->model.params[given->param].name,
                           sherd_status_name(status), at);
    }
    return SHERD_OK;
}

static sherd_status values_fill(sherd_engine *engine, sherdi_fill_source *given)
{
    sherdi_outcome outcome;

    engine->values_call = (sherdi_values_call){.fn = sherdi_fill_ask, .ctx = given};
    outcome             = sherdi_outcome_of(
                    sherdi_program_fill(&engine->run.program, given->param, given->fn != NULL));
    if (outcome.status != SHERD_OK) {
        (void)SHERDI_ASK(storage, settle_filled, engine);
    }
    return sherdi_outcome_end(&outcome);
}

sherd_status sherdi_fill_param(sherd_engine *engine, size_t param, sherd_fill_fn fn, void *ctx)
{
    sherdi_fill       *fill  = &engine->fill;
    uint64_t          *share = &engine->kernel_data.on_host.head->fingerprint;
    sherdi_fill_source given = {
        .engine = engine, .call = "sherd_param_fill", .param = param, .fn = fn, .ctx = ctx};

    fill->is_changed             = 1;
    fill->is_filled[param]       = 0;
    *share                       = 0;
    engine->fingerprints.has_own = engine->fingerprints.is_sent = 0;
    SHERDI_TRY(values_fill(engine, &given));
    SHERDI_TRY(sherdi_modules_param_filled(engine, &given));
    fill->shares[param]    = *share;
    fill->is_filled[param] = 1;
    return SHERD_OK;
}

sherd_status sherdi_fill_check(const sherd_engine *engine, const char *call, sherd_param param)
{
    if (engine->phase != SHERDI_PHASE_SEALED) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: parameters cannot be filled any more: training has begun; fill "
                           "them before the first acquire, or write values with sherd_param_write",
                           call);
    }
    return sherdi_model_check_param(&engine->model, call, param);
}

int sherdi_fill_is_kept(const sherd_engine *engine, sherd_param param)
{
    return (engine->storage.is_resumed && !engine->model.params[param].is_frozen) ||
           (engine->fill.is_loaded && engine->fill.is_filled[param]);
}

sherd_status sherdi_fill_check_function(const sherd_engine *engine, sherd_param param,
                                        sherd_fill_fn fill)
{
    return fill != NULL ? SHERD_OK
                        : sherdi_fail(SHERD_E_INVAL, "parameter %s: the fill function is NULL",
                                      engine->model.params[param].name);
}

sherd_status sherd_param_fill(sherd_engine *engine, sherd_param param, sherd_fill_fn fill,
                              void *ctx)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_param_fill", SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_fill_check(engine, "sherd_param_fill", param));
    SHERDI_TRY(sherdi_fill_check_function(engine, param, fill));
    if (sherdi_fill_is_kept(engine, param)) {
        return SHERD_OK;
    }
    return sherdi_fill_param(engine, (size_t)param, fill, ctx);
}

/* ------------------------------------------------------- the first acquire -- */

static sherd_status unfilled_take(sherd_engine *engine)
{
    for (size_t p = 0; p < engine->model.num_params; p++) {
        if (engine->fill.is_filled[p]) {
            continue;
        }
        if (engine->model.params[p].bound_data == NULL) {
            return sherdi_fail(SHERD_E_STATE,
                               "parameter %s was never filled; call sherd_param_fill for it before "
                               "the first acquire",
                               engine->model.params[p].name);
        }
        SHERDI_TRY(sherdi_fill_param(engine, p, NULL, NULL));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------- the start -- */

uint64_t sherdi_fill_fingerprint(const sherd_engine *engine, int is_frozen)
{
    uint64_t sum = 0;

    for (size_t p = 0; p < engine->model.num_params; p++) {
        sum += engine->model.params[p].is_frozen == is_frozen ? engine->fill.shares[p] : 0;
    }
    return sum;
}

static sherd_status filling_end(sherd_engine *engine)
{
    sherd_status status = unfilled_take(engine);

    if (status == SHERD_OK) {
        status = SHERDI_RINGS(sherdi_fill_store(engine), SHERD_OK);
    }
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_FIRST_VALUES, status,
                                 sherdi_fill_fingerprint(engine, 1), SHERDI_FILL_BEGINS));
    engine->fingerprints.frozen = sherdi_agree_sum(engine, engine->plan->replica);
    SHERDI_TRY(SHERDI_ASK(lanes, wire_wait, engine));
    SHERDI_TRY(sherdi_modules_filled(engine));
    sherdi_loop_fetch_ahead(engine);
    return SHERD_OK;
}

sherd_status sherdi_fill_finish(sherd_engine *engine)
{
    if (engine->phase != SHERDI_PHASE_SEALED) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_engine_outcome(engine, filling_end(engine)));
    engine->phase = SHERDI_PHASE_RUNNING;
    return SHERD_OK;
}
