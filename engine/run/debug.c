/* SHERD_DEBUG: checks of acquire and release, for loop.c. The other checks of SHERD_DEBUG are where
 * their code is (is_debug).
 *
 * Ranks acquire the same units in the same order, or a boundary finds it. At stage 3, where others'
 * values are needed, a difference shows at once: acquires meet. Each rank may acquire any
 * open-ended units, except for EVAL. Its gathers of other units then differ too, because it follows
 * the plan in its own way. So the gathers themselves need not meet.
 *
 * The effect of a write to parameters depends on the layout: it persists if parameters are whole,
 * and is lost if they are gathered. So it is an error in every layout. */
#include "engine/run/debug.h"

#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"

/* ----------------------------------------------------------------- acquires -- */

/* Numbers the acquires of a model from 1 on. */
static size_t acquire_number(int unit, sherd_pass pass)
{
    return 1 + (size_t)unit * (SHERD_EVAL + 1) + (size_t)pass;
}

sherd_status sherdi_debug_acquire_meet(sherd_engine *engine, int unit, sherd_pass pass)
{
    char nothing = 0; /* the ranks compare the names of the calls */
    int  is_free = engine->plan->layout.units[unit].is_open_ended && pass != SHERD_EVAL;

    if (!engine->settings.is_debug || engine->settings.sharding.stage < 3 ||
        engine->world_size == 1 || is_free || engine->window.met == acquire_number(unit, pass)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_run_exchange(engine, SHERDI_EXCHANGE_ACQUIRE, &nothing, NULL,
                                   engine->model.units[unit].name));
    engine->window.met = acquire_number(unit, pass);
    return SHERD_OK;
}

void sherdi_debug_acquire_end(sherd_engine *engine, int unit, sherd_pass pass)
{
    if (engine->window.met == acquire_number(unit, pass)) {
        engine->window.met = 0;
    }
}

/* ---------------------------------------------------------------- parameters -- */

sherd_status sherdi_debug_params_note(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    for (size_t i = 0; i < info->num_params && engine->settings.is_debug; i++) {
        SHERDI_TRY(sherdi_loop_param_hash(engine, (size_t)info->params[i],
                                          &engine->param_hashes[info->params[i]]));
    }
    return SHERD_OK;
}

sherd_status sherdi_debug_params_check(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    for (size_t i = 0; i < info->num_params && engine->settings.is_debug; i++) {
        size_t   param = (size_t)info->params[i];
        uint64_t hash;

        SHERDI_TRY(sherdi_loop_param_hash(engine, param, &hash));
        if (hash != engine->param_hashes[param]) {
            return sherdi_fail(SHERD_E_STATE,
                               "unit %s: the program wrote to parameter %s while it was acquired, "
                               "but what sherd_param_data gives is read-only (some layouts would "
                               "keep the write, others lose it); use sherd_param_write",
                               info->name, engine->model.params[param].name);
        }
    }
    return SHERD_OK;
}
