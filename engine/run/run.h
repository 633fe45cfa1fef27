/* Carrying out the program: one table from the kind of an operation to a function, and one loop. An operation is
 * given to its lane behind all that it has to follow (order.h); the host waits for a lane only where it works with
 * what the lane has made. */
#ifndef SHERDI_ENGINE_RUN_RUN_H
#define SHERDI_ENGINE_RUN_RUN_H

#include "engine/run/drive.h"
#include "engine/run/state_note.h"

/* Points of a lane of a device that can still be waited for one by one; older ones with the next that can. */
#define SHERDI_RUN_EVENTS 64

/* Takes a block's values for a checkpoint (SHERDI_OP_SAVE), or gives them (SHERDI_OP_LOAD): sherdi_run_block_get and
 * _put. */
typedef sherd_status (*sherdi_block_fn)(void *ctx, const sherdi_op *op);

typedef struct sherdi_run {
    sherdi_order    order;
    sherdi_progress progress;
    sherdi_program  program; /* whose operations are carried out */
    sherdi_drive    drive;
    uint64_t        given[SHERDI_LANES];
    sherdi_event
               *events[SHERDI_LANES][SHERDI_RUN_EVENTS]; /* by number; NULL: the lane is the host */
    const void *given_mine;                              /* of an exchange */
    void       *given_all;
    sherdi_block_fn     block_fn; /* of the walk under way */
    void               *block_ctx;
    sherdi_state_record record; /* of a commit; what a rollback found */
} sherdi_run;

#endif
