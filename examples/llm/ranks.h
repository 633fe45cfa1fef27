/* Ranks as threads of this process. */
#ifndef LLM_RANKS_H
#define LLM_RANKS_H

#include "sherd.h"

/** One rank's work; it does not destroy its world. */
typedef void (*ranks_fn)(sherd_world *world, void *ctx);

/** Runs `run` on `count` ranks, each on a thread of its own (one rank: on the caller's), and waits
 *  for all. `params` as for sherd_world_threads_with. Fails, with sherd_last_error(), when the world or the threads cannot be made; then
 *  none has run to its end. */
SHERD_MUST_USE sherd_status ranks_run(int count, const sherd_world_params *params, ranks_fn run,
                                      void *ctx);

#endif
