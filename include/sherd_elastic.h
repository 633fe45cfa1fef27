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
 *  `world` may have failed because a rank was lost, over shm: then those that are there agree on who
 *  that is. A rank that is late is waited for as long as a call of `world` waits for a rank
 *  (timeout_ns), and then the others go on without it. If another rank is lost meanwhile, they go on
 *  without that one, too. After a move that failed because one more rank was lost, the program
 *  destroys the new world, and calls this again with the old one.
 *
 *  Ownership  `world` stays as it is, and *out is another world: the program destroys `world` when
 *             all engines have moved from it (sherd_engine_move).
 *  Collective every rank of `world` that is there calls this or sherd_world_leave. Blocking.
 *  Errors     those of sherd_world_split. After a failure no rank has a new world. E_PEER_LOST: this
 *             rank was late, and the others have gone on; or a rank was lost, and the transport is
 *             not shm. Each rank that is late is waited for as long as the limit, and then no more.
 *             Under `sherd launch --elastic` also E_STATE: another group of survivors goes on; and
 *             E_IO: the folder of the job cannot be used
 */
SHERD_CALL sherd_world_shrink(sherd_world *world, sherd_world **out);

/** Says that this rank leaves the world: it takes part in sherd_world_shrink of the others, and
 *  gets no new world. Its engines still have to give away their state: sherd_engine_move with a
 *  NULL world. Then the program destroys its engines and `world`. In a world that has failed it
 *  waits for nobody, and the state of this rank is treated as that of a lost one. Collective as
 *  sherd_world_shrink, with its errors. */
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

/* Processes that come and go under `sherd launch --elastic MIN:MAX`. The launcher starts and counts
 * them; the ranks ask it at the end of a step. docs/elastic.md has a whole program. */

/** Returns 1 where the launcher has started this process for a job whose ranks train already. Such
 *  a newcomer declares its model on an engine of a world of its own (sherd_world_self), and then
 *  calls sherd_world_join in place of sherd_world_from_env. Local; 0 without such a launcher. */
SHERD_API int sherd_launched_late(void);

/** Waits until the ranks of the job take this newcomer in, which they do in sherd_world_turn, and
 *  makes the world of all of them. Then the program moves its engine there (sherd_engine_move). If
 *  the move ends with E_PEER_LOST, the program may make a new engine and join again.
 *
 *  Result    *out is NULL where the process is not needed any more: the job is over, or fewer ranks
 *            are wanted again. The program then ends with 0.
 *  Blocking  as long as the job lives. A world that does not come about is waited for 10 seconds,
 *            or SHERD_TIMEOUT, and then the next one.
 *  Errors    E_STATE      the process is not a newcomer
 *            E_PEER_LOST  the launcher has ended
 *            E_IO         the folder of the job cannot be read or written */
SHERD_CALL sherd_world_join(const sherd_world_params *params, sherd_world **out);

/** Asks, between two steps, whether the launcher wants other ranks, and makes their world. A newcomer
 *  begins with a step: the turn that has taken it in counts for it too. The job counts as begun with
 *  the first call; a process that dies before that ends the job.
 *
 *  Result      *out == world  nothing changes
 *              *out == NULL   this rank leaves: its engines move to NULL, and the program ends
 *                             with 0
 *              else           a new world of fewer ranks, or of these and newcomers, to which all
 *                             engines move; then the program destroys `world`
 *  Collective  every rank of `world`. The cost is that of a sum of four numbers; nothing without
 *              the launcher.
 *  Errors      E_PEER_LOST  a rank is lost: the others call sherd_world_shrink and move. A newcomer
 *                           that does not come is no error: *out is `world` then
 *              E_NOTSUP     under this launcher, a world that is not over shm
 *              E_IO         the folder of the job cannot be read or written */
SHERD_CALL sherd_world_turn(sherd_world *world, sherd_world **out);

