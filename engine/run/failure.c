#include "engine/run/failure.h"

#include "engine/run/engine_impl.h"

#include <unistd.h>

/* A forked child shares memory with the parent's peers, and has none of the parent's threads. */
sherd_status sherdi_engine_check_process(const sherd_engine *engine)
{
    return engine->process == getpid()
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_STATE,
                     "this process was forked from the one that made the engine, and cannot use "
                     "it; start a new process (exec, spawn) and create an engine there");
}

sherd_status sherdi_engine_check_alive(const sherd_engine *engine)
{
    if (engine == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "the engine is NULL");
    }
    SHERDI_TRY(sherdi_engine_check_process(engine));
    if (engine->failure.why.status != SHERD_OK) {
        return sherdi_fail(
            SHERD_E_STATE, "the engine cannot go on: %s; %s; the cause was: %s",
            engine->failure.why.status == SHERD_E_DEVICE
                ? "its device was lost"
                : "it failed in the middle of an update or a write",
            engine->plan != NULL && !engine->failure.is_final &&
                    sherdi_plan_has_generations(engine->plan)
                ? "call sherd_step_undo to go back to the step before, or destroy the engine"
                : "destroy it and load a checkpoint into a new engine",
            engine->failure.why.text);
    }
    return SHERD_OK;
}

void sherdi_engine_poison(sherd_engine *engine, sherd_status status)
{
    engine->failure.why = sherdi_outcome_of(status);
}

sherd_status sherdi_engine_outcome(sherd_engine *engine, sherd_status status)
{
    if (status != SHERD_E_DEVICE) {
        return status;
    }
    sherdi_engine_poison(engine, status);
    if (engine->world_size > 1) {
        sherd_world_abort(engine->world, engine->failure.why.text);
    }
    return sherdi_outcome_end(&engine->failure.why);
}
