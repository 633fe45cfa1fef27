/* Norms of tensors (SHERDI_GRAIN_TENSOR): where they and the ratios of an update are in the
 * scalars, their sums over the ranks, and the ratios. */
#include "engine/program/ratios.h"

#include "engine/modules.h"
#include "engine/program/program_walk.h"

static int has_ratios(const sherdi_plan_optimizer *of)
{
    return of->optimizer->grain == SHERDI_GRAIN_TENSOR;
}

/* Lays out the norms of all optimizers behind the other results of kernels. */
static sherd_status norms_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t i = 0; i < plan->layout.num_optimizers; i++) {
        sherdi_plan_optimizer *of = &plan->layout.optimizers[i];

        of->norms = plan->scalars.results_bytes;
        plan->scalars.results_bytes +=
            has_ratios(of) ? model->num_params * of->optimizer->num_norms * sizeof(sherdi_norm_acc)
                           : 0;
    }
    return SHERD_OK;
}

/* Lays out the ratios behind the other inputs of kernels, and last the groups, whose elements are
 * smallest. */
static sherd_status ratios_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    size_t *at = &plan->scalars.shared_bytes;

    for (size_t i = 0; i < plan->layout.num_optimizers; i++) {
        plan->layout.optimizers[i].ratios = *at;
        *at += has_ratios(&plan->layout.optimizers[i]) ? model->num_params * sizeof(float) : 0;
    }
    for (size_t i = 0; i < plan->layout.num_optimizers; i++) {
        plan->layout.optimizers[i].groups = *at;
        *at += has_ratios(&plan->layout.optimizers[i]) ? model->num_params * sizeof(int32_t) : 0;
    }
    return SHERD_OK;
}

/* Adds the norms of tensors over the ranks, where a rank has only a part of them. */
static sherd_status norms_sum(const sherdi_program *program)
{
    const sherdi_plan *plan  = program->plan;
    sherdi_range       norms = sherdi_program_norms_at(plan, SHERDI_SPACE_HOST);
    sherdi_op          op    = sherdi_op_of(SHERDI_OP_SUM, SHERDI_LANE_WIRE);

    if (!plan->layout.is_sliced) {
        return SHERD_OK;
    }
    op.flags = SHERDI_OP_MEETS | SHERDI_OP_WAITS;
    op.elems = norms.bytes / sizeof(uint64_t);
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS, norms);
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_ratios_make(const sherdi_program *program)
{
    sherdi_op op = sherdi_op_of(SHERDI_OP_RATIOS, SHERDI_LANE_HOST);

    SHERDI_TRY(norms_sum(program));
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_READS,
                  sherdi_program_norms_at(program->plan, SHERDI_SPACE_HOST));
    return sherdi_program_scalars_send(program, op);
}

const sherdi_module sherdi_module_norms = {.segments_made = norms_lay_out,
                                           .lay_out       = ratios_lay_out};