/** Moves an engine to another world: afterwards it trains there, with the bits that it would have
 *  if it had always been there. One of the two worlds has all ranks of the other: ranks leave, or
 *  newcomers come, but not both in one move.
 *
 *  Who calls it: a rank of both worlds gives the new `world`. A rank that leaves gives NULL; its
 *  state goes to the others, and its engine can only be destroyed. A newcomer has an engine that
 *  was created in a world of its own (sherd_world_self) with the same configuration, and has
 *  declared the same model, but is not sealed: the move seals it and gives it all values.
 *
 *  With data on NVMe the new layout gets files of its own, and a run of its own number; the old ones
 *  are removed when all ranks have committed. sherd_step_undo works again after the next step.
 *
 *  What moves: parameters, state, counters, the loss scale, the run's description, and blobs, by
 *  the rules of a checkpoint that is loaded on another number of ranks. Of the values, only ranges
 *  that change their rank go over the wire. The window in flight is dropped, as by
 *  sherd_step_discard. The global batch stays: accumulation becomes the micro-batches of all ranks
 *  divided by the new number of ranks, rounded up.
 *
 *  Lost ranks: the engine's world may have failed because ranks were lost, and the engine's call have
 *  returned E_PEER_LOST. The new world is that of the survivors (sherd_world_shrink). What the lost
 *  ranks had is taken from where the key sherd.redundancy, or another means, has kept it. An update
 *  that all survivors have made is made for the lost ranks, too; otherwise the window is dropped. An
 *  update that the ranks make together (Muon) is undone by all, unless each had made its part.
 *  sherd_step_share says where training goes on: at most one step is made again.
 *
 *  Addresses  of parameters and gradients, and everything that was asked of the engine before, are
 *             invalid afterwards. Memory that parameters are bound to stays.
 *  Ownership  the engine holds the new world and lets the old one go.
 *  Collective over both worlds; engines of one world move in the same order. Blocking.
 *  Errors     E_INVAL      the worlds do not fit each other; the models or settings differ
 *             E_STATE      before seal on a rank of the old world; the engine is poisoned; the state of
 *                          a lost rank is gone: then only a checkpoint helps
 *             E_NOTSUP     a transport other than threads and shm, a trace (SHERD_TRACE), a stream of
 *                          the trainer's on another device, a unit that is stored otherwise on
 *                          the new number of ranks; nothing has changed
 *             E_NOMEM      there is no room for the new layout; but for the dropped window, the
 *                          engine is as it was, in the old world
 *             E_IO         with data on NVMe: a drive failed, or has no room for both layouts; the
 *                          engine is as after E_NOMEM, and no file of the new layout remains
 *             E_PEER_LOST  a rank was lost. Before values have moved, and with sherd.redundancy
 *                          always, the engine is as it was, in its old world; with data on NVMe
 *                          it is until the files of the new layout are committed; otherwise it
 *                          is poisoned, and can only be destroyed
 */
SHERD_CALL sherd_engine_move(sherd_engine *engine, sherd_world *world);

/* The last move of an engine. */
typedef struct sherd_move_report {
    size_t   struct_size;
    int      old_size, new_size;    /* ranks */
    int      dropped_micro_batches; /* of this rank, in the window that was dropped */
    int      lost_size;             /* ranks of the old world that were lost */
    uint64_t moved_bytes;           /* over the wire, of all ranks together */
    uint64_t sent_bytes;            /* of them by this rank */
    uint64_t received_bytes;
    uint64_t kept_bytes; /* from the old to the new memory of this rank */
    size_t   peak_bytes; /* most memory of both layouts that this rank held at once */
    double   seconds;
    double   planned_s; /* of them until values went: plans and memory */
    int64_t  step;      /* steps that the state has: training goes on with the next one */
    /* by this rank: of the old layout's files, and of the new one's, which are read once, too */
    uint64_t nvme_read_bytes, nvme_written_bytes;
} sherd_move_report;
SHERD_API void sherd_move_report_init(sherd_move_report *report);
/** Returns the report of the last move of this rank; zeros if there was none. Local. */
SHERD_CALL sherd_move_query(const sherd_engine *engine, sherd_move_report *out);

/* Which micro-batches of the global batch are this rank's, in the window that is open or that comes
 * next. Numbers count the micro-batches of all ranks from the beginning of the run, whatever their
 * layout was: what a trainer derives from a number (the samples, the seed of dropout) is then the
 * same on all layouts. */
typedef struct sherd_share {
    size_t  struct_size;
    int     count;  /* micro-batches of this rank that are still to come in this window */
    int     calls;  /* of sherd_step that are still to come in it, on every rank; where `count` is
                      less, the rank is without data at the end, and calls sherd_micro_batch_skip */
    int64_t number; /* of the next micro-batch of this rank; the others follow ... */
    int     stride; /* ... in this distance, which is the number of ranks */
    int     window_count; /* micro-batches of the window on all ranks: the global batch */
    int64_t window_first; /* the number of the first of them */
} sherd_share;
SHERD_API void sherd_share_init(sherd_share *share);
/** Returns the share of this rank. It changes with each sherd_step and with sherd_engine_move. Local.
 *  Errors  E_STATE  before seal */
SHERD_CALL sherd_step_share(sherd_engine *engine, sherd_share *out);

#endif
