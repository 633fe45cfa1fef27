/* Proves a plan: runs its program (program.h) on two ranks, event by event as the trainer's calls make them, and checks every
 * operation for hazards (hazard.h).
 *
 * It runs windows with every kind of end, each kind after each, with and without passes of EVAL in between, with units that have
 * no backward, closed early, and with acquires off the plan. Before the windows come first values, in two orders; between them,
 * ranges of all values are read and written. It does not run an abort, nor the trainer's own reads and writes of parameters
 * between the calls. */
#ifndef SHERDI_ENGINE_PLAN_PROGRAM_CHECK_H
#define SHERDI_ENGINE_PLAN_PROGRAM_CHECK_H

#include "engine/plan/hazard.h"

typedef struct sherdi_program_check_params {
    sherdi_hazard_drop drop; /* for tests: the order that is taken out, as in hazard.h */
    sherdi_lane_id     by, followed;
    sherdi_op_kind     kind;
    uint64_t           number;
    uint64_t          *follows_out; /* the number of follows on a rank; may be NULL */
} sherdi_program_check_params;

/**
 * Checks the plans of two ranks; a world of one rank gives the same plan twice. NULL params: no order is taken out.
 *
 * Errors  E_STATE  a hazard; or the ranks do not make the same calls
 *         E_NOMEM
 */
sherd_status sherdi_program_check(const sherdi_plan *one, const sherdi_plan *other,
                                  const sherdi_model                *model,
                                  const sherdi_program_check_params *params);

/** Hashes all of a plan that its program depends on, except the rank. Two ranks with the same hash run the same program, each on
 *  its own slices. */
uint64_t sherdi_program_shape(const sherdi_plan *plan);

#endif
