/* Offload: decides where the state, gradient and parameters of each block rest, which of them
 * travel as one extent, and the buffers between. Everything follows from the settings; nothing is
 * measured. Below are the checks of these decisions, the order of fetches, and the wear of a
 * drive. */
#include "engine/plan/plan.h"

#include "base/checked.h"

/* Pieces of parameters begin at multiples of this number of elements, which are whole pages in any
 * type. */
#define PIECE_ELEMS (SHERD_ALIGN_BYTES / 2)

int sherdi_plan_offloads_state(const sherdi_plan *plan)
{
    return plan->settings.offload.state.space != SHERDI_SPACE_DEVICE &&
           plan->settings.offload.ratio > 0;
}

int sherdi_plan_has_files(const sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;

    return (plan->offload.num_extents[SHERDI_SPACE_STORAGE] > 0 &&
            settings->offload.state.tier->has_files) ||
           (plan->offload.num_pieces > 0 && settings->offload.params.tier->has_files);
}

int sherdi_plan_has_generations(const sherdi_plan *plan)
{
    return plan->settings.offload.state.tier->index_bytes != NULL &&
           plan->offload.num_extents[SHERDI_SPACE_STORAGE] > 0 &&
           plan->offload.num_extents[SHERDI_SPACE_DEVICE] == 0 &&
           plan->offload.num_extents[SHERDI_SPACE_HOST] == 0;
}

sherdi_space sherdi_plan_param_space(const sherdi_plan *plan, const sherdi_segment *segment,
                                     size_t *host_elems)
{
    const sherdi_settings *settings = &plan->settings;

    if (settings->sharding.stage < 3 || segment->kind == SHERDI_SEGMENT_PERSISTENT ||
        segment->is_bound) {
        return SHERDI_SPACE_DEVICE;
    }
    if (settings->offload.params.space == SHERDI_SPACE_STORAGE &&
        segment->slice_elems <= settings->offload.params_in_cpu - *host_elems) {
        *host_elems += segment->slice_elems;
        return SHERDI_SPACE_HOST;
    }
    return settings->offload.params.space;
}

size_t sherdi_plan_block_elems(const sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;
    size_t                 most     = settings->sharding.sub_group_size;

    if (sherdi_plan_offloads_state(plan)) {
        most = sherdi_min_size(most, settings->offload.state.buffer_elems);
    }
    if (settings->offload.params.space != SHERDI_SPACE_DEVICE) {
        most = sherdi_min_size(most, settings->offload.params.buffer_elems);
    }
    if (settings->offload.params.space == SHERDI_SPACE_STORAGE) {
        return sherdi_max_size(most / PIECE_ELEMS * PIECE_ELEMS, PIECE_ELEMS);
    }
    return sherdi_max_size(most / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS, SHERD_CHUNK_ELEMS);
}

/* ----------------------------------------------------------------- spaces -- */

/* Chooses the blocks that are offloaded, spread evenly over all blocks, so that offload_ratio holds
 * from the first block on. */
static void state_spaces_choose(sherdi_plan *plan)
{
    double seen      = 0;
    double offloaded = 0;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block *block = &plan->layout.blocks[b];
        double        elems = (double)block->elems;

        block->space = SHERDI_SPACE_DEVICE;
        seen += elems;
        if (sherdi_plan_offloads_state(plan) &&
            offloaded + elems <= plan->settings.offload.ratio * seen) {
            block->space = plan->settings.offload.state.space;
            offloaded += elems;
        }
    }
}

size_t sherdi_plan_part_offset(const sherdi_plan *plan, const sherdi_block *block, int part,
                               size_t offset_elems)
{
    const sherdi_segment *segment = &plan->layout.segments[block->segment];
    size_t                offset  = sherdi_segment_part_bytes(segment, part, offset_elems);

    for (int i = segment->has_master ? 0 : 1; i < part; i++) {
        offset += sherdi_segment_part_bytes(segment, i, block->stride_elems);
    }
    return offset;
}

size_t sherdi_plan_state_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    const sherdi_segment *segment = &plan->layout.segments[block->segment];
    int                   last    = sherdi_segment_parts(segment) - 1;

    return last == 0 && !segment->has_master
               ? 0
               : sherdi_plan_part_offset(plan, block, last, block->elems);
}

int sherdi_plan_keeps_values(const sherdi_plan *plan, const sherdi_block *block)
{
    return block->space == SHERDI_SPACE_STORAGE &&
           sherdi_segment_is_beside(&plan->layout.segments[block->segment]);
}

