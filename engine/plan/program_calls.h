/* The trainer's calls as sequences of events; an event is a function of the program (program.h) or a change of its progress. The
 * code that runs calls without an engine takes them from here: for one rank (program_plain.c), for two (program_check.c). The
 * engine's own calls (step.c, update.c, fill.c) also handle failures between the events; tests/engine/test_executed.c compares
 * both. */
#ifndef SHERDI_ENGINE_PLAN_PROGRAM_CALLS_H
#define SHERDI_ENGINE_PLAN_PROGRAM_CALLS_H

#include "engine/plan/program.h"

typedef enum sherdi_event_kind {
    SHERDI_EVENT_PLAIN = 0, /* a function without arguments */
    SHERDI_EVENT_EXCHANGE,
    SHERDI_EVENT_SETTLE, /* ends transfers of a ring, empties its slots */
    SHERDI_EVENT_FILL,
    SHERDI_EVENT_FINGERPRINT,
    SHERDI_EVENT_PUT,
    SHERDI_EVENT_GET,
    SHERDI_EVENT_NORM, /* of one parameter's gradient */
    SHERDI_EVENT_ACQUIRE,
    SHERDI_EVENT_RELEASE,
    SHERDI_EVENT_BEGIN, /* begins a gradient */
    SHERDI_EVENT_GENERATION,
    SHERDI_EVENT_TELL, /* writes scalars: SHERDI_OP_COEFFS or SHERDI_OP_RATIOS */
    SHERDI_EVENT_WALK,
} sherdi_event_kind;

typedef sherd_status (*sherdi_plain_fn)(const sherdi_program *program);

typedef struct sherdi_event {
    sherdi_event_kind kind;
    int               what; /* parameter, unit, ring, kind of an operation, an exchange or a walk */
    sherd_pass        pass;
    sherdi_plain_fn   plain;
    sherdi_values     values;
} sherdi_event;

/** Runs the event on a program. */
sherd_status sherdi_event_run(const sherdi_program *program, const sherdi_event *event);

typedef struct sherdi_calls {
    const sherdi_plan *plan;
    sherd_status (*fn)(
        void *ctx, const sherdi_event *event); /* receives each event; a failure ends the call */
    void *ctx;
} sherdi_calls;

sherd_status sherdi_calls_plain(const sherdi_calls *calls, sherdi_plain_fn plain);
sherd_status sherdi_calls_exchange(const sherdi_calls *calls, sherdi_exchange_kind kind);
sherd_status sherdi_calls_settle(const sherdi_calls *calls, sherdi_ring ring);
/** `kind`: SHERDI_OP_COMMIT, SHERDI_OP_ABANDON or SHERDI_OP_ROLLBACK. */
sherd_status sherdi_calls_generation(const sherdi_calls *calls, sherdi_op_kind kind);

/** Brings what was filled or written to where it rests, and commits it. */
sherd_status sherdi_calls_filled(const sherdi_calls *calls);
sherd_status sherdi_calls_walk(const sherdi_calls *calls, sherdi_walk walk);
/** A boundary up to the norm; then the update, until its values are published. */
sherd_status sherdi_calls_prepare(const sherdi_calls *calls);
sherd_status sherdi_calls_apply(const sherdi_calls *calls);

#endif
