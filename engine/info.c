/* Information about an engine: its fingerprint, its plan, its counters. */
#include "engine/run/engine_impl.h"

#include "engine/engine.h"
#include "engine/machine.h"
#include "engine/run/agree.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/needs.h"
#include "engine/run/update.h"

/* ----------------------------------------------------------- fingerprint ---- */

static sherd_status fingerprint_check(sherd_engine *engine, const void *out, const char *call)
{
    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_api_check_out(out, call));
    return sherdi_fill_finish(engine);
}

/* Adds the shares of the ranks; if every rank has everything, one share is all. */
static sherd_status fingerprint_sum(sherd_engine *engine, sherd_status status, uint64_t share,
                                    int is_shared_out, uint64_t *out)
{
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_FINGERPRINT, status, share, NULL));
    *out = is_shared_out ? sherdi_agree_sum(engine) : share;
    return SHERD_OK;
}

sherd_status sherd_engine_fingerprint(sherd_engine *engine, uint64_t *out)
{
    sherd_status status;
    uint64_t     own = 0;
    uint64_t     sum;

    SHERDI_TRY(fingerprint_check(engine, out, "sherd_engine_fingerprint"));
    SHERDI_TRY(sherdi_step_tell(engine));
    /* a queued update has sent it; what rests is read all the same */
    status = engine->fingerprints.is_sent ? sherdi_update_fingerprint(engine) : SHERD_OK;
    if (status == SHERD_OK) {
        status = sherdi_update_read_fingerprint(engine, &own);
    }
    SHERDI_TRY(fingerprint_sum(engine, status, own, engine->plan->layout.is_sliced, &sum));
    *out = engine->fingerprints.frozen + sum;
    return SHERD_OK;
}

sherd_status sherd_param_fingerprint(sherd_engine *engine, sherd_param param, uint64_t *out)
{
    sherd_status  status;
    uint64_t      own    = 0;
    sherdi_values values = {.param = (size_t)param};
    int           is_frozen;

    SHERDI_TRY(fingerprint_check(engine, out, "sherd_param_fingerprint"));
    SHERDI_TRY(sherdi_engine_need_param(engine, "sherd_param_fingerprint", param));
    is_frozen    = engine->model.params[param].is_frozen; /* counted by slice at every stage */
    values.count = engine->model.params[param].elems;
    SHERDI_TRY(sherdi_step_tell(engine));
    status = sherdi_fill_range_fingerprint(engine, &values, &own);
    return fingerprint_sum(engine, status, own, is_frozen || engine->plan->layout.is_sliced, out);
}

/* ---------------------------------------------------------------- plan ---- */

sherd_status sherdi_engine_plan_borrow(sherd_engine *engine, const char *call, sherdi_plan **out)
{
    sherdi_machine machine = {.ranks_per_host =
                                  1}; /* before seal a real one is not asked: that is collective */

    SHERDI_TRY(sherdi_engine_check_alive(engine, call));
    if (engine->plan != NULL) {
        *out = engine->plan;
        return SHERD_OK;
    }
    if (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) {
        SHERDI_TRY(sherdi_machine_detect(engine->world, &machine));
    }
    return sherdi_engine_plan_make(engine, &machine, out);
}

void sherdi_engine_plan_return(const sherd_engine *engine, sherdi_plan *plan)
{
    if (plan != engine->plan) {
        sherdi_plan_destroy(plan);
    }
}

/* ----------------------------------------------------------------- info ---- */

void sherd_engine_info_init(sherd_engine_info *info)
{
    sherdi_api_init(info, &(sherd_engine_info){.struct_size = sizeof(*info)});
}

sherd_status sherd_engine_query(const sherd_engine *engine, sherd_engine_info *out)
{
    sherd_engine_info info = {.struct_size = sizeof(info)};

    SHERDI_TRY(sherdi_engine_check_alive(engine, "sherd_engine_query"));
    SHERDI_TRY(sherdi_api_check(out, SHERDI_API(sherd_engine_info)));
    info.stage            = engine->settings.sharding.stage;
    info.compute_dtype    = engine->settings.numerics.compute_dtype;
    info.micro_batch_size = engine->settings.batch.micro_batch_size;
    info.accumulation     = engine->settings.batch.accumulation;
    info.train_batch_size = engine->settings.batch.train_batch_size;
    info.steps_per_print  = engine->settings.watch.steps_per_print;
    info.is_deterministic = engine->settings.numerics.deterministic;
    info.cpu_threads      = engine->host->threads;
    info.backend          = engine->backend->name;
    info.param_elems      = engine->model.total_elems;
    info.trainable_elems  = engine->model.trainable_elems;
    info.is_resumed       = engine->storage.is_resumed;
    info.step             = engine->counters.step;
    info.micro_step       = engine->counters.micro_step;
    info.state_run        = engine->storage.run;
    info.resume_differs   = engine->identity.resume_differs;
    info.overlap_comm     = engine->settings.sharding.overlap_comm;
    info.samples          = sherdi_samples_seen(engine);
    sherdi_api_write(&info, out);
    return SHERD_OK;
}