int sherdi_plan_reads_values(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_plan_keeps_values(plan, block) &&
           plan->layout.segments[block->segment].param_space == SHERDI_SPACE_STORAGE;
}

size_t sherdi_plan_values_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    return block->elems * sherdi_compute_bytes(&plan->layout.segments[block->segment]);
}

size_t sherdi_plan_values_begin(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_round_up(sherdi_plan_state_bytes(plan, block), SHERD_CHUNK_ELEMS);
}

size_t sherdi_plan_stored_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    size_t bytes = sherdi_plan_reads_values(plan, block) ? sherdi_plan_values_begin(plan, block) +
                                                               sherdi_plan_values_bytes(plan, block)
                                                         : sherdi_plan_state_bytes(plan, block);

    return sherdi_round_up(bytes, SHERD_ALIGN_BYTES);
}

static sherd_status extent_add(sherdi_plan *plan, sherdi_extent **extents, size_t *count,
                               size_t *capacity, size_t len_bytes)
{
    size_t offset = 0;

    if (*count > 0) {
        offset = (*extents)[*count - 1].offset_bytes + (*extents)[*count - 1].len_bytes;
    }
    SHERDI_TRY(sherdi_grow(plan->mem, SHERDI_MEM_CONTROL, (void **)extents, capacity, *count + 1,
                           sizeof(**extents)));
    (*extents)[(*count)++] = (sherdi_extent){.offset_bytes = offset, .len_bytes = len_bytes};
    return SHERD_OK;
}

static size_t extents_end(const sherdi_extent *extents, size_t count)
{
    return count == 0 ? 0 : extents[count - 1].offset_bytes + extents[count - 1].len_bytes;
}

static size_t extents_longest(const sherdi_extent *extents, size_t count)
{
    size_t longest = 0;

    for (size_t i = 0; i < count; i++) {
        longest = sherdi_max_size(longest, extents[i].len_bytes);
    }
    return longest;
}

/* Whether a block on a drive joins the extent of the block before it there, which has `bytes` bytes
 * so far. Small blocks travel together. The blocks of a segment of matrices all share one extent,
 * and share it with no other segment: its two sweeps go over them while they are in one slot. */
static int extent_is_joined(const sherdi_plan *plan, const sherdi_block *before,
                            const sherdi_block *block, size_t bytes, size_t most)
{
    if (sherdi_segment_has_matrices(&plan->layout.segments[block->segment]) ||
        sherdi_segment_has_matrices(&plan->layout.segments[before->segment])) {
        return before->segment == block->segment;
    }
    return bytes + sherdi_plan_stored_bytes(plan, block) <= most;
}

/* Makes the extents of the state. In memory each block is an extent. On a drive an extent has at
 * most as many bytes as the largest block, except for a segment of matrices. */
static sherd_status state_extents_make(sherdi_plan *plan)
{
    const sherdi_block *before = NULL; /* the last block on the drive */
    size_t              most   = 0;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        if (plan->layout.blocks[b].space == SHERDI_SPACE_STORAGE) {
            most = sherdi_max_size(most, sherdi_plan_stored_bytes(plan, &plan->layout.blocks[b]));
        }
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block   *block   = &plan->layout.blocks[b];
        sherdi_extent **extents = &plan->offload.extents[block->space];
        size_t         *count   = &plan->offload.num_extents[block->space];
        size_t          bytes   = sherdi_plan_stored_bytes(plan, block);
        sherdi_extent  *last    = *count == 0 ? NULL : &(*extents)[*count - 1];

        block->state_offset = 0;
        if (block->space == SHERDI_SPACE_STORAGE && last != NULL &&
            extent_is_joined(plan, before, block, last->len_bytes, most)) {
            block->state_offset = last->len_bytes;
            last->len_bytes += bytes;
        } else {
            SHERDI_TRY(
                extent_add(plan, extents, count, &plan->offload.cap_extents[block->space], bytes));
        }
        block->extent = *count - 1;
        before        = block->space == SHERDI_SPACE_STORAGE ? block : before;
    }
    return SHERD_OK;
}

