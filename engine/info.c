/* Information about an engine: its fingerprint and its counters. */
#include "engine/run/engine_impl.h"

#include "engine/engine.h"
#include "engine/run/agree.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/needs.h"
#include "engine/run/update.h"

sherd_status sherdi_fingerprint_check(sherd_engine *engine, const void *out, const char *call)
{
    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_api_check_out(out, call));
    return sherdi_fill_finish(engine);
}

sherd_status sherdi_fingerprint_sum(sherd_engine *engine, sherd_status status, uint64_t share,
                                    int is_shared_out, uint64_t *out)
{
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_FINGERPRINT, status, share, NULL));
    *out = is_shared_out ? sherdi_agree_sum(engine, engine->plan->replica) : share;
    return SHERD_OK;
}

sherd_status sherd_engine_fingerprint(sherd_engine *engine, uint64_t *out)
{
    sherd_status status;
    uint64_t     own = 0;
    uint64_t     sum;

    SHERDI_TRY(sherdi_fingerprint_check(engine, out, "sherd_engine_fingerprint"));
    SHERDI_TRY(SHERDI_ASK(queue, tell, engine));
    /* a queued update has sent it; what rests is read all the same */
    status = engine->fingerprints.is_sent ? sherdi_update_fingerprint(engine) : SHERD_OK;
    if (status == SHERD_OK) {
        status = sherdi_update_read_fingerprint(engine, &own);
    }
    SHERDI_TRY(sherdi_fingerprint_sum(engine, status, own, engine->plan->layout.is_sliced, &sum));
    *out = engine->fingerprints.frozen + sum;
    return SHERD_OK;
}

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
    info.steps_per_print  = engine->settings.steps_per_print;
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
