/* Carries out the program: one table from the kind of an operation to a function, and one loop. An operation is given to its lane
 * after all that it has to follow (order.h). The host waits for a lane only where it works with what the lane has made. */
#ifndef SHERDI_ENGINE_RUN_RUN_H
#define SHERDI_ENGINE_RUN_RUN_H

#include "engine/run/drive.h"
#include "engine/run/state_note.h"

/* Operations of a device's lane that can be waited for one by one: the latest ones. An older one is waited for with the next
 * that can be. */
#define SHERDI_RUN_EVENTS 64

/* Takes a block's values for a checkpoint (SHERDI_OP_SAVE), or gives them (SHERDI_OP_LOAD): sherdi_run_block_get and
 * sherdi_run_block_put. */
typedef sherd_status (*sherdi_block_fn)(void *ctx, const sherdi_op *op);

typedef struct sherdi_run {
    sherdi_order    order;
    sherdi_progress progress;
    sherdi_program  program; /* its operations are carried out */
    sherdi_drive    drive;
    uint64_t        given[SHERDI_LANES]; /* number of the operation that was given last */
    /* by number of the operation; NULL: the lane is the host's */
    sherdi_event       *events[SHERDI_LANES][SHERDI_RUN_EVENTS];
    const void         *given_mine; /* of an exchange: this rank's data, and room for all ranks' */
    void               *given_all;
    sherdi_block_fn     block_fn; /* of the walk under way */
    void               *block_ctx;
    sherdi_state_record record; /* for a commit; or what a rollback found */
} sherdi_run;

#endif
