/* The checks of SHERD_DEBUG; without it these functions do nothing. */
#ifndef SHERDI_ENGINE_RUN_DEBUG_H
#define SHERDI_ENGINE_RUN_DEBUG_H

#include "base/status.h"

/** Meets the other ranks before an acquire, where ranks have to make the same acquires. One that
 *  failed after the meeting is tried again without it. E_INVAL: another rank makes another call,
 *  and the world is lost; E_STATE, E_PEER_LOST. */
sherd_status sherdi_debug_acquire_meet(sherd_engine *engine, int unit, sherd_pass pass);
/** Call it when the acquire has succeeded: the next one meets again. */
void sherdi_debug_acquire_end(sherd_engine *engine, int unit, sherd_pass pass);
/** Notes a hash of each of a unit's parameters. E_DEVICE. */
sherd_status sherdi_debug_params_note(sherd_engine *engine, int unit);
/** Compares the parameters with those hashes. E_STATE names the first one that has changed;
 *  E_DEVICE. */
sherd_status sherdi_debug_params_check(sherd_engine *engine, int unit);

#endif
