/* The shape of a plan, for the proof (prove.h): two plans of one shape need only one proof. */
#include "engine/proof/check.h"

#include "base/hash.h"
#include "engine/plan/offload.h"

static uint64_t extents_hash(uint64_t hash, const sherdi_extent *extents, size_t count)
{
    for (size_t e = 0; e < count; e++) {
        hash = sherdi_hash_u64(hash, extents[e].offset_bytes);
        hash = sherdi_hash_u64(hash, extents[e].len_bytes);
    }
    return sherdi_hash_u64(hash, count);
}

/* At stage 1 gradients are whole, and a block's gradient lies in this rank's slice of the whole;
 * its offset counts from the slice. */
static uint64_t block_hash(uint64_t hash, const sherdi_plan *plan, const sherdi_block *block)
{
    const sherdi_segment *segment = sherdi_block_segment(plan, block);
    size_t                slice   = segment->slice_elems * sherdi_grad_bytes(plan, segment);
    size_t                own =
        plan->layout.is_sliced && !plan->layout.has_slices ? (size_t)plan->rank * slice : 0;

    const uint64_t FIELDS[] = {
        (uint64_t)block->segment, block->offset_elems,         block->elems,
        block->stride_elems,      (uint64_t)block->space,      block->extent,
        block->state_offset,      (uint64_t)block->grad_space, block->grad_offset - own};

    return sherdi_hash_bytes(hash, FIELDS, sizeof(FIELDS));
}

static uint64_t segment_hash(uint64_t hash, const sherdi_segment *segment)
{
    const uint64_t FIELDS[] = {(uint64_t)segment->param_space, segment->param_offset,
                               segment->first_piece,           segment->num_pieces,
                               segment->grad_offset,           (uint64_t)segment->is_staged,
                               segment->first_block,           segment->num_blocks};

    return sherdi_hash_bytes(hash, FIELDS, sizeof(FIELDS));
}

/* Only what may differ between ranks is hashed here; check.c compares what must be equal on
 * all. */
uint64_t sherdi_program_shape(const sherdi_plan *plan)
{
    uint64_t hash = 0;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        hash = segment_hash(hash, &plan->layout.segments[s]);
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        hash = block_hash(hash, plan, &plan->layout.blocks[b]);
    }
    for (size_t p = 0; p < plan->offload->num_pieces; p++) {
        hash = sherdi_hash_u64(hash, plan->offload->pieces[p].offset_elems);
        hash = sherdi_hash_u64(hash, plan->offload->pieces[p].elems);
    }
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        hash = sherdi_hash_u64(hash, plan->packing.buffers[b].bytes);
    }
    hash = extents_hash(hash, plan->rings[SHERDI_RING_PARAMS].extents, plan->offload->num_pieces);
    hash = extents_hash(hash, plan->rings[SHERDI_RING_GRADS].extents,
                        plan->rings[SHERDI_RING_GRADS].num_extents);
    return extents_hash(hash, plan->rings[SHERDI_RING_STATE].extents, sherdi_plan_stored(plan));
}
