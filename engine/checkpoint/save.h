/* Saving: what the engine itself calls; sherd.h has what trainers call. */
#ifndef SHERDI_ENGINE_CHECKPOINT_SAVE_H
#define SHERDI_ENGINE_CHECKPOINT_SAVE_H

#include "engine/run/engine_impl.h"

typedef struct sherdi_save sherdi_save;

/** Call it at each boundary while an asynchronous save runs. When all ranks have written their
 *  files, it makes the checkpoint complete. If the save failed, sherd_checkpoint_wait returns the
 *  error. Collective. E_PEER_LOST. */
sherd_status sherdi_save_poll(sherd_engine *engine);

#endif
