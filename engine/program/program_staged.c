/* Slices of gradients whose state is offloaded. Backward reduces them to a staging buffer, and they
 * go from there to host memory or to storage, where the window adds them up.
 *
 * In the last micro-batch of the window, the operation that makes such a slice adds its squares to
 * the norm, so that the slice is not read for the norm. */
#include "engine/program/program_rings.h"
#include "engine/program/program_walk.h"

sherd_status sherdi_rings_gradient_read(const sherdi_program *program, const sherdi_block *block)
{
    if (block->grad_space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    return sherdi_program_read(program, SHERDI_RING_GRADS, block->grad_offset, block->grad_offset,
                               sherdi_block_segment(program->plan, block)->unit);
}

static sherd_status gradient_write(const sherdi_program *program, const sherdi_block *block)
{
    if (block->grad_space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    return sherdi_program_write(program, SHERDI_RING_GRADS, block->grad_offset, block->grad_offset,
                                sherdi_block_segment(program->plan, block)->unit);
}

static sherdi_range grad_staging_at(const sherdi_plan *plan, int slot, size_t offset, size_t bytes)
{
    return sherdi_range_of(SHERDI_BUFFER_GRAD_STAGING,
                           (size_t)slot * plan->offload->grad_staging_bytes + offset, bytes);
}

/* Lets the operation that makes a sum on the host add its squares to the norm, if this is the
 * window's last micro-batch. */
static void measure(const sherdi_program *program, sherdi_op *op, int is_last)
{
    if (is_last) {
        op->flags |= SHERDI_OP_MEASURES;
        op->space = SHERDI_SPACE_HOST;
        sherdi_op_use(op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                      sherdi_program_norm_at(program->plan, SHERDI_SPACE_HOST));
    }
}

/* Adds the squares of a gradient in device memory to the norm. */
static sherd_status device_measure(const sherdi_program *program, const sherdi_segment *segment,
                                   sherdi_range gradient)
{
    sherdi_op op = sherdi_program_norm_op(program->plan, segment, SHERDI_SPACE_DEVICE, gradient,
                                          segment->types.grad);

    return sherdi_program_emit(program, &op);
}

/* Brings down an addend that is the sum. A device has measured it; else the copy does. */
static sherd_status addend_copy(const sherdi_program *program, const sherdi_segment *segment,
                                sherdi_range addend, sherdi_range sum, int is_last)
{
    sherdi_op op = sherdi_op_of_segment(program->plan, SHERDI_OP_COPY, SHERDI_LANE_DOWN, segment);

    if (program->plan->machine.has_device) {
        SHERDI_TRY(is_last ? device_measure(program, segment, addend) : SHERD_OK);
    } else {
        op.to = segment->types.grad;
        measure(program, &op, is_last);
    }
    return sherdi_program_move(program, op, sum, addend);
}

/* Brings the addend down to the host, which keeps it or adds it to the sum. */
static sherd_status addend_to_host(const sherdi_program *program, const sherdi_segment *segment,
                                   sherdi_range addend, sherdi_range sum,
                                   const sherdi_staged_grad *staged)
{
    const sherdi_plan *plan   = program->plan;
    sherdi_range       bounce = sherdi_range_of(SHERDI_BUFFER_BOUNCE, 0, addend.bytes);
    sherdi_op          op = sherdi_op_of_segment(plan, SHERDI_OP_CAST, SHERDI_LANE_HOST, segment);

    if (!plan->layout.has_accumulator) {
        return addend_copy(program, segment, addend, sum, staged->is_last);
    }
    SHERDI_TRY(sherdi_program_copy(program, SHERDI_LANE_DOWN, segment, bounce, addend));
    measure(program, &op, staged->is_last);
    return sherdi_program_add(program, op, staged->is_first, sum, segment->types.grad, bounce,
                              segment->types.comm);
}

static sherd_status addend_rest(const sherdi_program *program, const sherdi_segment *segment,
                                const sherdi_block *block, sherdi_range addend,
                                const sherdi_staged_grad *staged)
{
    const sherdi_plan *plan = program->plan;
    sherdi_range       rest = sherdi_program_gradient(plan, block);
    sherdi_op          op   = sherdi_op_of_segment(plan, SHERDI_OP_CAST, SHERDI_LANE_DOWN, segment);

    if (block->grad_space == SHERDI_SPACE_DEVICE) {
        SHERDI_TRY(sherdi_program_add(program, op, staged->is_first, rest, segment->types.grad,
                                      addend, segment->types.comm));
        return staged->is_last ? device_measure(program, segment, rest) : SHERD_OK;
    }
    if (!staged->is_first) {
        SHERDI_TRY(sherdi_rings_gradient_read(program, block));
    }
    SHERDI_TRY(addend_to_host(program, segment, addend, rest, staged));
    return gradient_write(program, block);
}

static sherd_status slice_rest(const sherdi_program *program, int slot,
                               const sherdi_staged_grad *staged)
{
    const sherdi_plan    *plan    = program->plan;
    const sherdi_segment *segment = &plan->layout.segments[staged->segment];
    size_t                elem    = sherd_dtype_bytes(segment->types.comm);

    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[segment->first_block + b];

        SHERDI_TRY(addend_rest(
            program, segment, block,
            grad_staging_at(plan, slot, block->offset_elems * elem, block->elems * elem), staged));
    }
    return SHERD_OK;
}

void sherdi_staged_forget(sherdi_progress *progress)
{
    for (int slot = 0; slot < SHERDI_MOST_STAGED; slot++) {
        progress->staged->slots[slot].segment = -1;
    }
}

/* Brings a staged slice to where its blocks rest. */
static sherd_status staged_drain(const sherdi_program *program, int slot)
{
    sherdi_staged_grad staged = program->progress->staged->slots[slot];
    uint32_t           before;
    sherd_status       status;

    if (staged.segment < 0) {
        return SHERD_OK;
    }
    program->progress->staged->slots[slot].segment = -1;
    before = sherdi_program_flag(program, SHERDI_OP_LATE | (staged.is_first ? SHERDI_OP_FIRST : 0));
    status = slice_rest(program, slot, &staged);
    program->progress->flags = before;
    return status;
}

/* Whether the host works on the way from a staging buffer. If it does, the slice stays there until
 * its slot is needed again, so that it does not delay the reductions of the ranks in the
 * meantime. */
static int drain_needs_host(const sherdi_plan *plan)
{
    return !plan->machine.has_device || plan->layout.has_accumulator ||
           plan->rings[SHERDI_RING_GRADS].num_extents > 0;
}

sherd_status sherdi_staged_reduce(const sherdi_program *program, const sherdi_segment *segment,
                                  int is_first)
{
    const sherdi_plan *plan     = program->plan;
    sherdi_progress   *progress = program->progress;
    int                slot     = progress->staged->next;
    sherd_dtype        comm     = segment->types.comm;

    SHERDI_TRY(staged_drain(program, slot));
    progress->staged->next = (slot + 1) % plan->offload->num_grad_stagings;
    SHERDI_TRY(sherdi_program_scatter(
        program, segment,
        grad_staging_at(plan, slot, 0, segment->slice_elems * sherd_dtype_bytes(comm)), comm, 0));
    progress->staged->slots[slot] =
        (sherdi_staged_grad){.segment  = (int)(segment - plan->layout.segments),
                             .is_first = is_first,
                             .is_last  = progress->is_last};
    return drain_needs_host(plan) ? SHERD_OK : staged_drain(program, slot);
}

/* Copies staged slices to the space where they rest: as soon as their slot is needed again, and by
 * the end of the window. */
sherd_status sherdi_staged_drain_all(const sherdi_program *program)
{
    int slots = program->plan->offload->num_grad_stagings;

    for (int i = 0; i < slots; i++) { /* the older slice first */
        SHERDI_TRY(staged_drain(program, (program->progress->staged->next + i) % slots));
    }
    return SHERD_OK;
}

/* Zeroes the gradient of a block to which no micro-batch brought one. */
static sherd_status block_zero(const sherdi_program *program, const sherdi_segment *segment,
                               const sherdi_block *block)
{
    sherdi_op op = sherdi_op_of_segment(program->plan, SHERDI_OP_ZERO,
                                        sherdi_lane_at(block->grad_space), segment);

    SHERDI_TRY(sherdi_program_make(program, op, sherdi_program_gradient(program->plan, block)));
    return gradient_write(program, block);
}

sherd_status sherdi_staged_zero(const sherdi_program *program, const sherdi_segment *segment)
{
    for (size_t b = 0; b < segment->num_blocks; b++) {
        SHERDI_TRY(
            block_zero(program, segment, &program->plan->layout.blocks[segment->first_block + b]));
    }
    return SHERD_OK;
}
