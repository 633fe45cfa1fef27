/* Ranks that are threads of this process. train.c uses them for a program that no launcher has
 * started. */
#ifndef LLM_RANKS_H
#define LLM_RANKS_H

#include "sherd.h"

/** The work of one rank. It must not destroy its world. */
typedef void (*ranks_fn)(sherd_world *world, void *ctx);

typedef struct ranks ranks;

/** Returns NULL if there is no memory. `ctx` is for the work of all ranks. */
ranks *ranks_create(void *ctx);
/** Starts a thread that does the work and then destroys its world. Any thread may call it, until
 *  ranks_join returns. E_NOMEM: the thread could not be started, and the world is still the
 *  caller's. */
SHERD_MUST_USE sherd_status ranks_add(ranks *all, sherd_world *world, ranks_fn run);
/** Waits for all threads, those added meanwhile included, and frees everything. */
void ranks_join(ranks *all);

/** Runs `run` on the ranks of a world of `count` threads, and waits for them and for those that
 *  they add. Frees `all`; NULL: there was no memory. `params` is as for sherd_world_threads_with. Fails, with sherd_last_error(), if the
 *  world or the threads cannot be made; then no rank has run to its end. */
SHERD_MUST_USE sherd_status ranks_run(ranks *all, int count, const sherd_world_params *params,
                                      ranks_fn run);

#endif
