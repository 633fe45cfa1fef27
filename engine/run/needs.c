#include "engine/run/needs.h"

#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"

/* Checks the needs that are a condition and a message each. */
static sherd_status rows_check(const sherd_engine *engine, const char *call, unsigned needs)
{
    const int is_inference = engine->settings.update.optimizer->is_inference;
    const struct {
        sherdi_need need;
        int         is_met;
        const char *text;
    } rows[] = {
        {SHERDI_NEED_OPEN, engine->phase == SHERDI_PHASE_OPEN,
         "the engine is sealed already; everything is declared before "
         "sherd_engine_seal, which is called once"},
        {SHERDI_NEED_SEALED, engine->phase != SHERDI_PHASE_OPEN,
         "the engine is not sealed; call sherd_engine_seal first"},
        {SHERDI_NEED_STEPS, !is_inference,
         "optimizer.type is none: the engine is for inference and has no steps; set "
         "another optimizer.type to train"},
        {SHERDI_NEED_STARTED, engine->phase != SHERDI_PHASE_SEALED,
         "the engine has not started: no unit was acquired yet; run a forward and a "
         "backward pass first"},
        {SHERDI_NEED_PREPARED, engine->phase == SHERDI_PHASE_PREPARED,
         "no step is prepared; call it between sherd_step_prepare, at a boundary, and "
         "sherd_step_apply or sherd_step_discard"},
        {SHERDI_NEED_UNPREPARED, engine->phase != SHERDI_PHASE_PREPARED,
         "a step is prepared; call sherd_step_apply or sherd_step_discard first"},
        {SHERDI_NEED_NO_EVAL, !engine->is_evaluating,
         "it is not allowed between sherd_eval_begin and sherd_eval_end, where parameters "
         "do not change; call sherd_eval_end first"},
    };

    for (size_t n = 0; n < sizeof(rows) / sizeof(rows[0]); n++) {
        if (needs & rows[n].need && !rows[n].is_met) {
            return sherdi_fail(SHERD_E_STATE, "%s: %s", call, rows[n].text);
        }
    }
    return SHERD_OK;
}

static sherd_status released_need(const sherd_engine *engine, const char *call)
{
    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        if (sherdi_unit_of(engine, (int)u)->held > 0) {
            return sherdi_fail(SHERD_E_STATE, "%s: unit %s is still acquired; release it first",
                               call, engine->model.units[u].name);
        }
    }
    return SHERD_OK;
}

static sherd_status no_gradients_need(const sherd_engine *engine, const char *call)
{
    if (engine->window.micro_seen == 0 && !engine->window.has_backward) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_STATE,
        "%s: the window is not over, it has %d micro-batches so far; call it after the sherd_step "
        "that ends the window, or drop the window with sherd_step_discard",
        call, engine->window.micro_seen);
}

sherd_status sherdi_engine_need(const sherd_engine *engine, const char *call, unsigned needs)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine, call));
    SHERDI_TRY(rows_check(engine, call, needs));
    if (needs & SHERDI_NEED_RELEASED) {
        SHERDI_TRY(released_need(engine, call));
    }
    if (needs & SHERDI_NEED_NO_GRADIENTS) {
        SHERDI_TRY(no_gradients_need(engine, call));
    }
    if (needs & SHERDI_NEED_NO_WINDOW && !engine->settings.update.optimizer->is_inference &&
        (engine->window.micro_seen != 0 || engine->window.has_begun)) {
        return sherdi_fail(
            SHERD_E_STATE,
            "%s: the next window has begun, and the call is allowed only between windows; finish "
            "the window with sherd_step, or drop it with sherd_step_discard",
            call);
    }
    return SHERD_OK;
}