/* Makes an empty tail for each extent; a tail begins where the one before it ends. */
static sherd_status tails_make(sherdi_plan *plan)
{
    size_t heads = plan->offload.num_extents[SHERDI_SPACE_STORAGE];
    size_t count = heads;

    while (count < 2 * heads) {
        SHERDI_TRY(extent_add(plan, &plan->offload.extents[SHERDI_SPACE_STORAGE], &count,
                              &plan->offload.cap_extents[SHERDI_SPACE_STORAGE], 0));
    }
    plan->offload.num_tails = heads;
    return SHERD_OK;
}

static void tails_end(sherdi_plan *plan)
{
    for (size_t e = plan->offload.num_tails; e < 2 * plan->offload.num_tails; e++) {
        sherdi_extent *tail = &plan->offload.extents[SHERDI_SPACE_STORAGE][e];

        tail->len_bytes    = sherdi_round_up(tail->len_bytes, SHERD_ALIGN_BYTES);
        tail->offset_bytes = tail[-1].offset_bytes + tail[-1].len_bytes;
    }
}

/* Places the values that are stored with states. In a tail they follow each other, without the gaps
 * between states. */
static sherd_status values_lay_out(sherdi_plan *plan)
{
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block *block = &plan->layout.blocks[b];

        block->value_offset = SHERDI_NO_OFFSET;
        if (sherdi_plan_reads_values(plan, block)) {
            block->value_offset = block->state_offset + sherdi_plan_values_begin(plan, block);
        } else if (sherdi_plan_keeps_values(plan, block)) {
            const sherdi_extent *head;
            sherdi_extent       *tail;

            SHERDI_TRY(plan->offload.num_tails == 0 ? tails_make(plan) : SHERD_OK);
            head = &plan->offload.extents[SHERDI_SPACE_STORAGE][block->extent];
            tail = &plan->offload
                        .extents[SHERDI_SPACE_STORAGE][plan->offload.num_tails + block->extent];
            block->value_offset = head->len_bytes + tail->len_bytes;
            tail->len_bytes += sherdi_plan_values_bytes(plan, block);
        }
    }
    tails_end(plan);
    return SHERD_OK;
}

/* Returns the bytes of the longest extent of the state with its tail. */
static size_t longest_state(const sherdi_plan *plan)
{
    const sherdi_extent *heads   = plan->offload.extents[SHERDI_SPACE_STORAGE];
    size_t               longest = 0;

    for (size_t e = 0; e < plan->offload.num_extents[SHERDI_SPACE_STORAGE]; e++) {
        size_t tail_bytes =
            e < plan->offload.num_tails ? heads[plan->offload.num_tails + e].len_bytes : 0;

        longest = sherdi_max_size(longest, heads[e].len_bytes + tail_bytes);
    }
    return longest;
}

/* Decides where the slices of gradients rest. A segment with no offloaded block keeps its slice in
 * one piece. */
static sherd_status gradients_lay_out(sherdi_plan *plan)
{
    size_t  *bytes      = &plan->packing.buffers[SHERDI_BUFFER_HOST_GRADS].bytes;
    unsigned is_spilled = plan->settings.offload.gradients_on_nvme ? 1 : 0;

    /* otherwise slices stay on the device until the update */
    if (plan->settings.sharding.stage < 2 || plan->layout.is_deterministic ||
        sherdi_plan_accumulates_on_device(plan)) {
        return SHERD_OK;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block   *block   = &plan->layout.blocks[b];
        sherdi_segment *segment = &plan->layout.segments[block->segment];

        segment->is_staged |= block->space != SHERDI_SPACE_DEVICE;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block         *block   = &plan->layout.blocks[b];
        const sherdi_segment *segment = &plan->layout.segments[block->segment];
        size_t                elem    = sherdi_grad_bytes(plan, segment);
        size_t                len     = sherdi_round_up(block->elems * elem, SHERD_ALIGN_BYTES);

        block->grad_space  = SHERDI_SPACE_DEVICE;
        block->grad_offset = segment->grad_offset + block->offset_elems * elem;
        if (block->space == SHERDI_SPACE_DEVICE) {
            continue;
        }
        block->grad_space = block->space == SHERDI_SPACE_STORAGE && is_spilled
                                ? SHERDI_SPACE_STORAGE
                                : SHERDI_SPACE_HOST;
        if (block->grad_space == SHERDI_SPACE_HOST) {
            block->grad_offset = *bytes;
            *bytes += len;
        } else {
            block->grad_offset = plan->offload.num_grad_extents;
            SHERDI_TRY(extent_add(plan, &plan->offload.grad_extents,
                                  &plan->offload.num_grad_extents, &plan->offload.cap_grad_extents,
                                  len));
        }
    }
    return SHERD_OK;
}

