/* Directions of matrices (SHERDI_GRAIN_MATRIX). Each rank makes the directions of its slice, and
 * the ranks gather those of the segment. Each rank that updates a part of a matrix then makes all
 * of that matrix, because every step of the method needs the whole (Liu et al. 2025 distribute Muon
 * in the same way). A segment of k matrices on P ranks is cut into at most k + P - 1 parts, so the
 * ranks together compute at most k + P - 1 matrices. */
#include "engine/modules.h"
#include "engine/optimizers/muon.h"
#include "engine/program/program_walk.h"

#include "base/checked.h"

static sherd_status directions_gather(const sherdi_program *program, const sherdi_segment *segment)
{
    return program->plan->layout.is_sliced
               ? sherdi_program_gather(program, segment, SHERD_F32, SHERDI_OP_MEETS,
                                       sherdi_program_directions_at(0, segment->padded_elems))
               : SHERD_OK;
}

/* Whether this rank updates a part of a parameter. */
static int is_updated(const sherdi_program *program, const sherdi_segment *segment, size_t param)
{
    size_t begin = program->plan->layout.params[param].offset_elems;
    size_t end   = begin + program->model->params[param].elems;

    return begin < end && begin < segment->own_first + segment->own_elems &&
           segment->own_first < end;
}

/* All ranks have the same operations: where this rank does not make the matrix, the operation has
 * no bytes. */
static sherd_status matrix_make(const sherdi_program *program, const sherdi_segment *segment,
                                size_t param)
{
    const sherdi_plan        *plan  = program->plan;
    const sherdi_model_param *model = &program->model->params[param];
    const sherdi_matrix_ops  *by    = segment->optimizer->matrices;
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_MATRIX, SHERDI_LANE_UPDATE, segment);

    op.param = (int)param;
    op.elems = model->elems;
    if (is_updated(program, segment, param)) {
        sherdi_op_use(
            &op, SHERDI_USE_DST, SHERDI_ADDS,
            sherdi_program_directions_at(plan->layout.params[param].offset_elems, model->elems));
        sherdi_op_use(&op, SHERDI_USE_WORKSPACE, SHERDI_WRITES,
                      sherdi_range_of(SHERDI_BUFFER_DIRECTIONS, plan->packing.workspace_offset,
                                      by->workspace_bytes(model->shape[0], model->shape[1])));
    }
    return sherdi_program_emit(program, &op);
}

static sherd_status matrices_make(const sherdi_program *program, const sherdi_segment *segment)
{
    const sherdi_model_unit *unit = &program->model->units[segment->unit];

    for (size_t i = 0; i < unit->num_params; i++) {
        if (sherdi_param_segment(program->plan, (size_t)unit->params[i]) == segment) {
            SHERDI_TRY(matrix_make(program, segment, (size_t)unit->params[i]));
        }
    }
    return SHERD_OK;
}

/* The first sweep over all blocks of a segment, then the matrices along which the second sweep
 * steps. */
static sherd_status segment_direct(const sherdi_program *program, int walk,
                                   const sherdi_segment *segment)
{
    if (walk != SHERDI_WALK_UPDATE || !sherdi_segment_has_matrices(segment)) {
        return SHERD_OK;
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        SHERDI_TRY(
            sherdi_program_block_walk(program, SHERDI_WALK_DIRECT, segment,
                                      &program->plan->layout.blocks[segment->first_block + b]));
    }
    SHERDI_TRY(directions_gather(program, segment));
    return matrices_make(program, segment);
}

/* The second sweep over a block reads its part of the matrices. */
static sherd_status direction_take(const sherdi_program *program, int walk,
                                   const sherdi_segment *segment, const sherdi_block *block,
                                   sherdi_range *out)
{
    if (walk == SHERDI_WALK_UPDATE && sherdi_segment_has_matrices(segment)) {
        *out = sherdi_direction_at(program->plan, block);
    }
    return SHERD_OK;
}

/* A parameter that is updated by whole matrices must be a matrix. */
static sherd_status matrix_check(const sherdi_model *model, const sherdi_model_param *param,
                                 const sherdi_optimizer *optimizer)
{
    if (optimizer == NULL || optimizer->grain != SHERDI_GRAIN_MATRIX || param->ndim == 2) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_INVAL,
        "parameter %s of unit %s is no matrix (dimensions: %d), and %s updates matrices alone; "
        "give it to a group with another optimizer (sherd.groups, sherd_group_params.optimizer)",
        param->name, model->units[param->unit].name, param->ndim, sherdi_optimizer_name(optimizer));
}

/* Sizes the directions: the largest segment of matrices, whole, then the largest workspace for one
 * matrix. */
static sherd_status directions_size(sherdi_plan *plan, const sherdi_model *model)
{
    size_t elems     = 0;
    size_t workspace = 0;

    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_DIRECTIONS, "directions of matrices",
                            SHERDI_MEM_STAGING, 0);
    plan->packing.buffers[SHERDI_BUFFER_DIRECTIONS].is_shared = 1;
    for (size_t p = 0; p < model->num_params; p++) {
        const sherdi_model_param *param   = &model->params[p];
        const sherdi_segment     *segment = sherdi_param_segment(plan, p);

        SHERDI_TRY(matrix_check(model, param, segment->optimizer));
        if (sherdi_segment_has_matrices(segment)) {
            elems     = sherdi_max_size(elems, segment->padded_elems);
            workspace = sherdi_max_size(workspace, segment->optimizer->matrices->workspace_bytes(
                                                       param->shape[0], param->shape[1]));
        }
    }
    plan->packing.workspace_offset = sherdi_round_up(elems * sizeof(float), SHERD_ALIGN_BYTES);
    plan->packing.buffers[SHERDI_BUFFER_DIRECTIONS].bytes =
        plan->packing.workspace_offset + workspace;
    return SHERD_OK;
}

const sherdi_module sherdi_module_muon = {
    .lay_out = directions_size, .segment_update = segment_direct, .gradient_take = direction_take};
