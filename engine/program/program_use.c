/* What lanes order: segments that are published while later ones are updated, and the trainer's own
 * use of the units that it has acquired: what is on its lane waits for gathers, and what follows
 * waits for it. Without lanes nothing is under way then. */
#include "engine/modules.h"
#include "engine/program/program_walk.h"

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

/* In a queued update the acquire publishes, which synchronizes at the same place on every rank. */
static sherd_status early_publish(const sherdi_program *program, const sherdi_segment *segment)
{
    return program->progress->flags & SHERDI_OP_QUEUED
               ? SHERD_OK
               : sherdi_segment_publish(program, segment, 1);
}

const sherdi_module sherdi_module_trainer = {.unit_used       = unit_use,
                                             .segment_updated = early_publish};