/* Lays out the device's gradient arena: whole gradients; whole slices; and of a staged segment only
 * the blocks whose gradient rests there. */
static void device_gradients_lay_out(sherdi_plan *plan)
{
    size_t *bytes = &plan->packing.buffers[SHERDI_BUFFER_GRADS].bytes;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        sherdi_segment *segment = &plan->layout.segments[s];
        size_t          elem    = sherdi_grad_bytes(plan, segment);
        size_t          first; /* the begin of this rank's elements in the stored array */

        (void)sherdi_plan_owned(plan, segment, &first);
        first                = plan->layout.has_slices ? 0 : first;
        segment->grad_offset = SHERDI_NO_OFFSET;
        if (!segment->has_gradient) {
            continue;
        }
        if (segment->is_staged) {
            for (size_t b = 0; b < segment->num_blocks; b++) {
                sherdi_block *block = &plan->layout.blocks[segment->first_block + b];

                if (block->grad_space == SHERDI_SPACE_DEVICE) {
                    block->grad_offset = *bytes;
                    *bytes += sherdi_round_up(block->elems * elem, SHERD_ALIGN_BYTES);
                }
            }
            continue;
        }
        segment->grad_offset = *bytes;
        *bytes += sherdi_round_up(
            (plan->layout.has_slices ? segment->slice_elems : segment->padded_elems) * elem,
            SHERD_ALIGN_BYTES);
        for (size_t b = 0; b < segment->num_blocks; b++) {
            sherdi_block *block = &plan->layout.blocks[segment->first_block + b];

            block->grad_space  = SHERDI_SPACE_DEVICE;
            block->grad_offset = segment->grad_offset + (first + block->offset_elems) * elem;
        }
    }
}

static sherd_status pieces_make(sherdi_plan *plan)
{
    size_t most = sherdi_plan_block_elems(plan);

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        sherdi_segment *segment = &plan->layout.segments[s];
        size_t          elem    = sherdi_compute_bytes(segment);

        segment->first_piece = plan->offload.num_pieces;
        if (segment->param_space != SHERDI_SPACE_STORAGE) {
            continue;
        }
        for (size_t at = 0; at < segment->slice_elems; at += most) {
            sherdi_piece piece = {.segment      = (int)s,
                                  .offset_elems = at,
                                  .elems        = sherdi_min_size(most, segment->slice_elems - at)};
            size_t       count = plan->offload.num_pieces;

            SHERDI_TRY(SHERDI_GROW(plan->mem, plan->offload.pieces, plan->offload.num_pieces,
                                   plan->offload.cap_pieces));
            SHERDI_TRY(extent_add(plan, &plan->offload.piece_extents, &count,
                                  &plan->offload.cap_piece_extents,
                                  sherdi_round_up(piece.elems * elem, SHERD_ALIGN_BYTES)));
            plan->offload.pieces[plan->offload.num_pieces++] = piece;
        }
        segment->num_pieces = plan->offload.num_pieces - segment->first_piece;
    }
    return SHERD_OK;
}

/* Marks the pieces in which elements of the parameter lie. */
static void pieces_of_param_mark(sherdi_plan *plan, size_t param, size_t elems)
{
    const sherdi_segment *segment = &plan->layout.segments[plan->layout.params[param].segment];
    size_t                before  = (size_t)plan->rank * segment->slice_elems;
    size_t                begin;
    size_t                end;
    size_t                grain;

    sherdi_plan_held(plan, param, elems, &begin, &end);
    if (begin == end || segment->num_pieces == 0) {
        return;
    }
    grain = plan->offload.pieces[segment->first_piece].elems; /* of all pieces but the last */
    begin = begin + plan->layout.params[param].offset_elems - before;
    end   = end + plan->layout.params[param].offset_elems - before;
    for (size_t i = begin / grain; i <= (end - 1) / grain; i++) {
        plan->offload.pieces[segment->first_piece + i].is_never_written = 0;
    }
}

/* Marks the pieces that are never written. Every step writes trained pieces, padding included; a
 * frozen piece is written once, if a parameter lies in it. */
static void pieces_mark(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t p = 0; p < plan->offload.num_pieces; p++) {
        plan->offload.pieces[p].is_never_written =
            plan->layout.segments[plan->offload.pieces[p].segment].kind == SHERDI_SEGMENT_FROZEN;
    }
    for (size_t p = 0; p < plan->layout.num_params; p++) {
        pieces_of_param_mark(plan, p, model->params[p].elems);
    }
}

