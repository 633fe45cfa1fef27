/* What transports need whose ranks share no memory, or whose device is waited for. */
#ifndef SHERDI_COLLECTIVES_REMOTE_H
#define SHERDI_COLLECTIVES_REMOTE_H

#include "collectives/world_impl.h"

/** Pauses before the next look at something that wakes nobody. `turn` counts the pauses from 0: the
 *  first ones only yield the core. */
void sherdi_nap(int turn);

/** Sends to all ranks the status of an allocation on this rank (`here`), and returns the result for
 *  all: SHERD_OK, the status of a rank that failed (E_NOMEM, ...), or E_INVAL when the ranks asked
 *  for different lengths. Collective. `what` is for the message: "device memory". */
sherd_status sherdi_world_alloc_agree(sherd_world *world, sherd_status here, size_t len_bytes,
                                      const char *what);

#endif
