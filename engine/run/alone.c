/* A step that fails on one rank alone, by its drive or for want of memory: the other ranks wait in
 * theirs, until this one discards its window, or gives up. */
#include "collectives/regroup.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"

#include <stdio.h>

/* Whether calls in which other ranks wait can be cancelled: where they wait in one world. */
static int takes_back(const sherd_engine *engine)
{
    return engine->group == NULL && sherdi_world_takes_back(engine->world);
}

/* A drive's failure keeps this rank out of the world's next calls until the trainer reacts. If the
 * world can cancel the calls in which the other ranks will wait, they need not be notified now:
 * either this rank drops the window, which ends these calls, or it tries again and is late. If it
 * gives up instead, give_up sends them this text. If the world cannot cancel calls, the
 * ranks are notified now, and the world is lost. */
static void others_tell(sherd_engine *engine, sherd_status status, const char *text)
{
    if (status != SHERD_E_IO || engine->world_size == 1) {
        return;
    }
    if (takes_back(engine)) {
        (void)snprintf(engine->window.unsent_text, sizeof(engine->window.unsent_text), "%s", text);
    } else {
        sherd_world_abort(engine->world, text);
    }
}

static sherd_status told_forget(sherd_engine *engine, int unit, sherd_pass pass)
{
    (void)unit, (void)pass;
    if (engine->window.lost.status == SHERD_OK) {
        engine->window.unsent_text[0] = '\0'; /* this try succeeded */
    }
    return SHERD_OK;
}

static void window_left(sherd_engine *engine, const sherdi_outcome *why, int meets)
{
    engine->window.is_left |=
        engine->world_size > 1 && (why->status == SHERD_E_IO || why->status == SHERD_E_NOMEM);
    if (engine->window.is_left && meets && takes_back(engine)) {
        (void)sherdi_world_interrupt(engine->world, why->status, why->text);
    }
}

static sherd_status left_check(const sherd_engine *engine)
{
    if (!engine->window.is_left) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_STATE,
                       "the last step failed on rank %d alone, and the other ranks still wait in "
                       "theirs; call sherd_step_discard on all ranks before anything else",
                       engine->rank);
}

static void give_up(sherd_engine *engine)
{
    if (engine->window.unsent_text[0] != '\0') {
        sherd_world_abort(engine->world, engine->window.unsent_text);
    }
}

const sherdi_module sherdi_module_alone = {.unit_acquired = told_forget,
                                           .failed_alone  = others_tell,
                                           .left          = window_left,
                                           .left_check    = left_check,
                                           .give_up       = give_up};
