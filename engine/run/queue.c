/* A step whose update is queued: the call, and the report, which is complete when the update is
 * over. */
#include "engine/run/step.h"

#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/failure.h"
#include "engine/run/lanes.h"
#include "engine/run/needs.h"
#include "engine/run/update.h"

/* Without a drive only the device can fail, and its failure is permanent. So the ranks need not
 * exchange the status. */
static int can_be_queued(const sherd_engine *engine)
{
    return sherdi_has_device(engine) && !sherdi_plan_has_files(engine->plan);
}

static sherd_status range_queue(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_update_walk_over(engine, SHERDI_WALK_UPDATE));
    engine->fingerprints.is_unreported = 1;
    engine->report.fingerprint         = 0;
    return sherdi_update_publish(engine);
}

sherd_status sherdi_step_enqueue(sherd_engine *engine)
{
    if (engine->updater.is_there) {
        return engine->updater.ops->queue(engine);
    }
    return can_be_queued(engine) ? range_queue(engine) : sherdi_update_range(engine);
}

sherd_status sherd_step_queue(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_step_check(engine, "sherd_step_queue"));
    SHERDI_TRY(sherdi_step_prepare(engine, SHERDI_STEP_QUEUED));
    return engine->phase == SHERDI_PHASE_PREPARED
               ? sherdi_step_apply(engine, NULL, NULL, sherdi_step_enqueue)
               : SHERD_OK;
}

/* Takes the outcome of a queued update on this rank. */
static sherd_status queued_take(sherd_engine *engine)
{
    sherd_status status = SHERDI_ASK(updater, join, engine);

    if (engine->updater.is_there) {
        SHERDI_TELL(updater, report, engine, &engine->boundary);
        engine->boundary.stored_step = SHERDI_IF(engine->storage.ops, stored_step, (engine), -1);
    }
    return status == SHERD_OK && !engine->fingerprints.has_own ? sherdi_step_fingerprint(engine)
                                                               : status;
}

/* If the ranks have not met, because one has dropped the window or is lost, the outcome stays
 * unreported. */
sherd_status sherdi_step_tell(sherd_engine *engine)
{
    sherd_status status;

    if (!engine->fingerprints.is_unreported) {
        return SHERD_OK;
    }
    status = queued_take(engine);
    status = sherdi_update_agree(engine, status, engine->fingerprints.own, "in the update",
                                 &engine->boundary.fingerprint);
    if (engine->exchange.status == SHERD_OK) {
        engine->fingerprints.is_unreported = 0;
    }
    if (status != SHERD_OK) {
        if (engine->exchange.status != SHERD_OK) {
            return status;
        }
        sherdi_engine_poison(engine, status); /* other ranks have updated */
        return sherdi_fail(status, "%s; %s", engine->failure.why.text,
                           sherdi_engine_way_out(engine));
    }
    SHERDI_TELL(storage, agreed, engine);
    sherdi_modules_reported(engine);
    return SHERD_OK;
}

sherd_status sherd_step_wait(sherd_engine *engine, sherd_step_report *out)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_step_wait", SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_step_report_check(out));
    SHERDI_TRY(sherdi_world_status(engine->world));
    SHERDI_TRY(sherdi_engine_outcome(
        engine, sherdi_world_follow(engine->world, engine->backend, engine->times.boundary_wire)));
    SHERDI_TRY(sherdi_engine_outcome(engine, SHERDI_ASK(times, wait, engine)));
    SHERDI_TRY(sherdi_engine_outcome(engine, sherdi_step_tell(engine)));
    if (out != NULL) {
        sherdi_api_write(&engine->boundary, out);
    }
    return SHERD_OK;
}
