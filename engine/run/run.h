/* Executes the program: a table maps the kind of each operation to a function, and one loop
 * executes them. An operation is enqueued on its lane after the operations that it has to follow
 * (order.h). The host waits for a lane only if it uses a result of the lane. */
#ifndef SHERDI_ENGINE_RUN_RUN_H
#define SHERDI_ENGINE_RUN_RUN_H

#include "collectives/world.h"
#include "engine/run/offload.h"

#include <pthread.h>

/* How many operations of a device's lane, the latest ones, have an event of their own. The event of
 * an older one belongs to a later operation by now, so who waits for the older one waits for
 * that. */
#define SHERDI_RUN_EVENTS 64

/* Handles a block for a checkpoint: takes its values with sherdi_run_block_get (SHERDI_OP_SAVE), or
 * gives them with sherdi_run_block_put (SHERDI_OP_LOAD). */
typedef sherd_status (*sherdi_block_fn)(void *ctx, const sherdi_op *op);

/* The update whose coefficients SHERDI_OP_COEFFS writes. */
typedef struct sherdi_coeffs_call {
    const sherd_step_params *params; /* NULL: none */
    double                   grad_scale;
    int64_t                  step;
    uint64_t                 hash; /* result: of all coefficients */
} sherdi_coeffs_call;

typedef struct sherdi_run {
    /* of order, given, users and the storage's tables, and around submissions to an asynchronous
     * lane */
    pthread_mutex_t lock;
    sherdi_order    order;
    sherdi_progress progress;
    sherdi_program  program;             /* passes the operations to run.c */
    sherdi_user     users[SHERDI_RINGS]; /* who alone starts, ends and waits for its transfers */
    sherdi_link     links[SHERDI_USERS];
    sherdi_link     reported_link;       /* what reports have of it */
    uint64_t        given[SHERDI_LANES]; /* number of the lane's latest operation */
    /* by number modulo SHERDI_RUN_EVENTS; NULL: the lane is the host's */
    sherdi_event      *events[SHERDI_LANES][SHERDI_RUN_EVENTS];
    sherdi_coeffs_call coeffs;
    uint64_t           hash;       /* result of SHERDI_OP_HASH */
    const void        *given_mine; /* of an exchange: this rank's data, and room for all ranks' */
    void              *given_all;
    const char        *given_what;
    sherdi_told        told;     /* where the data of all ranks lie after an exchange */
    sherdi_block_fn    block_fn; /* of the walk under way */
    void              *block_ctx;
} sherdi_run;

/** An operation that can fail at once. *number_out is the lane's next number; a collective replaces
 *  it by its ticket, or by 0 if it is done. */
typedef sherd_status (*sherdi_call_fn)(sherd_engine *engine, const sherdi_op *op,
                                       uint64_t *number_out);
#define SHERDI_CALL(kind, call)                                                                    \
    sherd_status call(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out);
#include "engine/run/call_list.h"
#undef SHERDI_CALL

/** Makes events for the lanes; call it after the plan was made. E_NOMEM,
 *  E_DEVICE. */
sherd_status sherdi_run_open(sherd_engine *engine);
/** Waits for transfers, then frees all that. */
void sherdi_run_close(sherd_engine *engine);
/** Gathers the `mine` of every rank in `all`, or in engine->run.told if that is NULL; `what` is as
 *  in sherdi_world_exchange, NULL: the kind's name. Meets; blocks. */
sherd_status sherdi_run_exchange(sherd_engine *engine, sherdi_exchange_kind kind, const void *mine,
                                 void *all, const char *what);
/** Executes the exchange of an operation, with the arguments of sherdi_run_exchange. */
sherd_status sherdi_run_answer(sherd_engine *engine, const sherdi_op *op);
/** Commits writes of the state between two updates, with the engine's counters and fingerprint;
 *  undo cannot restore the state before it. */
sherd_status sherdi_run_commit_written(sherd_engine *engine);
/** Moves the state in files forward (SHERDI_OP_COMMIT) or back (SHERDI_OP_ABANDON,
 *  SHERDI_OP_ROLLBACK). */
sherd_status sherdi_run_generation(sherd_engine *engine, sherdi_op_kind kind);
/** Gives a ring, which has no transfer under way, to a user. */
void sherdi_run_use_ring(sherd_engine *engine, sherdi_ring ring, sherdi_user user);
/** Blocks until an operation of a lane is over; then nothing has to follow it any more. E_DEVICE,
 *  E_PEER_LOST, E_IO. */
sherd_status sherdi_run_lane_wait(sherd_engine *engine, sherdi_lane_id lane, uint64_t number);
/** Returns whether it is over, without waiting. */
int sherdi_run_lane_is_over(const sherd_engine *engine, sherdi_lane_id lane, uint64_t number);
/** Waits until the wire and the compute lane are idle, so that the updater, which uses neither,
 *  need not follow them. At a boundary, after the norm, little work remains. Returns the first
 *  failure. */
sherd_status sherdi_run_quiet(sherd_engine *engine);
/** Waits until all collectives are over. Returns the first failure. */
sherd_status sherdi_run_drain(sherd_engine *engine);
/** Waits until all transfers of a ring are over or dropped; then its slots are empty. Returns the
 *  first failure. */
sherd_status sherdi_run_settle(sherd_engine *engine, sherdi_ring ring);
/** Does the same with reads that nobody needs any more: how they end does not matter. Nothing of
 *  the ring is being written. */
void sherdi_run_drop_ahead(sherd_engine *engine, sherdi_ring ring);
/** Drops gathered units, operations in flight, and writes that are not committed. Local. E_IO,
 *  E_DEVICE. */
sherd_status sherdi_run_drop(sherd_engine *engine);

#endif
