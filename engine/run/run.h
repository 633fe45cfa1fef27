/* Carries out the program: a table maps the kind of each operation to a function, and one loop runs them. An operation is given
 * to its lane after everything that it has to follow (order.h). The host waits for a lane only where it works with what the lane
 * has made. */
#ifndef SHERDI_ENGINE_RUN_RUN_H
#define SHERDI_ENGINE_RUN_RUN_H

#include "engine/run/drive.h"
#include "engine/run/state_note.h"

/* How many operations of a device's lane, the latest ones, have an event of their own. The event of an older one belongs to a
 * later operation by now, so who waits for the older one waits for that. */
#define SHERDI_RUN_EVENTS 64

/* Handles a block for a checkpoint: takes its values with sherdi_run_block_get (SHERDI_OP_SAVE), or gives them with
 * sherdi_run_block_put (SHERDI_OP_LOAD). */
typedef sherd_status (*sherdi_block_fn)(void *ctx, const sherdi_op *op);

typedef struct sherdi_run {
    sherdi_order    order;
    sherdi_progress progress;
    sherdi_program  program; /* hands the operations to run.c */
    sherdi_drive    drive;
    uint64_t        given[SHERDI_LANES]; /* number of the lane's latest operation */
    /* by number modulo SHERDI_RUN_EVENTS; NULL: the lane is the host's */
    sherdi_event       *events[SHERDI_LANES][SHERDI_RUN_EVENTS];
    const void         *given_mine; /* of an exchange: this rank's data, and room for all ranks' */
    void               *given_all;
    const char         *given_what;
    sherdi_block_fn     block_fn; /* of the walk under way */
    void               *block_ctx;
    sherdi_state_record record; /* to commit; or what a rollback found */
} sherdi_run;

#endif
