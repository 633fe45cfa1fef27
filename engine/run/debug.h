/* The checks of SHERD_DEBUG; without it these functions do nothing. */
#ifndef SHERDI_ENGINE_RUN_DEBUG_H
#define SHERDI_ENGINE_RUN_DEBUG_H

#include "base/status.h"

/** Notes a hash of each of a unit's parameters. E_DEVICE. */
sherd_status sherdi_debug_params_note(sherd_engine *engine, int unit);
/** Compares the parameters with those hashes. E_STATE names the first one that has changed; E_DEVICE. */
sherd_status sherdi_debug_params_check(sherd_engine *engine, int unit);

#endif
