/* Marks: how long things took. A time is measured between two marks on a lane, or by the host's
 * clock where the lane is the host. Sums by kind since the last boundary go into the step's report;
 * with SHERD_TRACE every interval goes into the trace. Marks on a device are pairs of events. They
 * are taken only if times are wanted (a trace, wall_clock_breakdown, comms_logger), and are read
 * when the step has waited for the device anyway, or by sherd_step_wait. */
#ifndef SHERDI_ENGINE_RUN_MARKS_H
#define SHERDI_ENGINE_RUN_MARKS_H

#include "base/trace.h"
#include "kernels/backend.h"

#include <pthread.h>
#include <stdatomic.h>

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
    int              slot;      /* on a device: index of the slot; below 0: none */
    uint64_t         range;     /* of a profiler (device->range_begin); 0: none */
    int              is_beside; /* of a queued update */
} sherdi_mark;

/* A pair of events, and the mark that they measure. */
typedef struct sherdi_mark_slot {
    sherdi_event *start, *end;
    sherdi_mark   mark;
} sherdi_mark_slot;

#define SHERDI_MARK_SLOTS 1024

/* Totals of a kind since the marks were opened. */
typedef struct sherdi_mark_sum {
    _Atomic uint64_t count, bytes;
    _Atomic int64_t  ns;
} sherdi_mark_sum;

typedef struct sherdi_marks {
    const sherdi_device_ops *device;
    sherdi_trace            *trace; /* NULL: no trace is wanted */
    sherdi_mark_slot        *slots; /* [SHERDI_MARK_SLOTS], a ring; NULL: the device is not timed */
    /* of the ring: an updater marks its kernels concurrently with the trainer */
    pthread_mutex_t  lock;
    _Atomic uint64_t begun, resolved;
    /* The world's thread adds too; [1]: of queued updates */
    _Atomic int64_t spent_ns[2][SHERDI_MARK_KINDS];
    sherdi_mark_sum sums[SHERDI_MARK_KINDS];
    int             logs_transfers; /* log a line for each gather and reduction; rank 0 only */
} sherdi_marks;

/** Opens the trace if SHERD_TRACE is set, and makes events if a device is to be timed. `lane` is
 *  any lane of the engine; `is_timed`: a device is to be timed even without a trace. E_NOMEM,
 *  E_DEVICE, E_IO (the trace's file cannot be written). */
sherd_status sherdi_marks_open(sherdi_marks *marks, sherdi_backend *lane, int is_timed, int rank,
                               int world_size, sherdi_mem *mem);
/** Call it when no lane works any more. */
void sherdi_marks_close(sherdi_marks *marks, sherdi_backend *lane);

/** Begin and end a mark, both on the same lane; NULL: by the host's clock. Never block. A mark on a
 *  device is not timed when all SHERDI_MARK_SLOTS slots are in use. */
sherdi_mark sherdi_mark_begin(sherdi_marks *marks, sherdi_mark_kind kind,
                              const sherdi_backend *lane, const char *what, uint64_t bytes);
void sherdi_mark_end(sherdi_marks *marks, const sherdi_backend *lane, const sherdi_mark *mark);
/** Adds an interval that the caller has timed. Any thread may call it. */
void sherdi_mark_add(sherdi_marks *marks, sherdi_mark_kind kind, const char *what, uint64_t bytes,
                     int64_t start_ns, int64_t end_ns);
/** Adds the times of the marks that the device has passed. Never blocks. */
void sherdi_marks_resolve(sherdi_marks *marks, const sherdi_backend *lane);
/** Blocks until the device has passed the marks that were begun before marks->begun was `until`,
 *  and adds their times; stops at a mark that has not ended. E_DEVICE. */
sherd_status sherdi_marks_wait(sherdi_marks *marks, const sherdi_backend *lane, uint64_t until);
/** Returns the seconds of a kind since the last call for this kind. */
double sherdi_marks_take(sherdi_marks *marks, sherdi_mark_kind kind);
/** Does the same for marks of a thread that has called the second: an updater, whose marks count
 *  apart. */
double sherdi_marks_take_beside(sherdi_marks *marks, sherdi_mark_kind kind);
void   sherdi_marks_beside(void);

#endif
