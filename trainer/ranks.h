/* Runs ranks as threads of this process. train.c uses it for a program that no launcher has
 * started. */
#ifndef LLM_RANKS_H
#define LLM_RANKS_H

#include "sherd.h"

/** The work of one rank. It must not destroy its world. */
typedef void (*ranks_fn)(sherd_world *world, void *ctx);

/** Runs `run` on `count` ranks, each on a thread of its own, and waits for all. A single rank runs
 *  on the caller's thread. `params` is as for sherd_world_threads_with. Fails, with
 *  sherd_last_error(), if the world or the threads cannot be made; then no rank has run to its
 *  end. */
SHERD_MUST_USE sherd_status ranks_run(int count, const sherd_world_params *params, ranks_fn run,
                                      void *ctx);

#endif
