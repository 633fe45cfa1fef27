/* Updates that are queued. */
#ifndef SHERDI_ENGINE_RUN_QUEUE_H
#define SHERDI_ENGINE_RUN_QUEUE_H

#include "engine/run/engine_impl.h"

extern const sherdi_queue_ops sherdi_queue_updates;

#endif
