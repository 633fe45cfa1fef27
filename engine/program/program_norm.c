/* The squares of the gradient, of the whole model and of one parameter. They are summed as exact
 * integers, so it does not matter in which pieces and when. Slices that are made in backward and
 * rest on the host or a drive are measured where they are made, in the last micro-batch
 * (program_grads.c), so the boundary need not read them. It reads the others; gradients that lie
 * together are read by one operation. */
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

/* Whether `next` reads on where `run` ends. If no other rank updates with this rank's gradient,
 * only padding is between two segments; it is zero and stays zero. */
static int norm_goes_on(const sherdi_plan *plan, const sherdi_op *run, const sherdi_op *next)
{
    const sherdi_range *before = &run->uses[SHERDI_USE_SRC];
    const sherdi_range *behind = &next->uses[SHERDI_USE_SRC];
    int is_all_ours = plan->layout.has_slices || !plan->layout.is_sliced || plan->world_size == 1;
    size_t end      = before->offset + before->bytes;
    size_t padded   = sherdi_round_up(end, SHERD_ALIGN_BYTES);

    return run->elems > 0 && run->space == next->space && run->from == next->from &&
           before->where == behind->where &&
           (behind->offset == end || (is_all_ours && behind->offset == padded));
}

sherd_status sherdi_program_norm_flush(const sherdi_program *program, sherdi_op *run)
{
    sherdi_op op = *run;

    run->elems = 0;
    return op.elems > 0 ? sherdi_program_emit(program, &op) : SHERD_OK;
}

/* Adds `op` to the range if it continues the range; else emits the range, and begins another one
 * with `op`. */
static sherd_status norm_add(const sherdi_program *program, sherdi_op *run, const sherdi_op *op)
{
    sherdi_range       *all  = &run->uses[SHERDI_USE_SRC];
    const sherdi_range *more = &op->uses[SHERDI_USE_SRC];

    if (!norm_goes_on(program->plan, run, op)) {
        SHERDI_TRY(sherdi_program_norm_flush(program, run));
        *run = *op;
        return SHERD_OK;
    }
    all->bytes = more->offset + more->bytes - all->offset;
    run->elems = all->bytes / sherd_dtype_bytes(run->from);
    if (run->segment != op->segment) {
        run->segment = run->unit = -1;
    }
    return SHERD_OK;
}

/* A gradient on a drive is only temporarily in its slot. */
sherd_status sherdi_program_block_norm(const sherdi_program *program, const sherdi_segment *segment,
                                       const sherdi_block *block, size_t first, size_t end,
                                       sherdi_op *run)
{
    size_t       elem     = sherdi_grad_bytes(program->plan, segment);
    sherdi_range gradient = sherdi_program_gradient(program->plan, block);
    sherdi_op    op;

    gradient.offset += first * elem;
    gradient.bytes = (end - first) * elem;
    op             = sherdi_program_norm_op(program->plan, segment, block->grad_space, gradient,
                                            segment->types.grad);
    SHERDI_TRY(SHERDI_IF_OFFLOAD(gradient_read(program, block)));
    return op.space == SHERDI_SPACE_STORAGE ? sherdi_program_emit(program, &op)
                                            : norm_add(program, run, &op);
}

static sherd_status segment_norm(const sherdi_program *program, const sherdi_segment *segment,
                                 sherdi_op *run)
{
    const sherdi_plan *plan = program->plan;

    if (plan->layout.is_deterministic) {
        return sherdi_modules_fixed_norm(program, segment);
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[segment->first_block + b];

        SHERDI_TRY(sherdi_program_block_norm(program, segment, block, 0, block->elems, run));
        SHERDI_TRY(SHERDI_IF_OFFLOAD(gradient_give(program, SHERDI_WALK_UPDATE, block)));
    }
    return SHERD_OK;
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
    SHERDI_TRY(sherdi_program_norm_flush(program, &run));
    return sherdi_program_collect(program);
}
