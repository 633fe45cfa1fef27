/* See rings.h. */
#include "engine/run/rings.h"

#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/fill.h"
#include "engine/run/kernels.h"
#include "engine/run/update.h"

sherd_status sherdi_run_settle(sherd_engine *engine, sherdi_ring ring)
{
    sherd_status status;

    if (engine->run.users[ring] != sherdi_run_user(engine)) { /* an update has the ring */
        SHERDI_TRY(SHERDI_IF_OFFLOAD(await(&engine->run.program, SHERDI_POST_END, -1)));
    }
    status = SHERDI_ASK(storage, settle, engine, ring);
    SHERDI_TELL_OFFLOAD(forget(&engine->run.progress, ring));
    return status;
}

void sherdi_run_drop_ahead(sherd_engine *engine, sherdi_ring ring)
{
    if (engine->run.users[ring] != sherdi_run_user(engine)) {
        (void)SHERDI_IF_OFFLOAD(await(&engine->run.program, SHERDI_POST_END, -1));
    }
    SHERDI_TELL(storage, drop, engine, ring);
    SHERDI_TELL_OFFLOAD(forget(&engine->run.progress, ring));
}

void sherdi_run_leave(sherd_engine *engine, sherdi_ring ring)
{
    if (engine->run.users[ring] == SHERDI_USER_TRAINER) {
        (void)sherdi_run_settle(engine, ring);
    }
}

void sherdi_run_end_activations(sherd_engine *engine)
{
    (void)sherdi_run_settle(engine, SHERDI_RING_ACTIVATIONS);
}

/* ------------------------------------------------------------------- walks -- */

/* Waits for the transfers of a walk. A walk that only reads does not use the reads ahead. */
static void rings_settle(sherd_engine *engine, int is_written, sherdi_outcome *all)
{
    sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_STATE));
    if (is_written && sherdi_run_user(engine) == SHERDI_USER_TRAINER) {
        sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_PARAMS));
        sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_GRADS));
    }
}

sherd_status sherdi_rings_walk(sherd_engine *engine, sherdi_walk walk)
{
    int            is_written = walk != SHERDI_WALK_FINGERPRINT && walk != SHERDI_WALK_SAVE;
    sherdi_outcome all;
    int            is_left;

    if (is_written) { /* the parameters are about to change */
        sherdi_run_drop_ahead(engine, SHERDI_RING_PARAMS);
    }
    all     = sherdi_outcome_of(sherdi_program_walk(sherdi_run_program(engine), walk));
    is_left = all.status != SHERD_OK;
    SHERDI_TELL(updater, walk_made, engine, &all);
    rings_settle(engine, is_written, &all);
    if (is_left && is_written) {
        sherdi_outcome_add(&all, SHERDI_IF_OFFLOAD(walk_leave(sherdi_run_program(engine), walk)));
        rings_settle(engine, is_written, &all);
    }
    return sherdi_outcome_end(&all);
}

sherd_status sherdi_update_commit_note(sherd_engine *engine)
{
    sherdi_scaler scaler = engine->scaler; /* as a step without overflow leaves it */

    SHERDI_TRY(sherdi_modules_scaler_update(&scaler, 0));
    SHERDI_TELL(storage, note, engine, engine->counters.step + 1, &scaler, 0);
    return SHERD_OK;
}

/* ------------------------------------------------------------------ values -- */

sherd_status sherdi_values_begin(sherd_engine *engine)
{
    sherd_status queued = SHERDI_ASK(updater, join, engine);
    sherd_status status = sherdi_run_settle(engine, SHERDI_RING_STATE);
    sherd_status own    = sherdi_run_settle(engine, SHERDI_RING_PARAMS);

    if (queued != SHERD_OK) {
        return SHERDI_ASK(updater, check, engine); /* with the way out */
    }
    return own == SHERD_OK ? status : own;
}

sherd_status sherdi_fill_settle(sherd_engine *engine)
{
    sherd_status status = SHERDI_IF_OFFLOAD(fill_end(&engine->run.program));
    sherd_status own    = SHERDI_ASK(storage, settle_filled, engine);

    SHERDI_TRY(own);
    SHERDI_TRY(status);
    return sherdi_values_begin(engine);
}

int sherdi_fill_commits(const sherd_engine *engine)
{
    return engine->phase == SHERDI_PHASE_SEALED && engine->plan->has_generations &&
           !engine->storage.is_resumed && (!engine->fill.is_loaded || engine->fill.is_changed);
}

/* If a drive does not return the written bytes, the first update, which reads them, detects it,
 * unless fast_init is on. */
sherd_status sherdi_fill_store(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_fill_settle(engine));
    if (!sherdi_fill_commits(engine)) {
        return SHERD_OK;
    }
    engine->fingerprints.own = sherdi_fill_fingerprint(engine, 0);
    engine->fingerprints.has_own =
        !engine->fill.is_loaded; /* else it needs the rest of the state */
    SHERDI_TRY(sherdi_update_fingerprint(engine));
    SHERDI_TELL(storage, verify, engine,
                engine->settings.offload.verify_reads || !engine->settings.offload.fast_init);
    return SHERD_OK;
}
