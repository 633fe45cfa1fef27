/* See values.h. The program moves the values (program_values.c); this file says which range, and
 * who gives or receives the values. */
#include "engine/run/engine_impl.h"

#include "base/checked.h"
#include "engine/run/optimizer.h"

/* How many elements are converted on the stack at a time. */
#define FEW_ELEMS 2048

/* ------------------------------------------------------------- operations -- */

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

static sherd_status values_call(sherd_engine *engine, const sherdi_op *op, float *values)
{
    size_t first = (size_t)(op->index - engine->model.params[op->param].first_index);

    return engine->values_call.fn(engine->values_call.ctx, op->part, first, op->elems, values);
}

size_t sherdi_values_find_refused(const sherdi_segment *segment, int part, size_t count,
                                  const float *values)
{
    int is_signless =
        part > 0 && part < sherdi_segment_parts(segment) &&
        (part == segment->ties_part || segment->encodings[part] == SHERDI_ENCODING_UFP8);

    for (size_t i = 0; i < count && is_signless; i++) {
        if (values[i] < 0) {
            return i;
        }
    }
    return count;
}

static sherd_status signs_check(const sherd_engine *engine, const sherdi_op *op,
                                const float *values)
{
    const sherdi_segment *segment = &engine->plan->layout.segments[op->segment];
    size_t                at = sherdi_values_find_refused(segment, op->part, op->elems, values);

    return at == op->elems
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "%s of parameter %s cannot be %g: it is never negative, and the state "
                             "is stored without its sign (sherd.master_encoding, "
                             "sherd.moment_encoding)",
                             segment->optimizer->parts[op->part].name,
                             engine->model.params[op->param].name, (double)values[at]);
}

sherd_status sherdi_values_ask(sherd_engine *engine, const sherdi_op *op, float *values)
{
    SHERDI_TRY(values_call(engine, op, values));
    SHERDI_TRY(signs_check(engine, op, values));
    if (op->part == SHERDI_VALUE_COMPUTE) {
        values_round(engine, engine->plan->layout.segments[op->segment].types.compute, values,
                     op->elems);
    }
    return SHERD_OK;
}

sherd_status sherdi_values_tell(sherd_engine *engine, const sherdi_op *op, float *values)
{
    float scale = engine->values_call.scale;

    for (size_t i = 0; scale != 0 && i < op->elems; i++) {
        values[i] *= scale;
    }
    return values_call(engine, op, values);
}

/* -------------------------------------------------------------- begin, end -- */

sherd_status sherdi_values_begin(sherd_engine *engine)
{
    sherd_status queued = engine->updater.ops->join(engine);
    sherd_status status = sherdi_run_settle(engine, SHERDI_RING_STATE);
    sherd_status own    = sherdi_run_settle(engine, SHERDI_RING_PARAMS);

    if (queued != SHERD_OK) {
        return engine->updater.ops->check(engine); /* with the way out */
    }
    return own == SHERD_OK ? status : own;
}

sherd_status sherdi_values_end(sherd_engine *engine)
{
    sherd_status status = sherdi_program_fill_end(&engine->run.program);
    sherd_status own    = sherdi_values_begin(engine);

    SHERDI_TRY(own);
    return status;
}

/* -------------------------------------------------------------- get and put -- */

void sherdi_values_slice(const sherd_engine *engine, size_t param, int rank, size_t *first,
                         size_t *count)
{
    const sherdi_plan_param *layout = &engine->plan->layout.params[param];
    size_t                   slice  = engine->plan->layout.segments[layout->segment].slice_elems;
    size_t                   start  = layout->offset_elems;
    size_t                   begin  = sherdi_max_size((size_t)rank * slice, start) - start;
    size_t                   end    = sherdi_max_size((size_t)(rank + 1) * slice, start) - start;

    end    = sherdi_min_size(end, engine->model.params[param].elems);
    *first = sherdi_min_size(begin, end);
    *count = end - *first;
}

void sherdi_values_owned(const sherd_engine *engine, size_t param, int rank, size_t *first,
                         size_t *count)
{
    *first = 0;
    *count = engine->model.params[param].elems;
    if (engine->plan->layout.is_sliced) {
        sherdi_values_slice(engine, param, rank, first, count);
    }
}

sherd_status sherdi_values_get_here(sherd_engine *engine, const sherdi_values *values,
                                    sherdi_values_fn fn, void *ctx)
{
    engine->values_call = (sherdi_values_call){.fn = fn, .ctx = ctx};
    return sherdi_program_get(&engine->run.program, values);
}

sherd_status sherdi_values_get(sherd_engine *engine, const sherdi_values *values,
                               sherdi_values_fn fn, void *ctx)
{
    sherdi_values own = *values;
    size_t        end = values->first + values->count;
    size_t        first;
    size_t        count;

    sherdi_values_owned(engine, values->param, engine->rank, &first, &count);
    own.first = sherdi_max_size(values->first, first);
    own.count = sherdi_max_size(own.first, sherdi_min_size(end, first + count)) - own.first;
    return sherdi_values_get_here(engine, &own, fn, ctx);
}

sherd_status sherdi_values_get_gradient(sherd_engine *engine, const sherdi_values *values,
                                        sherdi_values_fn fn, void *ctx)
{
    engine->values_call = (sherdi_values_call){
        .fn = fn, .ctx = ctx, .scale = (float)sherdi_optimizer_unscale(engine)};
    return sherdi_program_get(&engine->run.program, values);
}

sherd_status sherdi_values_put(sherd_engine *engine, const sherdi_values *values,
                               sherdi_values_fn fn, void *ctx)
{
    engine->values_call = (sherdi_values_call){.fn = fn, .ctx = ctx};
    return sherdi_program_put(&engine->run.program, values);
}

uint64_t *sherdi_values_share(sherd_engine *engine)
{
    return &engine->kernel_data.on_host.head->fingerprint;
}
