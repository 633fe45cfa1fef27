/* Walks over the blocks. A block whose data rests on the device is updated where it is; the others
 * come to a kernel and go back by the functions of offload.h. */
#include "engine/program/program_walk.h"

#include "engine/modules.h"
#include "engine/program/offload.h"

#include <stddef.h>

/* ------------------------------------------------------------- what walks do -- */

int sherdi_program_is_skipped(const sherdi_program *program, sherdi_walk walk, int unit)
{
    return sherdi_walk_has_gradient(walk) && program->plan->settings.batch.skips_unused &&
           sherdi_program_unit(program, unit)->uses.runs == 0;
}

/* Whether all that the update of a block reads and writes rests on the device. */
static int is_home(const sherdi_segment *segment, const sherdi_block *block)
{
    return sherdi_is_on_device(block->space) && sherdi_is_on_device(block->grad_space) &&
           sherdi_is_on_device(segment->param_space);
}

/* -------------------------------------------------------- where a block is -- */

sherdi_range sherdi_state_at(const sherdi_plan *plan, const sherdi_block *block)
{
    size_t bytes = sherdi_plan_state_bytes(plan, block);

    return sherdi_is_on_device(block->space)
               ? sherdi_range_of(SHERDI_BUFFER_STATE, block->state_offset, bytes)
               : sherdi_program_offload()->state_at(plan, block, bytes);
}

sherdi_range sherdi_program_param_at(const sherdi_plan *plan, const sherdi_segment *segment,
                                     const sherdi_block *block)
{
    size_t elem  = sherdi_compute_bytes(segment);
    size_t at    = ((segment->is_resident ? segment->own_first : 0) + block->offset_elems) * elem;
    size_t bytes = block->elems * elem;

    if (segment->is_bound) {
        return sherdi_staging_at(plan->packing.publish_offset + at, bytes);
    }
    return sherdi_range_of(segment->param_space == SHERDI_SPACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                                     : SHERDI_BUFFER_PARAMS,
                           segment->param_offset + at, bytes);
}

/* -------------------------------------------------------------- publishing -- */

int sherdi_segment_is_published(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return plan->layout.is_sliced && segment->kind != SHERDI_SEGMENT_FROZEN &&
           segment->is_resident && !segment->is_bound;
}

sherd_status sherdi_segment_publish(const sherdi_program *program, const sherdi_segment *segment,
                                    int is_early)
{
    const sherdi_plan *plan = program->plan;

    if (is_early != plan->schedule.publishes_early || !sherdi_segment_is_published(plan, segment)) {
        return SHERD_OK;
    }
    /* without is_early, the exchange of the fingerprint has promised that all slices are written */
    return sherdi_program_gather(
        program, segment, segment->types.compute, is_early ? SHERDI_OP_MEETS : SHERDI_OP_STABLE,
        sherdi_range_of(SHERDI_BUFFER_PARAMS, segment->param_offset,
                        segment->padded_elems * sherdi_compute_bytes(segment)));
}

sherd_status sherdi_program_publish(const sherdi_program *program)
{
    const sherdi_plan *plan = program->plan;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        if (!program->progress->is_updated ||
            !sherdi_program_is_skipped(program, SHERDI_WALK_UPDATE,
                                       plan->layout.segments[s].unit)) {
            SHERDI_TRY(sherdi_segment_publish(program, &plan->layout.segments[s], 0));
        }
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- walks -- */

/* Emits the last sweep, which writes the parameter, or the first, which takes norms or makes
 * directions. `gradient`: the gradient of the block, or its matrices. */
static sherd_status update_emit(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block,
                                sherdi_range gradient, sherdi_range param)
{
    const sherdi_plan *plan       = program->plan;
    sherdi_op          op         = sherdi_op_of_block(plan, SHERDI_OP_UPDATE, block);
    int                is_written = walk == SHERDI_WALK_UPDATE;

    op.sweep = is_written ? segment->optimizer->num_sweeps - 1 : 0;
    sherdi_op_use(&op, SHERDI_USE_STATE, walk == SHERDI_WALK_MEASURE ? SHERDI_READS : SHERDI_ADDS,
                  sherdi_state_at(plan, block));
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, gradient);
    if (walk == SHERDI_WALK_DIRECT) {
        return sherdi_program_make(program, op, param);
    }
    if (is_written || !segment->has_master || sherdi_segment_is_beside(segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM,
                      is_written ? (sherdi_access)param.access : SHERDI_READS, param);
    }
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                  is_written ? sherdi_fingerprint_at(plan, block->space)
                             : sherdi_program_norms_at(plan, block->space));
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_master_count(const sherdi_program *program,
                                         const sherdi_segment *segment, const sherdi_block *block,
                                         sherdi_range param)
{
    const sherdi_plan *plan   = program->plan;
    sherdi_op          op     = sherdi_op_of_block(plan, SHERDI_OP_FINGERPRINT, block);
    sherdi_range       master = segment->has_master ? sherdi_state_at(plan, block) : param;

    master.bytes = sherdi_segment_part_bytes(segment, 0, block->elems);
    if (sherdi_segment_part_is_encoded(segment, 0)) {
        sherdi_op_use(&op, SHERDI_USE_STATE, SHERDI_READS, sherdi_state_at(plan, block));
    } else {
        sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, master);
    }
    if (sherdi_segment_is_beside(segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM, SHERDI_READS, param);
    }
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS, sherdi_fingerprint_at(plan, block->space));
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_block_work(const sherdi_program *program, sherdi_walk walk,
                                       const sherdi_segment *segment, const sherdi_block *block,
                                       sherdi_range gradient, sherdi_range param)
{
    if (sherdi_walk_has_gradient(walk)) {
        return update_emit(program, walk, segment, block, gradient, param);
    }
    return walk == SHERDI_WALK_FINGERPRINT
               ? sherdi_program_master_count(program, segment, block, param)
               : sherdi_program_offload()->values_walk(program, walk, segment, block, param);
}

