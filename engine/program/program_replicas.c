/* Replicas: several groups of ranks have a copy each of all that is sharded (sherd.shard_size). A
 * reduction adds the gradients of a group up, to a slice. Then the ranks that have this slice, one
 * in each group, add theirs up: once in a window, by one operation for each segment, on a lane of
 * its own. The rest of a step does not know of the other replicas.
 *
 * In the last micro-batch this follows a unit's last planned use, and overlaps with the rest of
 * backward. Where nobody knows before the boundary that a micro-batch is the last, it follows at the
 * boundary. */
#include "engine/program/program_walk.h"

#include "base/checked.h"

#include "engine/modules.h"

/* Returns this rank's slice of a segment's gradient. */
static sherdi_range slice_of(const sherdi_plan *plan, const sherdi_segment *segment)
{
    size_t elem  = sherdi_grad_bytes(plan, segment);
    size_t first = plan->layout.has_slices ? 0 : segment->slice_first;

    return sherdi_range_of(SHERDI_BUFFER_GRADS, segment->grad_offset + first * elem,
                           segment->slice_elems * elem);
}

/* Plans the room into which the transport receives the slices of the other replicas. */
static sherd_status room_size(sherdi_plan *plan, const sherdi_model *model)
{
    size_t whole = 0;

    (void)model;
    for (size_t s = 0; s < plan->layout.num_segments && plan->num_replicas > 1; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t                bytes   = segment->slice_elems * sherdi_grad_bytes(plan, segment);

        whole = segment->has_gradient ? sherdi_max_size(whole, bytes) : whole;
    }
    if (plan->machine.has_receive) {
        plan->packing.group_bytes = whole;
        plan->packing.receive_bytes +=
            whole - (plan->machine.receives_own ? 0 : whole / (size_t)plan->num_replicas);
    }
    return SHERD_OK;
}

static sherd_status unit_across(const sherdi_program *program, int unit)
{
    const sherdi_plan *plan = program->plan;

    for (size_t s = 0; s < plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(plan, unit, s);
        sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_ACROSS, SHERDI_LANE_GROUP, segment);

        if (!segment->has_gradient || segment->slice_elems == 0) {
            continue;
        }
        op.from = op.to = segment->types.grad;
        op.elems        = segment->slice_elems / (size_t)plan->num_replicas;
        sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_ADDS, slice_of(plan, segment));
        SHERDI_TRY(sherdi_program_emit(program, &op));
    }
    sherdi_program_unit(program, unit)->is_across = 1;
    return SHERD_OK;
}

static sherd_status gradient_completed(const sherdi_program *program, int unit)
{
    return program->plan->num_replicas > 1 && program->progress->is_last &&
                   program->plan->layout.has_slices
               ? unit_across(program, unit)
               : SHERD_OK;
}

static sherd_status window_reduced(const sherdi_program *program)
{
    const sherdi_plan *plan = program->plan;

    for (size_t u = 0; u < plan->layout.num_units && plan->num_replicas > 1; u++) {
        const sherdi_unit_state *state = sherdi_program_unit(program, (int)u);

        if (state->uses.runs > 0 && !state->is_across) {
            SHERDI_TRY(unit_across(program, (int)u));
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_replicas = {.lay_out            = room_size,
                                              .gradient_completed = gradient_completed,
                                              .window_reduced     = window_reduced};
