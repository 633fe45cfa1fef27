/* Directions of matrices (SHERDI_GRAIN_MATRIX). Each rank makes the directions of its slice, and
 * the ranks gather those of the segment. Each rank that updates a part of a matrix then makes all
 * of that matrix, because every step of the method needs the whole (Liu et al. 2025 distribute Muon
 * in the same way). A segment of k matrices on P ranks is cut into at most k + P - 1 parts, so the
 * ranks together compute at most k + P - 1 matrices. */
#include "engine/program/program_walk.h"

static sherdi_range directions_at(size_t first_elem, size_t elems)
{
    return sherdi_range_of(SHERDI_BUFFER_DIRECTIONS, first_elem * sizeof(float),
                           elems * sizeof(float));
}

/* Where a block's directions are among those of the segment, on the device. */
static sherdi_range direction_on_device(const sherdi_plan *plan, const sherdi_block *block)
{
    size_t first;

    (void)sherdi_plan_owned(plan, &plan->layout.segments[block->segment], &first);
    return directions_at(first + block->offset_elems, block->elems);
}

sherdi_range sherdi_direction_at(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_is_on_device(block->space)
               ? direction_on_device(plan, block)
               : sherdi_bounce_at(plan, block, plan->packing.bounce_direction_offset,
                                  block->elems * sizeof(float));
}

sherd_status sherdi_program_direction_give(const sherdi_program *program, const sherdi_block *block)
{
    return sherdi_is_on_device(block->space)
               ? SHERD_OK
               : sherdi_program_copy(program, SHERDI_LANE_UP,
                                     &program->plan->layout.segments[block->segment],
                                     direction_on_device(program->plan, block),
                                     sherdi_direction_at(program->plan, block));
}

sherd_status sherdi_program_direction_take(const sherdi_program *program, const sherdi_block *block)
{
    return sherdi_is_on_device(block->space)
               ? SHERD_OK
               : sherdi_program_copy(program, SHERDI_LANE_DOWN,
                                     &program->plan->layout.segments[block->segment],
                                     sherdi_direction_at(program->plan, block),
                                     direction_on_device(program->plan, block));
}

sherd_status sherdi_program_directions_gather(const sherdi_program *program,
                                              const sherdi_segment *segment)
{
    const sherdi_plan *plan = program->plan;
    sherdi_op          op = sherdi_op_of_segment(plan, SHERDI_OP_GATHER, SHERDI_LANE_WIRE, segment);

    if (!plan->layout.is_sliced) {
        return SHERD_OK;
    }
    op.from = op.to = SHERD_F32;
    op.flags        = SHERDI_OP_MEETS;
    sherdi_op_gather_in_place(&op, plan, directions_at(0, segment->padded_elems));
    return sherdi_program_emit(program, &op);
}

/* Whether this rank updates a part of a parameter. */
static int is_updated(const sherdi_program *program, const sherdi_segment *segment, size_t param)
{
    size_t begin = program->plan->layout.params[param].offset_elems;
    size_t end   = begin + program->model->params[param].elems;
    size_t first;
    size_t owned = sherdi_plan_owned(program->plan, segment, &first);

    return begin < end && begin < first + owned && first < end;
}

/* All ranks have the same operations: where this rank does not make the matrix, the operation has
 * no bytes. */
static sherd_status matrix_make(const sherdi_program *program, const sherdi_segment *segment,
                                size_t param)
{
    const sherdi_plan        *plan  = program->plan;
    const sherdi_model_param *model = &program->model->params[param];
    const sherdi_optimizer   *by    = segment->optimizer;
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_MATRIX, SHERDI_LANE_UPDATE, segment);

    op.param = (int)param;
    op.elems = model->elems;
    if (is_updated(program, segment, param)) {
        sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_ADDS,
                      directions_at(plan->layout.params[param].offset_elems, model->elems));
        sherdi_op_use(&op, SHERDI_USE_WORKSPACE, SHERDI_WRITES,
                      sherdi_range_of(SHERDI_BUFFER_DIRECTIONS, plan->packing.workspace_offset,
                                      by->workspace_bytes(model->shape[0], model->shape[1])));
        op.moves[SHERDI_MOVES_FLOPS] =
            (uint64_t)by->matrix_flops(&plan->settings, model->shape[0], model->shape[1]);
    }
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_matrices_make(const sherdi_program *program,
                                          const sherdi_segment *segment)
{
    const sherdi_model_unit *unit = &program->model->units[segment->unit];

    for (size_t i = 0; i < unit->num_params; i++) {
        if (sherdi_param_segment(program->plan, (size_t)unit->params[i]) == segment) {
            SHERDI_TRY(matrix_make(program, segment, (size_t)unit->params[i]));
        }
    }
    return SHERD_OK;
}
