#include "engine/run/needs.h"

#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"

/* ---------------------------------------------------------- a need each -- */

static sherd_status met_if(int is_met, const char *call, const char *text)
{
    return is_met ? SHERD_OK : sherdi_fail(SHERD_E_STATE, "%s: %s", call, text);
}

static sherd_status open_need(const sherd_engine *engine, const char *call)
{
    return met_if(engine->phase == SHERDI_PHASE_OPEN, call,
                  "the engine is sealed already; everything is declared before "
                  "sherd_engine_seal, which is called once");
}

static sherd_status sealed_need(const sherd_engine *engine, const char *call)
{
    return met_if(engine->phase != SHERDI_PHASE_OPEN, call,
                  "the engine is not sealed; call sherd_engine_seal first");
}

static sherd_status steps_need(const sherd_engine *engine, const char *call)
{
    return met_if(!engine->settings.update.optimizer->is_inference, call,
                  "optimizer.type is none: the engine is for inference and has no steps; set "
                  "another optimizer.type to train");
}

static sherd_status started_need(const sherd_engine *engine, const char *call)
{
    return met_if(engine->phase != SHERDI_PHASE_SEALED, call,
                  "the engine has not started: no unit was acquired yet; run a forward and a "
                  "backward pass first");
}

static sherd_status prepared_need(const sherd_engine *engine, const char *call)
{
    return met_if(engine->phase == SHERDI_PHASE_PREPARED, call,
                  "no step is prepared; call it between sherd_step_prepare, at a boundary, and "
                  "sherd_step_apply or sherd_step_discard");
}

static sherd_status unprepared_need(const sherd_engine *engine, const char *call)
{
    return met_if(engine->phase != SHERDI_PHASE_PREPARED, call,
                  "a step is prepared; call sherd_step_apply or sherd_step_discard first");
}

static sherd_status no_eval_need(const sherd_engine *engine, const char *call)
{
    return met_if(!engine->is_evaluating, call,
                  "it is not allowed between sherd_eval_begin and sherd_eval_end, where parameters "
                  "do not change; call sherd_eval_end first");
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

static sherd_status no_window_need(const sherd_engine *engine, const char *call)
{
    return met_if(engine->settings.update.optimizer->is_inference ||
                      (engine->window.micro_seen == 0 && !engine->window.has_begun),
                  call,
                  "the next window has begun, and the call is allowed only between windows; finish "
                  "the window with sherd_step, or drop it with sherd_step_discard");
}

sherd_status sherdi_engine_need(const sherd_engine *engine, const char *call, unsigned needs)
{
    static sherd_status (*const NEEDS[])(const sherd_engine *, const char *) = {
        open_need,       sealed_need,  steps_need,    started_need,      prepared_need,
        unprepared_need, no_eval_need, released_need, no_gradients_need, no_window_need};

    SHERDI_TRY(sherdi_engine_check_alive(engine, call));
    for (size_t n = 0; n < sizeof(NEEDS) / sizeof(NEEDS[0]); n++) {
        if (needs & 1u << n) {
            SHERDI_TRY(NEEDS[n](engine, call));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_engine_need_unit(const sherd_engine *engine, const char *call, sherd_unit unit)
{
    return unit >= 0 && (size_t)unit < engine->model.num_units
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "%s: unit %d does not exist; the model has %zu", call,
                             unit, engine->model.num_units);
}

sherd_status sherdi_engine_need_param(const sherd_engine *engine, const char *call,
                                      sherd_param param)
{
    return param >= 0 && (size_t)param < engine->model.num_params
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "%s: parameter %d does not exist; the model has %zu",
                             call, param, engine->model.num_params);
}
