/* What the calls of a trainer are made of: events, one behind the other, as functions of the program (program.h) or changes of
 * its progress. Once for all who run them without an engine: on one rank (program_plain.c), on two (program_check.c). The
 * engine's own calls (step.c, update.c, fill.c) have failures between the events; tests/engine/test_executed.c compares. */
#ifndef SHERDI_ENGINE_PLAN_PROGRAM_CALLS_H
#define SHERDI_ENGINE_PLAN_PROGRAM_CALLS_H

#include "engine/plan/program.h"

typedef enum sherdi_event_kind {
    SHERDI_EVENT_PLAIN = 0, /* is told nothing */
    SHERDI_EVENT_EXCHANGE,
    SHERDI_EVENT_SETTLE, /* transfers of a ring are over, its slots hold nothing any more */
    SHERDI_EVENT_FILL,
    SHERDI_EVENT_FINGERPRINT,
    SHERDI_EVENT_PUT,
    SHERDI_EVENT_GET,
    SHERDI_EVENT_NORM, /* of a parameter's gradient */
    SHERDI_EVENT_ACQUIRE,
    SHERDI_EVENT_RELEASE,
    SHERDI_EVENT_BEGIN, /* a gradient */
    SHERDI_EVENT_GENERATION,
    SHERDI_EVENT_WALK,
} sherdi_event_kind;

typedef sherd_status (*sherdi_plain_fn)(const sherdi_program *program);

typedef struct sherdi_event {
    sherdi_event_kind kind;
    int               what; /* parameter, unit, ring, kind of an operation or of a walk */
    sherd_pass        pass;
    sherdi_plain_fn   plain;
    size_t            len_bytes; /* that each rank exchanges */
    sherdi_values     values;
} sherdi_event;

/** The event on a program. */
sherd_status sherdi_event_run(const sherdi_program *program, const sherdi_event *event);

typedef struct sherdi_calls {
    const sherdi_plan *plan;
    sherd_status (*fn)(
        void *ctx, const sherdi_event *event); /* takes each event; what it returns ends the call */
    void *ctx;
} sherdi_calls;

sherd_status sherdi_calls_plain(const sherdi_calls *calls, sherdi_plain_fn plain);
sherd_status sherdi_calls_exchange(const sherdi_calls *calls, size_t len_bytes);
sherd_status sherdi_calls_settle(const sherdi_calls *calls, sherdi_ring ring);
/** kind: SHERDI_OP_COMMIT and its like. */
sherd_status sherdi_calls_generation(const sherdi_calls *calls, sherdi_op_kind kind);

/** What was filled or written goes to rest, and is committed. */
sherd_status sherdi_calls_filled(const sherdi_calls *calls);
sherd_status sherdi_calls_walk(const sherdi_calls *calls, sherdi_walk walk);
/** A boundary up to the norm; the update behind it, to where its values are published. */
sherd_status sherdi_calls_prepare(const sherdi_calls *calls);
sherd_status sherdi_calls_apply(const sherdi_calls *calls);

#endif
