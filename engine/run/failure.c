#include "engine/run/failure.h"

#include "collectives/world.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"

#include <unistd.h>

/* A forked child shares memory with the parent's peers, and has none of the parent's threads. */
sherd_status sherdi_engine_check_caller(const sherd_engine *engine, const char *call)
{
    if (engine == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "%s: the engine is NULL", call);
    }
    if (engine->process != getpid()) {
        return sherdi_fail(
            SHERD_E_STATE,
            "%s: this process was forked from the one that made the engine, and cannot use "
            "it; make a world and an engine of its own, or, for CUDA or MPI, start a new "
            "process (exec, spawn)",
            call);
    }
    SHERDI_TRY(sherdi_callback_check(call, engine->callback.of));
    sherdi_world_caller_note(engine->world, call);
    return SHERD_OK;
}

void sherdi_engine_callback_begin(sherd_engine *engine, const char *call)
{
    engine->callback.of       = call;
    engine->callback.of_world = sherdi_world_callback_set(engine->world, call);
}

void sherdi_engine_callback_end(sherd_engine *engine)
{
    (void)sherdi_world_callback_set(engine->world, engine->callback.of_world);
    engine->callback.of = NULL;
}

const char *sherdi_engine_way_out(const sherd_engine *engine)
{
    return engine->plan != NULL && !engine->failure.is_final && engine->plan->has_generations
               ? "call sherd_step_undo to go back to the step before, load a checkpoint, or "
                 "destroy "
                 "the engine and resume its run"
               : "load a checkpoint, or destroy the engine and load one into a new engine";
}

sherd_status sherdi_engine_check_alive(const sherd_engine *engine, const char *call)
{
    SHERDI_TRY(sherdi_engine_check_caller(engine, call));
    if (engine->failure.why.status != SHERD_OK) {
        return sherdi_fail(SHERD_E_STATE, "the engine cannot go on: %s; %s; the cause was: %s",
                           engine->failure.why.status == SHERD_E_DEVICE
                               ? "its device was lost"
                               : "it failed in the middle of an update or a write",
                           engine->failure.why.status == SHERD_E_DEVICE
                               ? "destroy it and load a checkpoint into a new engine"
                               : sherdi_engine_way_out(engine),
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
    if (status != SHERD_OK) {
        sherdi_modules_call_failed(engine, status);
    }
    if (status != SHERD_E_DEVICE) {
        return status;
    }
    sherdi_engine_poison(engine, status);
    if (engine->world_size > 1) {
        sherd_world_abort(engine->world, engine->failure.why.text);
    }
    return sherdi_outcome_end(&engine->failure.why);
}
