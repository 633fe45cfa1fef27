/* The trainer's own use of the units that it has acquired, as operations: what is on its lane waits
 * for gathers, and what follows waits for it. Without lanes nothing is under way then. */
#include "engine/modules.h"
#include "engine/program/program.h"

static sherd_status segment_use(const sherdi_program *program, const sherdi_segment *segment,
                                int is_backward)
{
    const sherdi_plan *plan  = program->plan;
    size_t             bytes = segment->padded_elems * sherdi_compute_bytes(segment);
    sherdi_op          op = sherdi_op_of_segment(plan, SHERDI_OP_USE, SHERDI_LANE_COMPUTE, segment);

    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                  segment->is_resident
                      ? sherdi_range_of(SHERDI_BUFFER_PARAMS, segment->param_offset, bytes)
                      : sherdi_range_of(SHERDI_BUFFER_GATHER,
                                        sherdi_program_unit(program, segment->unit)->gathered_at +
                                            segment->gather_offset,
                                        bytes));
    if (is_backward && segment->has_gradient) {
        sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_ADDS,
                      sherdi_program_micro_gradient(plan, segment));
    }
    return sherdi_program_emit(program, &op);
}

static sherd_status unit_use(const sherdi_program *program, int unit, int is_backward)
{
    for (size_t s = 0; s < program->plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(program->plan, unit, s);

        if (!segment->is_bound) {
            SHERDI_TRY(segment_use(program, segment, is_backward));
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_trainer = {.unit_used = unit_use};
