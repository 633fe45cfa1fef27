/* Going back to a generation of the state on a drive. */
#ifndef SHERDI_ENGINE_RUN_RESTORE_H
#define SHERDI_ENGINE_RUN_RESTORE_H

#include "base/status.h"

/** Continues from the state that was found on the drive, at the newest generation that all ranks have. Collective. */
sherd_status sherdi_restore_resume(sherd_engine *engine);
/** Goes back to generation `wanted`, which is the live one or, on ranks that are ahead, the one before it. What is not committed
 *  is dropped; counters and parameters become what they were. A failure poisons the engine if some rank may be at `wanted`
 *  already; the next undo then takes all ranks there. Collective. */
sherd_status sherdi_restore_generation(sherd_engine *engine, uint64_t wanted);

#endif
