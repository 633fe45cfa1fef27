/* Units with SHERD_USES_ANY, and those whose parameters they read. */
#ifndef SHERDI_ENGINE_RUN_USES_H
#define SHERDI_ENGINE_RUN_USES_H

#include "engine/run/engine_impl.h"

/** Allocate and free the memory of the exchange. E_NOMEM. */
sherd_status sherdi_uses_open(sherd_engine *engine);
void         sherdi_uses_close(sherd_engine *engine);
/** Sets the message of this rank: a bit for each open-ended unit that has a gradient, and one for a
 *  backward pass. */
void sherdi_uses_note(const sherd_engine *engine, uint64_t *words);

#endif
