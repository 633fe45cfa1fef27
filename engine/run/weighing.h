/* The weights of micro-batches, and ranks without data: weighing.c. */
#ifndef SHERDI_ENGINE_RUN_WEIGHING_H
#define SHERDI_ENGINE_RUN_WEIGHING_H

#include "engine/run/engine_impl.h"

/** Make the memory for the weights of all ranks, where reductions need them, and free it. E_NOMEM. */
sherd_status sherdi_weighing_open(sherd_engine *engine);
void         sherdi_weighing_close(sherd_engine *engine);

#endif
