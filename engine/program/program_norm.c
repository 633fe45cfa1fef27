/* The squares of the gradient, of the whole model and of one parameter. They are summed as exact
 * integers, so it does not matter in which pieces and when. Slices that are made in backward and
 * rest on the host or a drive are measured where they are made, in the last micro-batch
 * (program_staged.c), so the boundary need not read them. It reads the others; segments
 * that lie together are read by one operation. */
#include "engine/program/program_walk.h"

#include "engine/modules.h"
#include "engine/program/offload.h"

#include "base/checked.h"

sherdi_op sherdi_program_norm_op(const sherdi_plan *plan, const sherdi_segment *segment,
                                 sherdi_space space, sherdi_range gradient, sherd_dtype dtype)
{
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_NORM, sherdi_lane_at(space), segment);

    op.space = space;
    op.from  = dtype;
    op.elems = gradient.bytes / sherd_dtype_bytes(dtype);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, gradient);
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS, sherdi_program_norm_at(plan, space));
    return op;
}

/* Whether the operation `next` reads on where `run` ends. If no other rank updates with this rank's
 * gradient, only padding is between two segments; it is zero and stays zero. */
static int norm_goes_on(const sherdi_plan *plan, const sherdi_op *run, const sherdi_op *next)
{
    const sherdi_range *before = &run->uses[SHERDI_USE_SRC];
    size_t              end    = before->offset + before->bytes;
    size_t              at     = next->uses[SHERDI_USE_SRC].offset;
    int is_all_ours = plan->layout.has_slices || !plan->layout.is_sliced || plan->world_size == 1;

    return run->elems > 0 && run->from == next->from &&
           (plan->layout.sum_words == 0 || run->unit == next->unit) &&
           (at == end || (is_all_ours && at == sherdi_round_up(end, SHERD_ALIGN_BYTES)));
}

/* Adds `op` to the operation `run` if it continues its range; else emits `run`, and begins another
 * one with `op`. */
static sherd_status norm_add(const sherdi_program *program, sherdi_op *run, const sherdi_op *op)
{
    sherdi_range       *all  = &run->uses[SHERDI_USE_SRC];
    const sherdi_range *more = &op->uses[SHERDI_USE_SRC];
    sherdi_op           over = *run;

    if (!norm_goes_on(program->plan, run, op)) {
        *run = *op;
        return over.elems > 0 ? sherdi_program_emit(program, &over) : SHERD_OK;
    }
    all->bytes   = more->offset + more->bytes - all->offset;
    run->elems   = all->bytes / sherd_dtype_bytes(run->from);
    run->segment = -1;
    run->unit    = run->unit == op->unit ? run->unit : -1;
    return SHERD_OK;
}

/* Adds the squares of what this rank updates of a segment, or of its slice. */
static sherd_status segment_norm(const sherdi_program *program, const sherdi_segment *segment,
                                 sherdi_op *run)
{
    const sherdi_plan *plan     = program->plan;
    size_t             elem     = sherdi_grad_bytes(plan, segment);
    size_t             first    = plan->layout.has_slices ? 0 : segment->own_first;
    sherdi_range       gradient = sherdi_range_of(
              SHERDI_BUFFER_GRADS, segment->grad_offset + first * elem, segment->own_elems * elem);
    sherdi_op op;

    if (plan->layout.is_deterministic) {
        return sherdi_modules_fixed_norm(program, segment);
    }
    if (segment->is_staged) {
        return sherdi_program_offload()->segment_norm(program, segment);
    }
    op = sherdi_program_norm_op(plan, segment, SHERDI_SPACE_DEVICE, gradient, segment->types.grad);
    return norm_add(program, run, &op);
}

/* Whether the sum has the squares of a segment's gradient: it was measured, or is zero on all
 * ranks. */
static int is_summed(const sherdi_program *program, const sherdi_segment *segment)
{
    const sherdi_unit_state *state = sherdi_program_unit(program, segment->unit);

    return state->uses.runs == 0 || (segment->is_staged && state->is_measured);
}

sherd_status sherdi_program_norm(const sherdi_program *program)
{
    const sherdi_plan *plan = program->plan;
    sherdi_op          run  = {.elems = 0};

    SHERDI_TRY(SHERDI_IF_OFFLOAD(slots_begin(program, SHERDI_WALK_UPDATE, SHERDI_RING_GRADS)));
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        if (plan->layout.segments[s].has_gradient &&
            !is_summed(program, &plan->layout.segments[s])) {
            SHERDI_TRY(segment_norm(program, &plan->layout.segments[s], &run));
        }
    }
    SHERDI_TRY(run.elems > 0 ? sherdi_program_emit(program, &run) : SHERD_OK);
    return sherdi_program_collect(program);
}
