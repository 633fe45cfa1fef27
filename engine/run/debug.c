/* SHERD_DEBUG: checks of acquire and release. The other checks of SHERD_DEBUG are where
 * their code is (is_debug).
 *
 * Ranks acquire the same units in the same order, or a boundary finds it. At stage 3, where others'
 * values are needed, a difference shows at once: acquires meet. Each rank may acquire any
 * open-ended units, except for EVAL. Its gathers of other units then differ too, because it follows
 * the plan in its own way. So the gathers themselves need not meet.
 *
 * The effect of a write to parameters depends on the layout: it persists if parameters are whole,
 * and is lost if they are gathered. So it is an error in every layout. */
#include "engine/modules.h"
#include "engine/run/differences.h"
#include "engine/run/engine_impl.h"
#include "engine/run/kernels.h"

#include <stdlib.h>
#include <string.h>

static sherd_status hashes_open(sherd_engine *engine)
{
    engine->param_hashes = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL,
                                              engine->model.num_params, sizeof(uint64_t));
    return engine->param_hashes == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static void hashes_close(sherd_engine *engine)
{
    sherdi_free(engine->param_hashes);
    engine->param_hashes = NULL;
}

/* ----------------------------------------------------------------- acquires -- */

/* Numbers the acquires of a model from 1 on. */
static size_t acquire_number(int unit, sherd_pass pass)
{
    return 1 + (size_t)unit * (SHERD_EVAL + 1) + (size_t)pass;
}

/* Meets the other ranks before an acquire, where ranks have to make the same acquires. One that
 * failed after the meeting is tried again without it. */
static sherd_status acquire_meet(sherd_engine *engine, int unit, sherd_pass pass)
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

/* ---------------------------------------------------------------- parameters -- */

/* Calls `fn` for the units that an acquire reaches and that no other acquire holds. */
static sherd_status alone_do(sherd_engine *engine, int unit,
                             sherd_status (*fn)(sherd_engine *engine, int unit))
{
    int reached;

    for (size_t n = 0; (reached = sherdi_model_reached(&engine->model, unit, n)) >= 0; n++) {
        if (sherdi_unit_of(engine, reached)->held == 1) {
            SHERDI_TRY(fn(engine, reached));
        }
    }
    return SHERD_OK;
}

/* Notes a hash of each of a unit's parameters. */
static sherd_status params_note(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    for (size_t i = 0; i < info->num_params; i++) {
        SHERDI_TRY(sherdi_param_hash(engine, (size_t)info->params[i],
                                     &engine->param_hashes[info->params[i]]));
    }
    return SHERD_OK;
}

/* Compares the parameters with those hashes. */
static sherd_status params_check(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    for (size_t i = 0; i < info->num_params; i++) {
        size_t   param = (size_t)info->params[i];
        uint64_t hash;

        SHERDI_TRY(sherdi_param_hash(engine, param, &hash));
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

/* The acquire has succeeded: the next one meets again. */
static sherd_status acquire_end(sherd_engine *engine, int unit, sherd_pass pass)
{
    if (engine->window.met == acquire_number(unit, pass)) {
        engine->window.met = 0;
    }
    return engine->settings.is_debug ? alone_do(engine, unit, params_note) : SHERD_OK;
}

static sherd_status release_check(sherd_engine *engine, int unit, sherd_pass pass)
{
    (void)pass;
    return engine->settings.is_debug ? alone_do(engine, unit, params_check) : SHERD_OK;
}

/* ------------------------------------------------------------------ poison -- */

/* Fills with 0xff bytes: NaN in every float type. */
void sherdi_kernel_poison(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->device->fill(lane, sherdi_run_address(engine, op, SHERDI_USE_DST), 0xff,
                       op->uses[SHERDI_USE_DST].bytes);
}

static sherd_status debug_read(sherd_engine *engine)
{
    const char *debug = getenv("SHERD_DEBUG");

    if (debug != NULL && debug[0] != '\0' && strcmp(debug, "0") != 0 && strcmp(debug, "1") != 0) {
        return sherdi_fail(SHERD_E_INVAL, "SHERD_DEBUG is \"%s\": it may be 0 or 1", debug);
    }
    engine->settings.is_debug = debug != NULL && strcmp(debug, "1") == 0;
    return SHERD_OK;
}

const sherdi_module sherdi_module_debug = {
    .create         = debug_read,
    .open           = hashes_open,
    .close          = hashes_close,
    .unit_acquiring = acquire_meet,
    .unit_acquired  = acquire_end,
    .unit_releasing = release_check,
};
