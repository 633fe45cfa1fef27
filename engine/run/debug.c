/* SHERD_DEBUG: detects writes to parameters while a unit is acquired. What becomes of such a write depends on the layout: it is
 * kept where parameters are whole, and lost where they are gathered. So it is an error in every layout. loop.c calls these
 * functions; the other checks of SHERD_DEBUG are where their code is (is_debug). */
#include "engine/run/debug.h"

#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"

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
