/* Hashes of first values, by which the ranks compare what they were given. */
#include "engine/program/program.h"

sherd_status sherdi_program_hash(const sherdi_program *program, size_t param)
{
    const sherdi_plan    *plan    = program->plan;
    const sherdi_segment *segment = sherdi_param_segment(plan, param);
    size_t                elem    = sherdi_compute_bytes(segment);
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_HASH, SHERDI_LANE_COMPUTE, segment);

    op.param = (int)param;
    op.flags = SHERDI_OP_WAITS;
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                  segment->is_bound
                      ? sherdi_program_trainer(program, SHERDI_AT_TRAINER_DATA, param)
                      : sherdi_range_of(SHERDI_BUFFER_PARAMS,
                                        segment->param_offset +
                                            plan->layout.params[param].offset_elems * elem,
                                        program->model->params[param].elems * elem));
    return sherdi_program_emit(program, &op);
}
