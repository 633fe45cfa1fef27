/* Checks that what rests outside the device, activations too, lies where nothing else does: a part
 * of the plan's invariants (check.h). */
#include "engine/proof/check.h"
#include "engine/plan/activations.h"
#include "engine/plan/offload.h"

static int is_inside(size_t offset, size_t bytes, const sherdi_plan_buffer *buffer)
{
    return offset % SHERD_ALIGN_BYTES == 0 && offset <= buffer->bytes &&
           bytes <= buffer->bytes - offset;
}

/* Two places are the same or have no byte in common, and of two that are the same one comes after
 * the other. */
static int places_are_apart(const sherdi_activation *a, const sherdi_activation *b, size_t of_a,
                            size_t of_b)
{
    return of_a == SHERDI_NO_OFFSET || of_b == SHERDI_NO_OFFSET || of_a == of_b ||
           of_a + a->bytes <= of_b || of_b + b->bytes <= of_a;
}

static int activations_are_valid(const sherdi_plan *plan)
{
    const sherdi_plan_buffer *device = &plan->packing.buffers[SHERDI_BUFFER_ACTIVATIONS];
    const sherdi_plan_buffer *host   = &plan->packing.buffers[SHERDI_BUFFER_HOST_ACTIVATIONS];

    for (size_t i = 0; i < plan->activations->count; i++) {
        const sherdi_activation *a       = &plan->activations->items[i];
        int                      is_last = 1; /* of those that have its place */

        if (plan->layout.units[a->unit].activation != i ||
            !is_inside(a->offset, a->bytes, device) ||
            (a->host_offset != SHERDI_NO_OFFSET && !is_inside(a->host_offset, a->bytes, host)) ||
            (a->extent != SHERDI_NO_OFFSET &&
             plan->rings[SHERDI_RING_ACTIVATIONS].extents[a->extent].len_bytes != a->bytes) ||
            (a->next != SHERDI_NO_ACTIVATION &&
             plan->activations->items[a->next].offset != a->offset)) {
            return 0;
        }
        for (size_t k = 0; k < plan->activations->count; k++) {
            const sherdi_activation *b = &plan->activations->items[k];

            is_last = is_last && (k <= i || b->offset != a->offset);
            if (!places_are_apart(a, b, a->offset, b->offset) ||
                !places_are_apart(a, b, a->host_offset, b->host_offset)) {
                return 0;
            }
        }
        if (!is_last && a->host_offset == SHERDI_NO_OFFSET && a->extent == SHERDI_NO_OFFSET) {
            return 0; /* it has to leave its place, and has nowhere to go */
        }
    }
    return 1;
}

static int extents_are_valid(const sherdi_extent *extents, size_t count, size_t longest)
{
    size_t end = 0;

    for (size_t i = 0; i < count; i++) {
        if (extents[i].offset_bytes != end || extents[i].len_bytes == 0 ||
            extents[i].len_bytes % SHERD_ALIGN_BYTES != 0 || extents[i].len_bytes > longest) {
            return 0;
        }
        end += extents[i].len_bytes;
    }
    return 1;
}

/* Checks that the states of blocks fill the arenas of their spaces, and the extents on storage, one
 * after the other. */
static int states_are_valid(const sherdi_plan *plan)
{
    const sherdi_extent *extents             = plan->rings[SHERDI_RING_STATE].extents;
    size_t               ends[SHERDI_SPACES] = {0};
    size_t               extent              = 0;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];
        size_t             *end   = &ends[block->space];

        if (block->space == SHERDI_SPACE_STORAGE && block->extent == extent + 1 &&
            *end == extents[extent].len_bytes) {
            extent++;
            *end = 0;
        }
        if (block->state_offset != *end ||
            (block->space == SHERDI_SPACE_STORAGE && block->extent != extent)) {
            return 0;
        }
        *end += sherdi_plan_stored_bytes(plan, block);
    }
    return ends[SHERDI_SPACE_DEVICE] == plan->packing.buffers[SHERDI_BUFFER_STATE].bytes &&
           ends[SHERDI_SPACE_HOST] == plan->packing.buffers[SHERDI_BUFFER_HOST_STATE].bytes &&
           (plan->rings[SHERDI_RING_STATE].num_extents == 0 ||
            (extent == plan->rings[SHERDI_RING_STATE].num_extents - 1 &&
             ends[SHERDI_SPACE_STORAGE] == extents[extent].len_bytes));
}

/* Checks that values follow their block's state, or follow each other in a tail that has nothing
 * else. */
