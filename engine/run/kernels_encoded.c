/* Kernels that encode and decode parts of blocks, and sum their fingerprints. */
#include "engine/run/encoded.h"

#include "engine/run/scalars.h"

sherdi_encoded sherdi_run_encoded_part(const sherd_engine *engine, const sherdi_op *op, int part)
{
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = &plan->layout.segments[op->segment];
    unsigned char        *state   = sherdi_run_address(engine, op, SHERDI_USE_STATE);
    int                   ties    = segment->ties_part;

    return (sherdi_encoded){
        .encoding      = segment->encodings[part],
        .data          = state + sherdi_plan_part_offset(plan, op->block, part, 0),
        .has_ties      = part > 0 && part == ties,
        .param         = (uint16_t *)sherdi_run_address(engine, op, SHERDI_USE_PARAM),
        .ties          = state + sherdi_plan_part_offset(plan, op->block, ties, 0),
        .ties_encoding = segment->encodings[ties],
    };
}

void sherdi_kernel_encode(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_encoded part = sherdi_run_encoded_part(engine, op, op->part);

    lane->kernels->encode(lane, &part, (size_t)op->index,
                          sherdi_run_address(engine, op, SHERDI_USE_SRC), op->elems);
}

void sherdi_kernel_decode(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_encoded part = sherdi_run_encoded_part(engine, op, op->part);

    lane->kernels->decode(lane, sherdi_run_address(engine, op, SHERDI_USE_DST), &part,
                          (size_t)op->index, op->elems);
}

void sherdi_kernel_fingerprint_encoded(sherd_engine *engine, const sherdi_backend *lane,
                                       const sherdi_op *op)
{
    const sherdi_scalars *scalars = sherdi_space_scalars(engine, op->space);
    sherdi_encoded        master  = sherdi_run_encoded_part(engine, op, 0);

    lane->kernels->fingerprint_encoded(lane, scalars->spans + op->block->first_span,
                                       op->block->num_spans, &master, &scalars->head->fingerprint);
}
