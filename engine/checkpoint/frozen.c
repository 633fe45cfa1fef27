/* See frozen.h. */
#include "engine/checkpoint/frozen.h"

#include "base/checked.h"
#include "engine/checkpoint/shard.h"
#include "engine/run/agree.h"
#include "engine/run/values.h"

/* ------------------------------------------------------------------------ save -- */

typedef struct frozen_save {
    sherd_engine  *engine;
    sherdi_writer *writer;
    sherd_dtype    dtype; /* of the parameter */
} frozen_save;

/* Casting to the type that the values had before keeps their bits. */
static sherd_status values_write(void *ctx, int part, size_t first, size_t count, float *values)
{
    frozen_save          *save = ctx;
    const sherdi_backend *host = save->engine->host;

    (void)part, (void)first;
    while (count > 0) {
        unsigned char *to;
        size_t         room;
        size_t         some;

        SHERDI_TRY(sherdi_writer_reserve(save->writer, &to, &room));
        some = sherdi_min_size(count, room / sherd_dtype_bytes(save->dtype));
        host->kernels->cast(host, to, save->dtype, values, SHERD_F32, some);
        sherdi_writer_advance(save->writer, some * sherd_dtype_bytes(save->dtype));
        values += some;
        count -= some;
    }
    return SHERD_OK;
}

sherd_status sherdi_frozen_save(sherd_engine *engine, sherdi_writer *writer)
{
    frozen_save  save   = {.engine = engine, .writer = writer};
    sherd_status status = sherdi_values_begin(engine);
    sherd_status own;

    for (size_t p = 0; p < engine->model.num_params && status == SHERD_OK; p++) {
        sherdi_values values = {.param = p, .parts = SHERDI_VALUES_COMPUTE};

        values.count = sherdi_shard_frozen(engine->plan, &engine->model, p, &values.first);
        save.dtype   = sherdi_param_segment(engine->plan, p)->types.compute;
        if (values.count > 0) {
            status = sherdi_values_get(engine, &values, values_write, &save);
        }
    }
    own = sherdi_values_end(engine);
    return status == SHERD_OK ? own : status;
}

/* ------------------------------------------------------------------------ load -- */

typedef struct frozen_load {
    sherd_engine  *engine;
    sherdi_reader *reader;
    size_t         saved; /* parameter of the manifest */
    size_t         first; /* first element that is asked for */
    float         *out;
} frozen_load;

static sherd_status values_come(void *ctx, size_t first, size_t count, const void *values,
                                sherd_dtype dtype)
{
    frozen_load          *load = ctx;
    const sherdi_backend *host = load->engine->host;

    host->kernels->cast(host, load->out + (first - load->first), SHERD_F32, values, dtype, count);
    return SHERD_OK;
}

static sherd_status values_read(void *ctx, int part, size_t first, size_t count, float *values)
{
    frozen_load *load = ctx;

    (void)part;
    load->first = first;
    load->out   = values;
    return sherdi_reader_values(load->reader, load->saved, 0, first, count, values_come, load);
}

static sherd_status param_load(sherd_engine *engine, sherdi_reader *reader, size_t param,
                               size_t saved)
{
    frozen_load   load   = {.engine = engine, .reader = reader, .saved = saved};
    sherdi_values values = {.param = param, .parts = SHERDI_VALUES_COMPUTE};
    size_t        end;

    sherdi_plan_held(engine->plan, param, engine->model.params[param].elems, &values.first, &end);
    values.count                 = end - values.first;
    *sherdi_values_share(engine) = 0;
    SHERDI_TRY(sherdi_values_put(engine, &values, values_read, &load));
    engine->fill.shares[param] = *sherdi_values_share(engine);
    return SHERD_OK;
}

/* Adds the shares of the ranks; `own` is the outcome on this rank so far. */
static sherd_status shares_sum(sherd_engine *engine, sherd_status own, uint64_t *sum_out)
{
    uint64_t share = 0;

    for (size_t p = 0; p < engine->model.num_params; p++) {
        share += engine->model.params[p].is_frozen ? engine->fill.shares[p] : 0;
    }
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_FROZEN, own, share, NULL));
    *sum_out = sherdi_agree_sum(engine, engine->plan->replica);
    return SHERD_OK;
}

sherd_status sherdi_frozen_load(sherd_engine *engine, sherdi_reader *reader, const int64_t *found,
                                uint64_t *sum_out)
{
    sherd_status status = sherdi_values_begin(engine);
    sherd_status own;

    for (size_t p = 0; p < engine->model.num_params && status == SHERD_OK; p++) {
        if (engine->model.params[p].is_frozen && found[p] >= 0) {
            status = param_load(engine, reader, p, (size_t)found[p]);
        }
    }
    own = sherdi_values_end(engine);
    return shares_sum(engine, status == SHERD_OK ? own : status, sum_out);
}