/* ---------------------------------------------------------------- buffers -- */

static void grad_staging_size(sherdi_plan *plan)
{
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        if (segment->is_staged) {
            plan->packing.grad_staging_bytes = sherdi_max_size(
                plan->packing.grad_staging_bytes,
                sherdi_round_up(segment->slice_elems * sherd_dtype_bytes(segment->types.comm),
                                SHERD_ALIGN_BYTES));
        }
    }
    plan->packing.num_grad_stagings =
        plan->machine.has_device || (plan->settings.sharding.overlap_comm && plan->world_size > 1)
            ? 2
            : 1;
    plan->packing.buffers[SHERDI_BUFFER_GRAD_STAGING].bytes =
        plan->packing.grad_staging_bytes * (size_t)plan->packing.num_grad_stagings;
}

/* The bytes of an offloaded block's gradient that pass through the bounce buffer. */
static size_t bounce_grad_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    const sherdi_types *types = &plan->layout.segments[block->segment].types;

    if (block->grad_space ==
        SHERDI_SPACE_DEVICE) { /* comes down at the boundary, in the type of the update */
        return block->elems * sherd_dtype_bytes(types->grad);
    }
    return plan->layout.has_accumulator ? block->elems * sherd_dtype_bytes(types->comm) : 0;
}

static void bounce_size(sherdi_plan *plan)
{
    size_t grads      = 0;
    size_t params     = 0;
    size_t directions = 0;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block   *block   = &plan->layout.blocks[b];
        const sherdi_segment *segment = &plan->layout.segments[block->segment];

        if (block->space == SHERDI_SPACE_DEVICE) {
            continue;
        }
        grads = sherdi_max_size(grads, bounce_grad_bytes(plan, block));
        if (segment->param_space == SHERDI_SPACE_DEVICE && !sherdi_plan_keeps_values(plan, block)) {
            params = sherdi_max_size(params, block->elems * sherdi_compute_bytes(segment));
        }
        if (sherdi_segment_has_matrices(segment)) {
            directions = sherdi_max_size(directions, block->elems * sizeof(float));
        }
    }
    plan->packing.bounce_param_offset = sherdi_round_up(grads, SHERD_ALIGN_BYTES);
    plan->packing.bounce_direction_offset =
        plan->packing.bounce_param_offset + sherdi_round_up(params, SHERD_ALIGN_BYTES);
    plan->packing.bounce_bytes =
        plan->packing.bounce_direction_offset + sherdi_round_up(directions, SHERD_ALIGN_BYTES);
    plan->packing.num_bounces = plan->machine.has_device ? SHERDI_MOST_BOUNCES : 1;
    plan->packing.buffers[SHERDI_BUFFER_BOUNCE].bytes =
        plan->packing.bounce_bytes * (size_t)plan->packing.num_bounces;
}

static void ring_size(sherdi_plan *plan, sherdi_buffer_id id, size_t longest, size_t count,
                      int buffer_count, size_t *bytes_out)
{
    *bytes_out                      = longest;
    plan->packing.buffers[id].bytes = *bytes_out * sherdi_min_size(count, (size_t)buffer_count);
}

/* Marks the extents on NVMe that the first of two sweeps needs, if not all segments have two
 * sweeps. */
