/* Which micro-batches of the global batch are a rank's own. The micro-batch of micro-step k of a
 * window on rank r of n has the number k * n + r in the window, whatever n is; those of at least
 * train_batch_size / micro_batch_size do not exist. */
#include "engine/elastic/sizes.h"

#include "base/api.h"
#include "engine/run/engine_impl.h"
#include "engine/run/needs.h"

/* The number in its window of the micro-batch that this rank makes now or next. */
static int64_t own_number(const sherd_engine *engine)
{
    return (int64_t)engine->window.micro_seen * engine->world_size + engine->rank;
}

static int window_count(const sherd_engine *engine)
{
    return engine->settings.batch.train_batch_size / engine->settings.batch.micro_batch_size;
}

sherd_status sherdi_share_check(sherd_engine *engine, int unit, sherd_pass pass)
{
    const sherdi_weighing *weighing = &engine->window.weighing;
    const int64_t slots = (int64_t)engine->settings.batch.accumulation * engine->world_size;

    (void)unit;
    if (pass == SHERD_EVAL || slots == window_count(engine) ||
        own_number(engine) < window_count(engine) || (weighing->is_given && weighing->own == 0)) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_STATE,
                       "sherd_unit_acquire: a step has %d micro-batches, and rank %d has none of "
                       "them any more (sherd_step_share); call sherd_micro_batch_skip in place of "
                       "forward and backward",
                       window_count(engine), engine->rank);
}

void sherd_share_init(sherd_share *share)
{
    static const sherd_share STANDARD = {.struct_size = sizeof(*share)};

    sherdi_api_init(share, &STANDARD);
}

sherd_status sherd_step_share(sherd_engine *engine, sherd_share *out)
{
    sherd_share share = {.struct_size = sizeof(share)};
    int64_t     own;

    SHERDI_TRY(sherdi_api_check(out, SHERDI_API(sherd_share)));
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_step_share", SHERDI_NEED_SEALED));
    own                = own_number(engine);
    share.window_count = window_count(engine);
    share.window_first = sherdi_samples_at(engine, engine->window.first_micro) /
                         engine->settings.batch.micro_batch_size;
    share.stride = engine->world_size;
    share.calls  = engine->settings.batch.accumulation - engine->window.micro_seen;
    share.number = share.window_first + own;
    if (own < share.window_count) {
        share.count = (int)((share.window_count - own + share.stride - 1) / share.stride);
    }
    sherdi_api_write(&share, out);
    return SHERD_OK;
}
