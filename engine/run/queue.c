/* An update that is queued, and the report of its step, which is complete when the update is
 * over. */
#include "engine/run/queue.h"

#include "collectives/follow.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/failure.h"
#include "engine/run/step.h"
#include "engine/run/update.h"

/* Without a drive only the device can fail, and its failure is permanent. So the ranks need not
 * exchange the status. But where they would undo an update that they make together (sherd.redundancy
 * with matrices), none may go on before all have made it. */
static int can_be_queued(const sherd_engine *engine)
{
    const sherdi_plan_buffer *buffers = engine->plan->packing.buffers;

    return engine->backend->device->is_async && !engine->plan->has_files &&
           (buffers[SHERDI_BUFFER_REDUNDANCY].bytes == 0 ||
            buffers[SHERDI_BUFFER_DIRECTIONS].bytes == 0);
}

static sherd_status range_queue(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_update_walk_over(engine, SHERDI_WALK_UPDATE));
    engine->fingerprints.is_unreported = 1;
    engine->report.fingerprint         = 0;
    return sherdi_update_publish(engine);
}

static sherd_status queue_update(sherd_engine *engine)
{
    if (engine->updater.is_there) {
        return engine->updater.ops->queue(engine);
    }
    return can_be_queued(engine) ? range_queue(engine) : sherdi_update_range(engine);
}

/* Takes the outcome of a queued update on this rank. */
static sherd_status queued_take(sherd_engine *engine)
{
    sherd_status status = SHERDI_ASK(updater, join, engine);

    if (engine->updater.is_there) {
        SHERDI_TELL(updater, report, engine, &engine->boundary);
        engine->boundary.stored_step = SHERDI_IF(storage, stored_step, (engine), -1);
    }
    return status == SHERD_OK && !engine->fingerprints.has_own ? sherdi_step_fingerprint(engine)
                                                               : status;
}

/* If the ranks have not met, because one has dropped the window or is lost, the outcome stays
 * unreported. */
static sherd_status queue_tell(sherd_engine *engine)
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

static sherd_status queue_wait(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_world_follow(engine->shards, engine->backend, engine->times.boundary_wire));
    SHERDI_TRY(SHERDI_ASK(times, wait, engine));
    return queue_tell(engine);
}

const sherdi_queue_ops sherdi_queue_updates = {
    .update = queue_update, .tell = queue_tell, .wait = queue_wait};

static sherd_status queue_open(sherd_engine *engine)
{
    engine->queue.ops = &sherdi_queue_updates;
    return SHERD_OK;
}

/* No rank may begin another update before all have committed this one. */
static sherd_status window_ending(sherd_engine *engine)
{
    return engine->updater.is_there ? queue_tell(engine) : SHERD_OK;
}

const sherdi_module sherdi_module_queue = {.create = queue_open, .window_ending = window_ending};
