/* Saving, for the engine's own calls; sherd.h has what trainers call. */
#ifndef SHERDI_ENGINE_CHECKPOINT_SAVE_H
#define SHERDI_ENGINE_CHECKPOINT_SAVE_H

#include "engine/run/engine_impl.h"

typedef struct sherdi_save sherdi_save;

/** At a boundary while an asynchronous save runs: where all ranks have written, it becomes complete. Collective. What went
 *  wrong with it sherd_checkpoint_wait tells. E_PEER_LOST. */
sherd_status sherdi_save_poll(sherd_engine *engine);
/** One that still runs is given up; before the engine's memory goes. Local. */
void sherdi_save_abandon(sherd_engine *engine);

#endif
