/* Collectives whose times somebody wants. */
#ifndef SHERDI_COLLECTIVES_OBSERVED_H
#define SHERDI_COLLECTIVES_OBSERVED_H

#include "collectives/world.h"

/* Gets a report when a call on the host's side of a transport has ended, on the thread that
 * executed it; `what` belongs to the call. Calls on a lane are not reported; the caller can mark
 * them. */
typedef struct sherdi_world_timer {
    sherdi_world_observer common; /* first: {sherdi_world_observe} */
    void (*tell)(void *ctx, int is_reduction, const char *what, uint64_t bytes, int64_t start_ns,
                 int64_t end_ns);
    void *ctx;
} sherdi_world_timer;

/** A function of sherdi_world_observer, for a sherdi_world_timer. */
sherd_status sherdi_world_observe(sherd_world *world, const struct world_call *call,
                                  sherd_status (*make)(sherd_world             *world,
                                                       const struct world_call *call));

#endif