static sherd_status measured_mark(sherdi_plan *plan)
{
    size_t states = plan->offload.num_extents[SHERDI_SPACE_STORAGE];
    int    is_all = 1;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        is_all = is_all && (plan->layout.segments[s].optimizer == NULL ||
                            sherdi_segment_is_measured(&plan->layout.segments[s]) ==
                                sherdi_plan_is_measured(plan));
    }
    if (is_all || states == 0) {
        return SHERD_OK;
    }
    plan->offload.measured_state = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, states, 1);
    plan->offload.measured_grads =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, plan->offload.num_grad_extents + 1, 1);
    if (plan->offload.measured_state == NULL || plan->offload.measured_grads == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];
        int is_measured = sherdi_segment_is_measured(&plan->layout.segments[block->segment]);

        if (is_measured && block->space == SHERDI_SPACE_STORAGE) {
            plan->offload.measured_state[block->extent] = 1;
        }
        if (is_measured && block->grad_space == SHERDI_SPACE_STORAGE) {
            plan->offload.measured_grads[block->grad_offset] = 1;
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_plan_offload_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    const sherdi_settings *settings = &plan->settings;

    state_spaces_choose(plan);
    SHERDI_TRY(state_extents_make(plan));
    SHERDI_TRY(values_lay_out(plan));
    SHERDI_TRY(gradients_lay_out(plan));
    device_gradients_lay_out(plan);
    SHERDI_TRY(pieces_make(plan));
    pieces_mark(plan, model);
    SHERDI_TRY(measured_mark(plan));
    plan->packing.buffers[SHERDI_BUFFER_STATE].bytes = extents_end(
        plan->offload.extents[SHERDI_SPACE_DEVICE], plan->offload.num_extents[SHERDI_SPACE_DEVICE]);
    plan->packing.buffers[SHERDI_BUFFER_HOST_STATE].bytes = extents_end(
        plan->offload.extents[SHERDI_SPACE_HOST], plan->offload.num_extents[SHERDI_SPACE_HOST]);
    grad_staging_size(plan);
    bounce_size(plan);
    ring_size(plan, SHERDI_BUFFER_STATE_RING, longest_state(plan),
              plan->offload.num_extents[SHERDI_SPACE_STORAGE], settings->offload.state.buffer_count,
              &plan->packing.ring_bytes);
    ring_size(plan, SHERDI_BUFFER_PARAM_RING,
              extents_longest(plan->offload.piece_extents, plan->offload.num_pieces),
              plan->offload.num_pieces, settings->offload.params.buffer_count,
              &plan->packing.param_ring_bytes);
    ring_size(plan, SHERDI_BUFFER_GRAD_RING,
              extents_longest(plan->offload.grad_extents, plan->offload.num_grad_extents),
              plan->offload.num_grad_extents, settings->offload.state.buffer_count,
              &plan->packing.grad_ring_bytes);
    plan->offload.index_bytes =
        sherdi_plan_has_generations(plan)
            ? plan->settings.offload.state.tier->index_bytes(sherdi_plan_stored(plan))
            : 0;
    /* a state of which only a part is on storage cannot be resumed, so it needs no second set */
    plan->offload.nvme_bytes[0] =
        (uint64_t)(sherdi_plan_has_generations(plan) ? 2 : 1) *
        extents_end(plan->offload.extents[SHERDI_SPACE_STORAGE], sherdi_plan_stored(plan));
    plan->offload.nvme_bytes[1] =
        extents_end(plan->offload.piece_extents, plan->offload.num_pieces);
    plan->offload.nvme_bytes[2] =
        extents_end(plan->offload.grad_extents, plan->offload.num_grad_extents);
    return SHERD_OK;
}

/* ------------------------------------------------------------------ moves -- */

static size_t live_ranges_pieces(const sherdi_plan *plan, sherdi_sequence *sequence, uint32_t *out)
{
    size_t count = 0;

    for (size_t i = 0; i < sequence->num_live_ranges; i++) {
        const sherdi_plan_unit *unit = &plan->layout.units[sequence->live_ranges[i].unit];

        sequence->live_ranges[i].first_fetch = count;

        for (size_t s = 0; s < unit->num_segments; s++) {
            const sherdi_segment *segment =
                &plan->layout.segments[plan->layout.unit_segments[unit->first_segment + s]];

            for (size_t p = 0; p < segment->num_pieces; p++, count++) {
                if (out != NULL) {
                    out[count] = (uint32_t)(segment->first_piece + p);
                }
            }
        }
    }
    return count;
}

sherd_status sherdi_plan_fetches(sherdi_plan *plan)
{
    plan->schedule.num_train_fetches = live_ranges_pieces(plan, &plan->schedule.train, NULL);
    plan->schedule.num_eval_fetches  = live_ranges_pieces(plan, &plan->schedule.eval, NULL);
    plan->schedule.fetches =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL,
                           plan->schedule.num_train_fetches + plan->schedule.num_eval_fetches,
                           sizeof(*plan->schedule.fetches));
    if (plan->schedule.fetches == NULL) {
        return SHERD_E_NOMEM;
    }
    (void)live_ranges_pieces(plan, &plan->schedule.train, plan->schedule.fetches);
    (void)live_ranges_pieces(plan, &plan->schedule.eval,
                             plan->schedule.fetches + plan->schedule.num_train_fetches);
    return SHERD_OK;
}
