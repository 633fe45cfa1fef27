/* See values.h. The program moves the values (program_values.c); this file says which range, and
 * who gives or receives the values. */
#include "engine/run/values.h"

#include "base/checked.h"
#include "engine/run/kernels.h"
#include "engine/run/optimizer.h"
#include "engine/program/values.h"

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

sherd_status sherdi_call_take(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    float *values = sherdi_run_address(engine, op, SHERDI_USE_SRC);
    float  scale  = engine->values_call.scale;

    (void)number_out;
    for (size_t i = 0; scale != 0 && i < op->elems; i++) {
        values[i] *= scale;
    }
    return sherdi_values_pass(engine, op, values);
}

sherd_status sherdi_values_end(sherd_engine *engine)
{
    sherd_status status = SHERDI_IF_OFFLOAD(fill_end(&engine->run.program));
    sherd_status own    = SHERDI_RINGS(sherdi_values_begin(engine), SHERD_OK);

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

    sherdi_values_owned(engine, values->param, engine->plan->rank, &first, &count);
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

/* Who gives the values that are put. */
typedef struct giver {
    const sherd_engine *engine;
    size_t              param;
    sherdi_values_fn    fn;
    void               *ctx;
} giver;

static sherd_status giver_ask(void *raw, int part, size_t first, size_t count, float *values)
{
    const giver          *from    = raw;
    const sherdi_segment *segment = sherdi_param_segment(from->engine->plan, from->param);
    size_t                at;

    SHERDI_TRY(from->fn(from->ctx, part, first, count, values));
    at = sherdi_values_find_refused(segment, part, count, values);
    return at == count
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "%s of parameter %s cannot be %g: it is never negative, and the state "
                             "is stored without its sign (sherd.master_encoding, "
                             "sherd.moment_encoding)",
                             segment->optimizer->parts[part].name,
                             from->engine->model.params[from->param].name, (double)values[at]);
}

sherd_status sherdi_values_put(sherd_engine *engine, const sherdi_values *values,
                               sherdi_values_fn fn, void *ctx)
{
    giver from = {.engine = engine, .param = values->param, .fn = fn, .ctx = ctx};

    engine->values_call = (sherdi_values_call){.fn = giver_ask, .ctx = &from};
    return sherdi_program_put(&engine->run.program, values);
}

uint64_t *sherdi_values_share(sherd_engine *engine)
{
    return &engine->kernel_data.on_host.head->fingerprint;
}

sherd_status sherdi_update_range_fingerprint(sherd_engine *engine, const sherdi_values *values,
                                             uint64_t *out)
{
    engine->fingerprints.is_sent = 0; /* its place is taken */
    SHERDI_TRY(sherdi_program_fingerprint(sherdi_run_program(engine), values));
    *out = engine->kernel_data.results.fingerprint;
    return SHERD_OK;
}
