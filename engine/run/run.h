/* Executes the program: a table maps the kind of each operation to a function. Operations are
 * executed one by one, on the calling thread; a build that has lanes (lanes_impl.h) enqueues them,
 * and lets those on different lanes overlap. */
#ifndef SHERDI_ENGINE_RUN_RUN_H
#define SHERDI_ENGINE_RUN_RUN_H

#include "collectives/world.h"
#include "engine/run/offload.h"

/* The update whose coefficients SHERDI_OP_COEFFS writes. */
typedef struct sherdi_coeffs_call {
    const sherd_step_params *params; /* NULL: none */
    double                   grad_scale;
    int64_t                  step;
    uint64_t                 hash; /* result: of all coefficients */
} sherdi_coeffs_call;

typedef struct sherdi_run {
    sherdi_progress    progress;
    sherdi_program     program;             /* passes the operations to run.c */
    sherdi_user        users[SHERDI_RINGS]; /* who alone starts, ends and waits for its transfers */
    sherdi_link        links[SHERDI_USERS];
    sherdi_link        reported_link;           /* what reports have of it */
    uint64_t           submitted[SHERDI_LANES]; /* number of the lane's latest operation */
    sherdi_coeffs_call coeffs;
    uint64_t           hash;        /* result of SHERDI_OP_HASH */
    const void        *own_message; /* of an exchange: this rank's data, and room for all ranks' */
    void              *all_messages;
    const char        *message_name;
    sherdi_messages    messages; /* where the data of all ranks lie after an exchange */
} sherdi_run;

/** An operation that can fail at once. *number_out is the lane's next number; a collective replaces
 *  it by its ticket, or by 0 if it is done. */
typedef sherd_status (*sherdi_call_fn)(sherd_engine *engine, const sherdi_op *op,
                                       uint64_t *number_out);
#define SHERDI_CALL(kind, call)                                                                    \
    sherd_status call(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out);
#include "engine/run/call_list.h"
#undef SHERDI_CALL

/** Open and close the marks, and the lanes of this build. E_NOMEM, E_DEVICE. */
sherd_status sherdi_lanes_open(sherd_engine *engine);
void         sherdi_lanes_close(sherd_engine *engine);
/** Executes an operation on a lane: its call, or its kernel. *number: as for sherdi_call_fn. */
sherd_status sherdi_run_op(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                           uint64_t *number);

/** Returns the program of the calling thread: the trainer's, or that of a queued update. */
const sherdi_program *sherdi_run_program(const sherd_engine *engine);
/** Makes the program; call it after the lanes were opened. E_NOMEM. */
sherd_status sherdi_run_open(sherd_engine *engine);
/** Waits for transfers, then frees all that. */
void sherdi_run_close(sherd_engine *engine);
/** Gathers the `mine` of every rank in `all`, or in engine->run.messages if that is NULL; `what` is as
 *  in sherdi_world_exchange, NULL: the kind's name. Meets; blocks. */
sherd_status sherdi_run_exchange(sherd_engine *engine, sherdi_exchange_kind kind, const void *mine,
                                 void *all, const char *what);
/** Executes the exchange of an operation, with the arguments of sherdi_run_exchange. */
sherd_status sherdi_run_answer(sherd_engine *engine, const sherdi_op *op);

#endif
