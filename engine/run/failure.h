/* An engine that is lost (poisoned), a process that may not use it, and functions of the program
 * that may not call it. */
#ifndef SHERDI_ENGINE_RUN_FAILURE_H
#define SHERDI_ENGINE_RUN_FAILURE_H

#include "base/status.h"

/** Every call of an engine begins with one of these two, or with sherdi_engine_need, which calls
 *  the second. Returns E_INVAL if the engine is NULL; E_STATE in a forked child of the process that
 *  created it, and inside a function of the program that a call of the engine calls. The message
 *  begins with `call`. */
sherd_status sherdi_engine_check_caller(const sherd_engine *engine, const char *call);
/** Does the same; then returns E_STATE if the engine is lost. */
sherd_status sherdi_engine_check_alive(const sherd_engine *engine, const char *call);
/** Stand around what `call` makes a function of the program do (fill, write): calls of this engine
 *  and its world are refused meanwhile. */
void sherdi_engine_callback_begin(sherd_engine *engine, const char *call);
void sherdi_engine_callback_end(sherd_engine *engine);
/** Returns the remedy after the failure of an update or a write. */
const char *sherdi_engine_way_out(const sherd_engine *engine);
/** Marks the engine as lost; the thread's last error says why. */
void sherdi_engine_poison(sherd_engine *engine, sherd_status status);
/** Call it with the outcome of a call that moved or computed data. On E_DEVICE the device is lost
 *  with its memory: the engine is poisoned, and with more than one rank the world is aborted,
 *  because the others would wait for this rank. Returns `status`. */
sherd_status sherdi_engine_outcome(sherd_engine *engine, sherd_status status);

#endif
