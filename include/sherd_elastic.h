/* Worlds that get smaller or larger while training goes on, and engines that move from one world to
 * the next: calls of the module "elastic". sherd.h includes this header, and has the conventions.
 * docs/elastic.md shows how they are used. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_ELASTIC_H)
#define SHERD_ELASTIC_H

/** Makes the world of the ranks that go on: those that call this, while the others call
 *  sherd_world_leave. They keep their order, and the gaps between them are closed.
 *
 *  Ownership  `world` stays as it is, and *out is another world: the program destroys `world` when
 *             all engines have moved from it (sherd_engine_move).
 *  Collective every rank of `world` calls this or sherd_world_leave. Blocking.
 *  Errors     those of sherd_world_split. After a failure no rank has a new world. E_PEER_LOST: a
 *             rank died, also while the ranks meet here; nobody waits longer than the world's limit
 */
SHERD_CALL sherd_world_shrink(sherd_world *world, sherd_world **out);

/** Says that this rank leaves the world: it takes part in sherd_world_shrink of the others, and
 *  gets no new world. Its engines still have to give away their state: sherd_engine_move with a
 *  NULL world. Then the program destroys its engines and `world`. Collective as sherd_world_shrink,
 *  with its errors. */
SHERD_CALL sherd_world_leave(sherd_world *world);

/** Makes a world of the ranks of `world` and of newcomers. The ranks of `world` keep their numbers;
 *  newcomers have the numbers from its size on, and come by sherd_world_create, or by
 *  sherd_world_from_env, with their rank, `world_size`, the same `rendezvous` and the same job
 *  secret. Parameters of the world are those of `world`.
 *
 *  Ownership  as for sherd_world_shrink
 *  Collective every rank of `world` calls it, with equal arguments. Blocking, until all ranks have
 *             met, or for the limit of a meeting (SHERD_TIMEOUT, at most the world's timeout_ns).
 *  Errors     E_INVAL      `world_size` is not above the size of `world`, or the address is none
 *             E_NOTSUP     the ranks are threads: their program makes the larger world itself, with
 *                          sherd_world_threads; or the transport is not shm
 *             E_PEER_LOST  a rank or a newcomer did not come; `world` is as usable as before,
 *                          unless one of its own ranks is lost
 */
SHERD_CALL sherd_world_grow(sherd_world *world, int world_size, const char *rendezvous,
                            sherd_world **out);

#endif
