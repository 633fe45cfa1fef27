/* An engine that is lost (poisoned), and a process that may not use it. */
#ifndef SHERDI_ENGINE_RUN_FAILURE_H
#define SHERDI_ENGINE_RUN_FAILURE_H

#include "base/status.h"

/** Returns E_STATE in a forked child of the process that created the engine. sherdi_engine_check_alive calls it. */
sherd_status sherdi_engine_check_process(const sherd_engine *engine);
/** Returns E_STATE if the engine is lost, or in a forked child; E_INVAL if it is NULL. */
sherd_status sherdi_engine_check_alive(const sherd_engine *engine);
/** Marks the engine as lost; the thread's last error says why. */
void sherdi_engine_poison(sherd_engine *engine, sherd_status status);
/** Call it with the outcome of a call that moved or computed data. On E_DEVICE the device is lost with its memory: the engine is
 *  poisoned, and with more than one rank the world is aborted, because the others would wait for this rank. Returns `status`. */
sherd_status sherdi_engine_outcome(sherd_engine *engine, sherd_status status);

#endif
