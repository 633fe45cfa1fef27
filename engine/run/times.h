/* How long things take (marks.h): sums for the report of a step, and a trace. */
#ifndef SHERDI_ENGINE_RUN_TIMES_H
#define SHERDI_ENGINE_RUN_TIMES_H

#include "engine/program/program.h"
#include "kernels/backend.h"

/* Parts of a step. */
typedef enum sherdi_timed_part {
    SHERDI_TIMED_STEP = 0, /* the boundary, from the last backward to the next forward */
    SHERDI_TIMED_NORM,
    SHERDI_TIMED_PARTS,
} sherdi_timed_part;

/* What is timed of an operation. */
typedef sherd_status (*sherdi_timed_fn)(sherd_engine *engine, const sherdi_backend *lane,
                                        const sherdi_op *op, void *ctx);

/* Nothing here blocks, unless a comment says otherwise. */
typedef struct sherdi_times_ops {
    /* Call it when no lane works any more. */
    void (*close)(sherd_engine *engine);
    /* Begin and end a part of a step. The end of a part that was not begun does nothing. */
    void (*begin)(sherd_engine *engine, sherdi_timed_part part);
    void (*end)(sherd_engine *engine, sherdi_timed_part part);
    /* Calls `fn`. `is_wait`: it waits, for the trainer's lane, `lane`, for what the operation
     * follows; else it executes the operation on its lane. */
    sherd_status (*timed)(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                          int is_wait, sherdi_timed_fn fn, void *ctx);
    /* Completes the times of engine->report for its boundary and the window before it. What the
     * device has not done yet counts for the next report, unless `wait` comes before that. */
    void (*boundary)(sherd_engine *engine);
    /* Blocks until the device has done the work of the last boundary, and adds its times to
     * engine->boundary. E_DEVICE, E_PEER_LOST. */
    sherd_status (*wait)(sherd_engine *engine);
} sherdi_times_ops;

#endif
