/* Marks: they stand around what is timed, between two points of a lane, or by the host's clock where
 * the lane is the host. Sums by kind since the last boundary go into the step's report; with
 * SHERD_TRACE every interval goes into the trace. Marks on a device are pairs of events. They are taken only if times are wanted (a trace, wall_clock_breakdown, comms_logger), and
 * are read when the step has waited for the device anyway, or by sherd_step_wait. */
#ifndef SHERDI_ENGINE_RUN_MARKS_H
#define SHERDI_ENGINE_RUN_MARKS_H

#include "base/trace.h"
#include "collectives/observed.h"
#include "engine/run/engine_impl.h"
#include "kernels/lanes.h"

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
    int              slot;      /* on a device: number of the slot, from 1; 0: none */
    uint64_t         range;     /* of a profiler (device->range_begin); 0: none */
    int              is_queued; /* of a queued update */
} sherdi_mark;

/* The time that the trainer itself spends with a unit. */
typedef struct sherdi_compute_marks {
    sherdi_mark pass[3]; /* by pass: from the outermost acquire to its release */
} sherdi_compute_marks;

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
    sherdi_trace     *trace; /* NULL: no trace is wanted */
    sherdi_mark_slot *slots; /* [SHERDI_MARK_SLOTS], a ring; NULL: the device is not timed */
    /* of the ring: an updater marks its kernels concurrently with the trainer */
    pthread_mutex_t  lock;
    _Atomic uint64_t begun, resolved;
    /* The world's thread adds too; [1]: of queued updates */
    _Atomic int64_t spent_ns[2][SHERDI_MARK_KINDS];
    sherdi_mark_sum sums[SHERDI_MARK_KINDS];
    int             logs_transfers; /* log a line for each gather and reduction; rank 0 only */
    sherdi_mark     parts[SHERDI_TIMED_PARTS];
    sherdi_compute_marks *units;          /* by unit */
    uint64_t              boundary_begun; /* `begun` at the end of the last boundary */
    sherdi_world_timer    timer;          /* of the collectives */
    double forward_s, backward_s;         /* the trainer's time between the last two boundaries */
} sherdi_marks;

/** Adds an interval that the caller has timed. Any thread may call it. */
void sherdi_marks_add(sherd_engine *engine, sherdi_mark_kind kind, const char *what, uint64_t bytes,
                      int64_t start_ns, int64_t end_ns);
/** Adds the times of the marks that the device has passed. Never blocks. */
void sherdi_marks_resolve(sherd_engine *engine);
/** Returns the seconds of a kind since the last call for this kind. */
double sherdi_marks_take(sherd_engine *engine, sherdi_mark_kind kind);
/** Does the same for marks of a thread that has called the second: an updater, whose marks count
 *  apart. */
double sherdi_marks_take_queued(sherd_engine *engine, sherdi_mark_kind kind);
void   sherdi_marks_queued(void);
/** Returns the trace of an engine; NULL: no trace is wanted. */
static inline sherdi_trace *sherdi_marks_trace(const sherd_engine *engine)
{
    return engine->times.own == NULL ? NULL : engine->times.own->trace;
}

extern const sherdi_times_ops sherdi_times_marks;

#endif
