/* Marks: what becomes of them (times.h). Sums by kind since the last boundary go into the step's
 * report; with SHERD_TRACE every interval goes into the trace. Marks on a device are pairs of
 * events. They are taken only if times are wanted (a trace, wall_clock_breakdown, comms_logger), and
 * are read when the step has waited for the device anyway, or by sherd_step_wait. */
#ifndef SHERDI_ENGINE_RUN_MARKS_H
#define SHERDI_ENGINE_RUN_MARKS_H

#include "base/trace.h"
#include "engine/run/engine_impl.h"
#include "kernels/lanes.h"

#include <pthread.h>
#include <stdatomic.h>

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
    sherdi_compute_marks *units;    /* by unit */
    uint64_t              boundary_begun; /* `begun` at the end of the last boundary */
    sherdi_world_observer observer;
    double forward_s, backward_s; /* the trainer's time between the last two boundaries */
} sherdi_marks;

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
