/* The proof of a plan: its program (program.h) is run through on two ranks, event by event as the calls of the trainer
 * make them, and the check of hazards (hazard.h) looks at every operation.
 *
 * What is run through: windows of every kind of end, each kind behind each, with and without passes of EVAL in
 * between, with units that have no backward, closed early, and with acquires off the plan; before them first values, in
 * two orders, and in between ranges of all values that are read and written. What is not: an abort, the trainer's own
 * reads and writes of parameters between the calls. */
#ifndef SHERDI_ENGINE_PLAN_PROGRAM_CHECK_H
#define SHERDI_ENGINE_PLAN_PROGRAM_CHECK_H

#include "engine/plan/hazard.h"

typedef struct sherdi_program_check_params {
    sherdi_hazard_drop drop; /* tests: what is taken out, with what it needs, as in hazard.h */
    sherdi_lane_id     by, followed;
    sherdi_op_kind     kind;
    uint64_t           number;
    uint64_t          *follows_out; /* NULL, or how many follows there were on a rank */
} sherdi_program_check_params;

/**
 * Plans of two ranks, or the same twice where there is one. NULL params: nothing is taken out.
 *
 * Errors  E_STATE  the hazard; or the ranks do not make the same calls
 *         E_NOMEM
 */
sherd_status sherdi_program_check(const sherdi_plan *one, const sherdi_plan *other,
                                  const sherdi_model                *model,
                                  const sherdi_program_check_params *params);

/** What of a plan its program depends on, but for the rank: two ranks with the same number run the same program, each
 *  on its own slices. */
uint64_t sherdi_program_shape(const sherdi_plan *plan);

#endif
