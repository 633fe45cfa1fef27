/* The fingerprint of an engine. */
#include "engine/run/engine_impl.h"

#include "engine/engine.h"
#include "engine/modules.h"
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
    *out = is_shared_out ? sherdi_agree_sum(engine) : share;
    return SHERD_OK;
}

sherd_status sherd_engine_fingerprint(sherd_engine *engine, uint64_t *out)
{
    sherd_status status;
    uint64_t     own = 0;
    uint64_t     sum;

    SHERDI_TRY(sherdi_fingerprint_check(engine, out, "sherd_engine_fingerprint"));
    SHERDI_TRY(sherdi_modules_tell(engine));
    /* a queued update has sent it; what rests is read all the same */
    status = engine->fingerprints.is_sent ? sherdi_update_fingerprint(engine) : SHERD_OK;
    if (status == SHERD_OK) {
        status = sherdi_update_read_fingerprint(engine, &own);
    }
    SHERDI_TRY(sherdi_fingerprint_sum(engine, status, own, engine->plan->layout.is_sliced, &sum));
    *out = engine->fingerprints.frozen + sum;
    return SHERD_OK;
}
