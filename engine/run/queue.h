/* Updates that are queued. */
#ifndef SHERDI_ENGINE_RUN_QUEUE_H
#define SHERDI_ENGINE_RUN_QUEUE_H

#include "sherd.h"

/* All calls are collective. */
typedef struct sherdi_queue_ops {
    /* Queues the update of a prepared step if this engine can, and makes it otherwise. The report
     * then lacks the fingerprint (fingerprints.is_unreported). */
    sherd_status (*update)(sherd_engine *engine);
    /* Completes the report of a boundary whose update was queued, if it is not complete. */
    sherd_status (*tell)(sherd_engine *engine);
    /* Does the same; blocks until the device has done the work of the last boundary. */
    sherd_status (*wait)(sherd_engine *engine);
} sherdi_queue_ops;

extern const sherdi_queue_ops sherdi_queue_updates;

#endif
