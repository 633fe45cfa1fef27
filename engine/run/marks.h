/* How long things took: between two marks on a lane, or by the host's clock where the lane is the host. Sums
 * by kind since the last boundary stand in the step's report; with SHERD_TRACE every span is in the trace. On a
 * device marks are events, taken only where somebody wants to know (a trace, wall_clock_breakdown), and looked at
 * when the step has waited for the device anyway, or by sherd_step_wait. */
#ifndef SHERDI_ENGINE_RUN_MARKS_H
#define SHERDI_ENGINE_RUN_MARKS_H

#include "base/trace.h"
#include "kernels/backend.h"

#include <stdatomic.h>

typedef enum sherdi_mark_kind {
    SHERDI_MARK_FORWARD = 0, /* the trainer's, between acquire and release */
    SHERDI_MARK_BACKWARD,
    SHERDI_MARK_EVAL,
    SHERDI_MARK_WAIT_GATHER, /* the trainer's lane stood still for parameters */
    SHERDI_MARK_WAIT_REDUCE, /* ... for room for gradients, or for the last of them */
    SHERDI_MARK_GATHER,      /* what transfers took, hidden or not */
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
    const char      *what; /* lives as long as the engine; may be NULL */
    uint64_t         bytes;
    int64_t          start_ns; /* host's clock; 0: the mark is of a device, or was not taken */
    int              slot;     /* of a device; below 0: none */
    uint64_t         range;    /* of a profiler; 0: none */
} sherdi_mark;

/* A pair of events and what is between them. */
typedef struct sherdi_mark_slot {
    sherdi_event *start, *end;
    sherdi_mark   mark;
} sherdi_mark_slot;

#define SHERDI_MARK_SLOTS 1024

/* Since the marks were opened. */
typedef struct sherdi_mark_sum {
    _Atomic uint64_t count, bytes;
    _Atomic int64_t  ns;
} sherdi_mark_sum;

typedef struct sherdi_marks {
    const sherdi_device_ops *device;
    sherdi_trace            *trace; /* NULL: none is wanted */
    sherdi_mark_slot *slots; /* [SHERDI_MARK_SLOTS] in a ring; NULL: the device is not timed */
    uint64_t          begun, resolved;
    _Atomic int64_t   spent_ns[SHERDI_MARK_KINDS]; /* the world's thread adds to them */
    sherdi_mark_sum   sums[SHERDI_MARK_KINDS];
    int               logs_transfers; /* a line for each gather and reduction; of rank 0 */
} sherdi_marks;

/** `lane` is any of the engine's; `is_timed`: a device is asked for times. E_NOMEM, E_DEVICE, E_IO (the trace's
 *  file cannot be written). */
sherd_status sherdi_marks_open(sherdi_marks *marks, sherdi_backend *lane, int is_timed, int rank,
                               int world_size, sherdi_mem *mem);
/** No lane works any more. */
void sherdi_marks_close(sherdi_marks *marks, sherdi_backend *lane);

/** Both on the same lane; NULL: the host's clock. */
sherdi_mark sherdi_mark_begin(sherdi_marks *marks, sherdi_mark_kind kind,
                              const sherdi_backend *lane, const char *what, uint64_t bytes);
void sherdi_mark_end(sherdi_marks *marks, const sherdi_backend *lane, const sherdi_mark *mark);
/** A span that somebody else timed. Any thread. */
void sherdi_mark_add(sherdi_marks *marks, sherdi_mark_kind kind, const char *what, uint64_t bytes,
                     int64_t start_ns, int64_t end_ns);
/** Looks at what the device has passed. */
void sherdi_marks_resolve(sherdi_marks *marks, const sherdi_backend *lane);
/** Blocks until the device has passed those that were begun when `begun` was `until`, and have ended. E_DEVICE. */
sherd_status sherdi_marks_wait(sherdi_marks *marks, const sherdi_backend *lane, uint64_t until);
/** Seconds since the last call for this kind. */
double sherdi_marks_take(sherdi_marks *marks, sherdi_mark_kind kind);

#endif
