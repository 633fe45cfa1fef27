/* Lanes: queues of operations that overlap (lanes_impl.h). */
#ifndef SHERDI_ENGINE_RUN_LANES_OPS_H
#define SHERDI_ENGINE_RUN_LANES_OPS_H

#include "sherd.h"

typedef struct sherdi_lanes_ops {
    /* Call it when no lane works any more. */
    void (*close)(sherd_engine *engine);
    /* Make the trainer's next kernels run after the update, and what follows a walk after its
     * copies. */
    void (*join)(sherd_engine *engine);
    void (*walk_over)(sherd_engine *engine);
    /* Waits until all collectives are over. Returns the first failure. */
    sherd_status (*wire_wait)(sherd_engine *engine);
    /* Waits for all lanes; ignores their failures. */
    void (*drain)(sherd_engine *engine);
} sherdi_lanes_ops;

#endif
