/* The plain sequence of calls of a plan, on a dry engine: every acquire comes where the plan
 * expects it, and the step updates. This sequence is printed (print.c), counted, and simulated with
 * rates (play.c). */
#ifndef SHERDI_ENGINE_PROOF_EMIT_H
#define SHERDI_ENGINE_PROOF_EMIT_H

#include "engine/program/program.h"
#include "sherd_tools.h"

typedef enum sherdi_phase_name {
    SHERDI_IN_FORWARD = 0,
    SHERDI_IN_BACKWARD,
    SHERDI_IN_BOUNDARY,
    SHERDI_IN_EVAL,
    SHERDI_IN_FILL,
} sherdi_phase_name;

typedef enum sherdi_emit_parts {
    SHERDI_EMIT_ONE = 0, /* one micro-batch, a boundary, a pass of EVAL */
    SHERDI_EMIT_FIRST,   /* the first values, which are many operations, then the same */
    SHERDI_EMIT_ALL,     /* also a second micro-batch, where a window has more than one */
    /* SHERDI_EMIT_WINDOWS windows of as many micro-batches as of SHERDI_EMIT_ALL, with queued
     * steps; no pass of EVAL. The operations of a queued update (SHERDI_OP_QUEUED) come all at
     * once, when it begins */
    SHERDI_EMIT_QUEUED,
} sherdi_emit_parts;

#define SHERDI_EMIT_WINDOWS 3

/** Receives an operation with the part of the sequence to which it belongs. A read ahead belongs to
 *  the part that needs it, and a gradient that has waited belongs to the backward that made it. */
typedef sherd_status (*sherdi_emit_fn)(void *ctx, sherdi_phase_name phase, const sherdi_op *op);

/** Calls `fn` with all operations of a window that follows the plan. E_NOMEM, or what `fn`
 *  returns. */
sherd_status sherdi_dry_emit(const sherdi_plan *plan, const sherdi_model *model,
                             sherdi_emit_parts parts, sherdi_emit_fn fn, void *ctx);
/** Makes a plan: sherdi_plan_create, then counts the bytes that it moves, and its collectives. */
sherd_status sherdi_dry_plan(const sherdi_model *model, const sherdi_settings *settings, int rank,
                             int world_size, const sherdi_machine *machine, sherdi_mem *mem,
                             sherdi_plan **out);
/** Counts the bytes that a plan moves, and its collectives. E_NOMEM. */
sherd_status sherdi_dry_count(sherdi_plan *plan, const sherdi_model *model);
/** Predicts the seconds of the plain sequence at these rates, with waited and with queued steps.
 *  E_NOMEM. */
sherd_status sherdi_dry_play(const sherdi_plan *plan, const sherdi_model *model,
                             const sherd_rates *rates, sherd_prediction *out);
/** Writes a plan: see sherd_engine_plan. */
sherd_status sherdi_dry_print(const sherdi_plan *plan, const sherdi_model *model,
                              sherd_plan_format format, sherd_write_fn write, void *ctx);
/** Returns "forward" and so on. */
const char *sherdi_phase_name_text(sherdi_phase_name phase);

#endif
