/* Proves a plan: two dry engines make the calls of a trainer, and every operation is checked for
 * hazards (hazard.h).
 *
 * The proof has windows with every kind of end, each kind after each, with and without passes of
 * EVAL in between, with units that have no backward, closed early, and with acquires off the plan.
 * Before the windows come first values, in two orders; between them, values are read and written,
 * checkpoints saved and loaded. It includes neither an abort nor the trainer's own reads and writes
 * of parameters between the calls. */
#ifndef SHERDI_ENGINE_PROOF_PROVE_H
#define SHERDI_ENGINE_PROOF_PROVE_H

#include "engine/proof/hazard.h"

/* The result of a proof. Acquires are counted apart: [0] those that the engine refused, [1] those
 * that it took. */
typedef struct sherdi_prove_counts {
    uint64_t planned[2], off_plan[2];
    uint64_t follows; /* orders between lanes on a rank */
    uint64_t updates_queued;
    uint64_t applied_queued; /* windows whose update sherd_step_apply has queued */
    uint64_t activations[2]; /* puts and gets: refused, made */
} sherdi_prove_counts;

typedef struct sherdi_prove_params {
    sherdi_hazard_drop   drop; /* for tests: the order that is taken out, as in hazard.h */
    sherdi_lane_id       by, followed;
    sherdi_op_kind       kind;
    uint64_t             number, last_number;
    sherdi_prove_counts *counts; /* may be NULL */
} sherdi_prove_params;

/**
 *  Proves the plans of two ranks; a world of one rank gives the same plan twice. NULL params: no
 *  order is taken out.
 *
 *  Errors  E_STATE  a hazard; or the ranks do not make the same calls
 *          E_INVAL  an operation goes beyond its buffer
 *          E_NOMEM
 */
sherd_status sherdi_prove(const sherdi_plan *one, const sherdi_plan *other,
                          const sherdi_model *model, const sherdi_prove_params *params);

/** Proves the plan of this rank together with the next rank's, in memory of a separate account. */
sherd_status sherdi_prove_next(const sherdi_plan *plan, const sherdi_model *model);
/** Makes, checks and proves the plans of all ranks: see sherdi_plan_check_ranks. */
sherd_status sherdi_prove_ranks(const sherdi_plan *plan, const sherdi_model *model);

#endif
