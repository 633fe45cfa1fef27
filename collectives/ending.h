/* Endings: the end of something that all ranks have. Each rank notifies the others when it reaches
 * the end, and waits for them up to a limit. */
#ifndef SHERDI_COLLECTIVES_ENDING_H
#define SHERDI_COLLECTIVES_ENDING_H

#include "collectives/world.h"

/* Something that every rank ends, each when it comes to it: neither collective nor in the order of
 * calls. The storage is the owner's; between open and close the world writes it. */
typedef struct sherdi_ending {
    uint64_t              key; /* made of the opener's key, the same on all ranks; 0: not open */
    int                   num_agreed;  /* number of other ranks that agreed */
    int                   num_refused; /* that refused; a rank that changed its mind is in both */
    struct sherdi_ending *next;
} sherdi_ending;

/** Makes room for the endings of a world; once is enough. E_NOMEM. */
sherd_status sherdi_world_endings_make(sherd_world *world);
/** Opens an ending, for which there is room: from now on messages of other ranks about it count. All ranks open it before
 *  any of them can close it, and open the endings of a world in one order: messages in transit of
 *  an earlier ending with the same `key` do not count. */
void sherdi_world_ending_open(sherd_world *world, sherdi_ending *ending, uint64_t key);
/** Notifies the other ranks whether this rank agrees, and waits for them. Returns 1: all ranks have
 *  come and agreed. Returns 0:
 *   - a rank did not come within `most_ns`; ranks that arrive later are then notified (a rank with
 *     most_ns 0 agrees in any case);
 *   - at once when this rank or another one refuses, the world fails, or its transport cannot
 *     notify.
 *  Does nothing when the ending is not open. */
int sherdi_world_ending_close(sherd_world *world, sherdi_ending *ending, int is_agreed,
                              int64_t most_ns);
/** Returns the longest wait in one call. */
int64_t sherdi_world_timeout_ns(const sherd_world *world);

#endif