static int values_are_valid(const sherdi_plan *plan)
{
    const sherdi_extent *all    = plan->rings[SHERDI_RING_STATE].extents;
    size_t               heads  = plan->rings[SHERDI_RING_STATE].num_extents;
    size_t               extent = 0; /* whose tail `end` is in */
    size_t               end    = 0;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];
        size_t              begin = block->state_offset + sherdi_plan_values_begin(plan, block);

        if (sherdi_plan_keeps_values(plan, block) != sherdi_block_keeps_values(block)) {
            return 0;
        }
        if (sherdi_plan_keeps_values(plan, block) && !sherdi_plan_reads_values(plan, block)) {
            end    = block->extent == extent ? end : 0;
            extent = block->extent;
            begin  = all[extent].len_bytes + end;
            end += sherdi_plan_values_bytes(plan, block);
            if (plan->offload->num_tails == 0 || end > all[heads + extent].len_bytes) {
                return 0;
            }
        }
        if (sherdi_block_keeps_values(block) && block->value_offset != begin) {
            return 0;
        }
    }
    for (size_t e = heads; e < sherdi_plan_stored(plan); e++) {
        if (all[e].offset_bytes != all[e - 1].offset_bytes + all[e - 1].len_bytes ||
            all[e].len_bytes % SHERD_ALIGN_BYTES != 0 ||
            all[e].len_bytes + all[e - heads].len_bytes >
                plan->rings[SHERDI_RING_STATE].slot_bytes) {
            return 0;
        }
    }
    return 1;
}

/* Checks that gradients of blocks follow each other in an arena, and that those on NVMe are
 * numbered. */
static int gradients_are_valid(const sherdi_plan *plan)
{
    size_t ends[SHERDI_SPACES] = {0};

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block   *block   = &plan->layout.blocks[b];
        const sherdi_segment *segment = sherdi_block_segment(plan, block);

        if (!segment->is_staged) {
            continue;
        }
        if (block->grad_offset < ends[block->grad_space] ||
            (block->space == SHERDI_SPACE_DEVICE) != (block->grad_space == SHERDI_SPACE_DEVICE)) {
            return 0;
        }
        ends[block->grad_space] =
            block->grad_offset + (block->grad_space == SHERDI_SPACE_STORAGE
                                      ? 1
                                      : block->elems * sherdi_grad_bytes(plan, segment));
    }
    return ends[SHERDI_SPACE_DEVICE] <= plan->packing.buffers[SHERDI_BUFFER_GRADS].bytes &&
           ends[SHERDI_SPACE_HOST] <= plan->packing.buffers[SHERDI_BUFFER_HOST_GRADS].bytes &&
           ends[SHERDI_SPACE_STORAGE] == plan->rings[SHERDI_RING_GRADS].num_extents;
}

/* Checks that pieces tile the slices that rest on NVMe, and that the pieces of a trainable segment
 * are its blocks. */
static int pieces_are_valid(const sherdi_plan *plan)
{
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t                at      = 0;

        for (size_t p = 0; p < segment->num_pieces; p++) {
            const sherdi_piece *piece = &plan->offload->pieces[segment->first_piece + p];

            if (piece->segment != (int)s || piece->offset_elems != at ||
                (segment->num_blocks > 0 &&
                 plan->layout.blocks[segment->first_block + p].elems != piece->elems)) {
                return 0;
            }
            at += piece->elems;
        }
        if (at != (segment->param_space == SHERDI_SPACE_STORAGE ? segment->slice_elems : 0)) {
            return 0;
        }
    }
    return 1;
}

int sherdi_plan_offload_is_valid(const sherdi_plan *plan)
{
    return extents_are_valid(plan->rings[SHERDI_RING_STATE].extents,
                             plan->rings[SHERDI_RING_STATE].num_extents,
                             plan->rings[SHERDI_RING_STATE].slot_bytes) &&
           states_are_valid(plan) && activations_are_valid(plan) &&
           extents_are_valid(plan->rings[SHERDI_RING_ACTIVATIONS].extents,
                             plan->rings[SHERDI_RING_ACTIVATIONS].num_extents, SIZE_MAX - 1) &&
           extents_are_valid(plan->rings[SHERDI_RING_PARAMS].extents, plan->offload->num_pieces,
                             plan->rings[SHERDI_RING_PARAMS].slot_bytes) &&
           extents_are_valid(plan->rings[SHERDI_RING_GRADS].extents,
                             plan->rings[SHERDI_RING_GRADS].num_extents,
                             plan->rings[SHERDI_RING_GRADS].slot_bytes) &&
           values_are_valid(plan) && gradients_are_valid(plan) && pieces_are_valid(plan);
}
