/* The deterministic mode: gradients are sums of integers, a slice of them on each rank, whose order
 * does not matter. They are widened to fp32 where a kernel reads them. */
#include "engine/program/fixed.h"
#include "engine/program/program_walk.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "kernels/fixed.h"

/* The deterministic mode: gradients are sent in the type in which they are made, and are added as
 * integers. */
static sherd_status fixed_choose(sherdi_plan *plan, const sherdi_model *model)
{
    const sherdi_settings *settings = &plan->settings;
    uint64_t               global =
        (uint64_t)(settings->batch.train_batch_size / settings->batch.micro_batch_size);

    (void)model;
    if (!plan->layout.is_deterministic) {
        return SHERD_OK;
    }
    if (settings->numerics.comm_dtype != settings->numerics.compute_dtype) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "\"deterministic\": true sends gradients in the type they are made in, %s; "
            "remove communication_data_type or set it to that",
            sherd_dtype_name(settings->numerics.compute_dtype));
    }
    plan->layout.fixed_shift = SHERDI_FIXED_BITS;
    while (((uint64_t)1 << (SHERDI_FIXED_BITS - plan->layout.fixed_shift)) < global) {
        plan->layout.fixed_shift--;
    }
    return SHERD_OK;
}

/* Gives the staging buffer room for the gradient of an update, which is converted to fp32: of a
 * block; or of a whole segment, if the update is not sliced and collects it from all ranks. */
static sherd_status staging_size(sherdi_plan *plan, const sherdi_model *model)
{
    size_t elems = 0;

    (void)model;
    for (size_t b = 0; b < plan->layout.num_blocks && plan->layout.is_deterministic; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];
        size_t              whole = sherdi_block_segment(plan, block)->padded_elems;

        elems = sherdi_max_size(elems, plan->layout.is_sliced ? block->elems : whole);
    }
    plan->packing.publish_offset = sherdi_round_up(elems * sizeof(float), SHERD_ALIGN_BYTES);
    return SHERD_OK;
}

sherd_status sherdi_program_widen(const sherdi_program *program, const sherdi_segment *segment,
                                  sherdi_range src, sherdi_range dst)
{
    sherdi_op op =
        sherdi_op_of_segment(program->plan, SHERDI_OP_WIDEN, SHERDI_LANE_UPDATE, segment);

    op.elems  = src.bytes / sizeof(int64_t);
    dst.bytes = op.elems * sizeof(float);
    return sherdi_program_move(program, op, dst, src);
}

/* Adds the squares of integers [first, end) of the slice, widened in portions of the staging
 * buffer. */
sherd_status sherdi_program_fixed_norm(const sherdi_program *program, const sherdi_segment *segment,
                                       size_t first, size_t end)
{
    const sherdi_plan *plan   = program->plan;
    size_t             staged = plan->packing.buffers[SHERDI_BUFFER_STAGING].bytes / sizeof(float) /
                    SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;

    for (; first < end; first += staged) {
        size_t       elems = sherdi_min_size(staged, end - first);
        sherdi_range wide  = sherdi_staging_at(0, elems * sizeof(float));
        sherdi_op    op;

        SHERDI_TRY(sherdi_program_widen(
            program, segment,
            sherdi_range_of(SHERDI_BUFFER_GRADS, segment->grad_offset + first * sizeof(int64_t),
                            elems * sizeof(int64_t)),
            wide));
        op = sherdi_program_norm_op(plan, segment, SHERDI_SPACE_DEVICE, wide, SHERD_F32);
        SHERDI_TRY(sherdi_program_emit(program, &op));
    }
    return SHERD_OK;
}

static sherd_status slice_norm(const sherdi_program *program, const sherdi_segment *segment)
{
    return sherdi_program_fixed_norm(program, segment, 0, segment->slice_elems);
}

/* Stage 0, deterministic: every rank updates everything, and so needs the slices of the others. */
static sherd_status slices_collect(const sherdi_program *program, int walk,
                                   const sherdi_segment *segment)
{
    const sherdi_plan *plan  = program->plan;
    size_t             slice = segment->slice_elems * sizeof(float);

    (void)walk;
    if (!plan->layout.is_deterministic || plan->layout.is_sliced) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_program_widen(program, segment,
                                    sherdi_range_of(SHERDI_BUFFER_GRADS, segment->grad_offset,
                                                    segment->slice_elems * sizeof(int64_t)),
                                    sherdi_staging_at((size_t)plan->rank * slice, slice)));
    return sherdi_program_gather(program, segment, SHERD_F32, SHERDI_OP_MEETS,
                                 sherdi_staging_at(0, segment->padded_elems * sizeof(float)));
}

/* Gives a block's gradient, which is at *out, in fp32. An update of matrices reads none. */
static sherd_status gradient_widen(const sherdi_program *program, int walk,
                                   const sherdi_segment *segment, const sherdi_block *block,
                                   sherdi_range *out)
{
    size_t       bytes = block->elems * sherd_dtype_bytes(segment->types.grad);
    sherdi_range sums  = *out;

    if (!program->plan->layout.is_deterministic ||
        (walk == SHERDI_WALK_UPDATE && sherdi_segment_has_matrices(segment))) {
        return SHERD_OK;
    }
    if (!program->plan->layout.is_sliced) {
        *out = sherdi_staging_at(block->offset_elems * sizeof(float), bytes);
        return SHERD_OK;
    }
    *out = sherdi_staging_at(0, bytes);
    return sherdi_program_widen(program, segment, sums, *out);
}

const sherdi_module sherdi_module_deterministic = {.segments_made  = fixed_choose,
                                                   .blocks_made    = staging_size,
                                                   .gradient_take  = gradient_widen,
                                                   .fixed_norm     = slice_norm,
                                                   .segment_update = slices_collect};
