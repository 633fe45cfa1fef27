/* How long things take. A mark stands around what is timed: between two points of a lane, or by the
 * host's clock where the lane is the host. What becomes of marks is a module (marks.h): sums for
 * the report of a step, and a trace. In a build without it all times of a report are 0. */
#ifndef SHERDI_ENGINE_RUN_TIMES_H
#define SHERDI_ENGINE_RUN_TIMES_H

#include "collectives/world.h"
#include "engine/program/program.h"
#include "kernels/backend.h"

typedef enum sherdi_mark_kind {
    SHERDI_MARK_FORWARD = 0, /* the trainer's time between acquire and release */
    SHERDI_MARK_BACKWARD,
    SHERDI_MARK_EVAL,
    SHERDI_MARK_WAIT_GATHER,     /* the trainer's lane waited for parameters */
    SHERDI_MARK_WAIT_REDUCE,     /* ... for room for gradients, or for the last of them */
    SHERDI_MARK_WAIT_UPDATE,     /* the trainer's thread waited for a queued update */
    SHERDI_MARK_WAIT_ACTIVATION, /* the trainer's lane waited for an activation, or its place */
    SHERDI_MARK_GATHER,          /* time of the transfers themselves, hidden or not */
    SHERDI_MARK_REDUCE,
    SHERDI_MARK_DOWN,
    SHERDI_MARK_UP,
    SHERDI_MARK_NORM,
    SHERDI_MARK_UPDATE,
    SHERDI_MARK_STEP, /* the boundary, from the last backward to the next forward */
    SHERDI_MARK_KINDS,
} sherdi_mark_kind;

typedef struct sherdi_mark {
    sherdi_mark_kind kind;
    const char      *what; /* must live as long as the engine; may be NULL */
    uint64_t         bytes;
    int64_t          start_ns;  /* host's clock; 0: on a device, or not taken */
    int              slot;      /* on a device: number of the slot, from 1; 0: none */
    uint64_t         range;     /* of a profiler (device->range_begin); 0: none */
    int              is_queued; /* of a queued update */
} sherdi_mark;

/* The marks of an operation, on its lane: of the operation, and of the host's wait in it. */
typedef struct sherdi_op_marks {
    sherdi_mark           mark, wait;
    const sherdi_backend *lane;
} sherdi_op_marks;

/* Call these by SHERDI_IF. Nothing here blocks, unless a comment says otherwise. */
typedef struct sherdi_times_ops {
    /* Call it when no lane works any more. */
    void (*close)(sherd_engine *engine);
    /* Begin and end a mark, both on the same lane; NULL: by the host's clock. The end of a mark
     * that was never begun ({0}) does nothing. */
    sherdi_mark (*begin)(sherd_engine *engine, sherdi_mark_kind kind, const sherdi_backend *lane,
                         const char *what, uint64_t bytes);
    void (*end)(sherd_engine *engine, const sherdi_backend *lane, const sherdi_mark *mark);
    /* Begin and end the marks of an operation. `is_wait`: of the time for which the trainer's lane,
     * `lane`, waits for those that it follows; else of the operation on its lane. */
    sherdi_op_marks (*op_begin)(sherd_engine *engine, const sherdi_backend *lane,
                                const sherdi_op *op, int is_wait);
    void (*op_end)(sherd_engine *engine, const sherdi_op_marks *marks);
    /* Adds an interval that the caller has timed. Any thread may call it. */
    void (*add)(sherd_engine *engine, sherdi_mark_kind kind, const char *what, uint64_t bytes,
                int64_t start_ns, int64_t end_ns);
    /* Completes the times of engine->report for its boundary and the window before it. Marks that
     * the device has not passed yet count for the next report, unless `wait` comes before that. */
    void (*boundary)(sherd_engine *engine);
    /* Blocks until the device has passed the marks of the last boundary, and adds their times to
     * engine->boundary. E_DEVICE, E_PEER_LOST. */
    sherd_status (*wait)(sherd_engine *engine);
} sherdi_times_ops;

/* Times of the window and of the last boundary. */
typedef struct sherdi_times {
    const sherdi_times_ops *ops;           /* NULL: nothing is timed */
    sherdi_mark             step;          /* of the boundary in progress */
    uint64_t                boundary_wire; /* last operation of the wire that it had enqueued */
    struct sherdi_marks    *own;           /* of the module */
    const sherdi_world_observer *observer; /* of the engine's collectives; NULL: nobody listens */
} sherdi_times;

#endif