sherd_status sherdi_program_block_walk(const sherdi_program *program, sherdi_walk walk,
                                       const sherdi_segment *segment, const sherdi_block *block)
{
    sherdi_range gradient = {.where = SHERDI_AT_NOWHERE};
    sherdi_range param;

    if (!is_home(segment, block)) {
        return sherdi_program_offload()->block_walk(program, walk, segment, block);
    }
    if (sherdi_program_is_skipped(program, walk, segment->unit)) {
        if (walk != SHERDI_WALK_UPDATE) {
            return SHERD_OK;
        }
        walk = SHERDI_WALK_FINGERPRINT; /* an update counts what it leaves as it is, too */
    }
    if (sherdi_walk_has_gradient(walk)) {
        gradient = sherdi_program_gradient(program->plan, block);
        SHERDI_TRY(sherdi_modules_gradient_take(program, walk, segment, block, &gradient));
    }
    param        = walk == SHERDI_WALK_DIRECT ? sherdi_direction_at(program->plan, block)
                                              : sherdi_program_param_at(program->plan, segment, block);
    param.access = (uint8_t)sherdi_program_param_access(segment);
    return sherdi_program_block_work(program, walk, segment, block, gradient, param);
}

static sherd_status segment_walk(const sherdi_program *program, sherdi_walk walk,
                                 const sherdi_segment *segment)
{
    const sherdi_plan *plan       = program->plan;
    int                is_skipped = sherdi_program_is_skipped(program, walk, segment->unit);

    if (walk == SHERDI_WALK_MEASURE && !sherdi_segment_is_measured(segment)) {
        return SHERDI_IF_OFFLOAD(segment_pass_by(program, walk, segment));
    }
    if (!is_skipped && sherdi_walk_has_gradient(walk) && segment->has_gradient) {
        SHERDI_TRY(sherdi_modules_segment_update(program, walk, segment));
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        SHERDI_TRY(sherdi_program_block_walk(program, walk, segment,
                                             &plan->layout.blocks[segment->first_block + b]));
    }
    return sherdi_walk_publishes(walk) && !is_skipped
               ? sherdi_modules_segment_updated(program, segment)
               : SHERD_OK;
}

sherd_status sherdi_program_walk(const sherdi_program *program, sherdi_walk walk)
{
    const sherdi_plan *plan = program->plan;
    size_t             from = offsetof(sherdi_scalars_head, fingerprint);

    program->progress->bounced    = 0;
    program->progress->met        = 0;
    program->progress->is_updated = walk == SHERDI_WALK_UPDATE;
    SHERDI_TRY(sherdi_program_clear(program, SHERDI_LANE_UPDATE, from,
                                    plan->scalars.results_bytes - from));
    if (walk != SHERDI_WALK_LOAD) {
        SHERDI_TRY(SHERDI_IF_OFFLOAD(slots_begin(program, walk, SHERDI_RING_STATE)));
    }
    if (sherdi_walk_has_gradient(walk)) {
        SHERDI_TRY(SHERDI_IF_OFFLOAD(slots_begin(program, walk, SHERDI_RING_GRADS)));
    }
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        SHERDI_TRY(segment_walk(program, walk, &plan->layout.segments[s]));
        if (s + 1 == plan->layout.num_segments ||
            plan->layout.segments[s + 1].unit != plan->layout.segments[s].unit) {
            SHERDI_TRY(
                SHERDI_IF_OFFLOAD(post(program, SHERDI_POST_UNIT, plan->layout.segments[s].unit)));
        }
    }
    program->progress->met = 0; /* the next walk may fail before it begins */
    return SHERD_OK;
}
