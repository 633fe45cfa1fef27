/* The invariants of plans, for one rank and for all ranks together. docs/inside-the-plan.md has
 * them as equations. */
#ifndef SHERDI_ENGINE_PROOF_CHECK_H
#define SHERDI_ENGINE_PROOF_CHECK_H

#include "engine/plan/plan.h"

/** Checks that the plan fits the machine. E_NOMEM when the ranks of this host cannot hold it; the
 *  message says how much memory is missing and names the nearest setting that would fit. */
sherd_status sherdi_plan_check_fit(const sherdi_plan *plan, const sherdi_model *model);

/** Checks the plan's invariants, for tests and debug builds; a long walk. Every element is owned
 *  once, and nothing overlaps. E_STATE, naming the rule that is broken, and where. */
sherd_status sherdi_plan_check(const sherdi_plan *plan, const sherdi_model *model);

/* How the plans of a world are made, and proved two at a time. */
typedef struct sherdi_plan_makers {
    sherd_status (*make)(const sherdi_model *model, const sherdi_settings *settings, int rank,
                         int world_size, const sherdi_machine *machine, sherdi_mem *mem,
                         sherdi_plan **out);
    sherd_status (*prove)(const sherdi_plan *one, const sherdi_plan *other,
                          const sherdi_model *model);
} sherdi_plan_makers;

/** Makes the plans of all ranks one after the other, as `plan` was made, and checks each one and
 *  all together: see sherd_engine_check_plans. */
sherd_status sherdi_plan_check_ranks(const sherdi_plan *plan, const sherdi_model *model,
                                     const sherdi_plan_makers *by);

/** A part of sherdi_plan_check: whether extents, gradients, pieces and the places of activations
 *  tile their ranges, and none overlap that must be disjoint. */
int sherdi_plan_offload_is_valid(const sherdi_plan *plan);

/** Hashes all of a plan that its program depends on, except the rank. Two ranks with the same hash
 *  run the same program, each on its own slices. */
uint64_t sherdi_program_shape(const sherdi_plan *plan);

#endif
