/* Offload: decides where the state, gradient and parameters of each block rest, which of them
 * travel as one extent, and the buffers between. Everything follows from the settings; nothing is
 * measured. */
#include "engine/plan/offload.h"

#include "base/checked.h"
#include "engine/modules.h"

/* Pieces of parameters begin at multiples of this number of elements, which are whole pages in any
 * type. */
#define PIECE_ELEMS (SHERD_ALIGN_BYTES / 2)

/* ----------------------------------------------------------------- spaces -- */

/* Returns the space where a segment's parameters rest; adds their part of the host's budget to
 * *host_elems. */
static sherdi_space param_space(const sherdi_plan *plan, const sherdi_segment *segment,
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

static void elems_limit(size_t *most, const char **key, size_t elems, const char *key_of_elems)
{
    if (elems < *most) {
        *most = elems;
        *key  = key_of_elems;
    }
}

/* Limits the elements of a block to those that a buffer has room for. */
static void blocks_limit(sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;
    size_t                 most     = settings->sharding.sub_group_size;
    size_t                 grain    = SHERD_CHUNK_ELEMS;

    if (plan->layout.offloads_state) {
        elems_limit(&most, &plan->layout.block_key, settings->offload.state.buffer_elems,
                    "zero_optimization.offload_optimizer.buffer_size");
    }
    if (settings->offload.params.space != SHERDI_SPACE_DEVICE) {
        elems_limit(&most, &plan->layout.block_key, settings->offload.params.buffer_elems,
                    "zero_optimization.offload_param.buffer_size");
        grain = settings->offload.params.space == SHERDI_SPACE_STORAGE ? PIECE_ELEMS : grain;
    }
    plan->layout.block_elems = sherdi_max_size(most / grain * grain, grain);
}

/* Chooses where parameters rest, and how large blocks may be. */
static sherd_status param_spaces_choose(sherdi_plan *plan, const sherdi_model *model)
{
    const sherdi_offloads_settings *offload    = &plan->settings.offload;
    size_t                          host_elems = 0;

    (void)model;
    plan->layout.offloads_state = offload->state.space != SHERDI_SPACE_DEVICE && offload->ratio > 0;
    /* where a drive can fail in the update, new values are published when all ranks have theirs */
    plan->schedule.publishes_early &= offload->state.space != SHERDI_SPACE_STORAGE &&
                                      offload->params.space != SHERDI_SPACE_STORAGE;
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        sherdi_segment *segment = &plan->layout.segments[s];

        segment->param_space = param_space(plan, segment, &host_elems);
    }
    blocks_limit(plan);
    return SHERD_OK;
}

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
        if (plan->layout.offloads_state &&
            offloaded + elems <= plan->settings.offload.ratio * seen) {
            block->space = plan->settings.offload.state.space;
            offloaded += elems;
        }
    }
}

int sherdi_plan_keeps_values(const sherdi_plan *plan, const sherdi_block *block)
{
    return block->space == SHERDI_SPACE_STORAGE &&
           sherdi_segment_is_beside(sherdi_block_segment(plan, block));
}

int sherdi_plan_reads_values(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_plan_keeps_values(plan, block) &&
           sherdi_block_segment(plan, block)->param_space == SHERDI_SPACE_STORAGE;
}

size_t sherdi_plan_values_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    return block->elems * sherdi_compute_bytes(sherdi_block_segment(plan, block));
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

static size_t extents_end(const sherdi_extent *extents, size_t count)
{
    return count == 0 ? 0 : extents[count - 1].offset_bytes + extents[count - 1].len_bytes;
}

/* Adds an extent behind the `count` first of a ring. */
static sherd_status extent_add(sherdi_plan *plan, sherdi_plan_ring *ring, size_t count,
                               size_t len_bytes)
{
    size_t offset = extents_end(ring->extents, count);

    SHERDI_TRY(sherdi_grow(plan->mem, SHERDI_MEM_CONTROL, (void **)&ring->extents,
                           &ring->cap_extents, count + 1, sizeof(*ring->extents)));
    ring->extents[count] = (sherdi_extent){.offset_bytes = offset, .len_bytes = len_bytes};
    return SHERD_OK;
}

static sherd_status ring_extend(sherdi_plan *plan, sherdi_plan_ring *ring, size_t len_bytes)
{
    SHERDI_TRY(extent_add(plan, ring, ring->num_extents, len_bytes));
    ring->num_extents++;
    return SHERD_OK;
}

static size_t extents_longest(const sherdi_plan_ring *ring)
{
    size_t longest = 0;

    for (size_t i = 0; i < ring->num_extents; i++) {
        longest = sherdi_max_size(longest, ring->extents[i].len_bytes);
    }
    return longest;
}

/* Whether a block on a drive joins the extent of the block before it there, which has `bytes` bytes
 * so far. Small blocks travel together. The blocks of a segment of matrices all share one extent,
 * and share it with no other segment: its two sweeps go over them while they are in one slot. */
static int extent_is_joined(const sherdi_plan *plan, const sherdi_block *before,
                            const sherdi_block *block, size_t bytes, size_t most)
{
    if (sherdi_segment_has_matrices(sherdi_block_segment(plan, block)) ||
        sherdi_segment_has_matrices(&plan->layout.segments[before->segment])) {
        return before->segment == block->segment;
    }
    return bytes + sherdi_plan_stored_bytes(plan, block) <= most;
}

/* Returns the bytes of the largest block on the drive. */
static size_t longest_block(const sherdi_plan *plan)
{
    size_t most = 0;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        if (plan->layout.blocks[b].space == SHERDI_SPACE_STORAGE) {
            most = sherdi_max_size(most, sherdi_plan_stored_bytes(plan, &plan->layout.blocks[b]));
        }
    }
    return most;
}

/* Places the state that does not rest on the device. In host memory blocks follow each other. On a
 * drive they are joined to extents of at most as many bytes as the largest block has, except for a
 * segment of matrices. */
static sherd_status states_lay_out(sherdi_plan *plan)
{
    sherdi_plan_ring   *ring   = &plan->rings[SHERDI_RING_STATE];
    size_t             *arena  = &plan->packing.buffers[SHERDI_BUFFER_HOST_STATE].bytes;
    const sherdi_block *before = NULL; /* the last block on the drive */
    size_t              most   = longest_block(plan);

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block  *block = &plan->layout.blocks[b];
        size_t         bytes = sherdi_plan_stored_bytes(plan, block);
        sherdi_extent *last  = before == NULL ? NULL : &ring->extents[ring->num_extents - 1];

        if (block->space == SHERDI_SPACE_HOST) {
            block->state_offset = *arena;
            *arena += bytes;
        }
        if (block->space != SHERDI_SPACE_STORAGE) {
            continue;
        }
        if (last != NULL && extent_is_joined(plan, before, block, last->len_bytes, most)) {
            block->state_offset = last->len_bytes;
            last->len_bytes += bytes;
        } else {
            SHERDI_TRY(ring_extend(plan, ring, bytes));
        }
        block->extent = ring->num_extents - 1;
        before        = block;
    }
    return SHERD_OK;
}

/* Whether all state is on a drive that has two sets of it. */
static int has_generations(const sherdi_plan *plan)
{
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        if (plan->layout.blocks[b].space != SHERDI_SPACE_STORAGE) {
            return 0;
        }
    }
    return plan->layout.num_blocks > 0 && plan->settings.offload.state.tier->index_bytes != NULL;
}

/* Makes an empty tail for each extent; a tail begins where the one before it ends. */
static sherd_status tails_make(sherdi_plan *plan)
{
    sherdi_plan_ring *ring = &plan->rings[SHERDI_RING_STATE];

    for (size_t e = ring->num_extents; e < 2 * ring->num_extents; e++) {
        SHERDI_TRY(extent_add(plan, ring, e, 0));
    }
    plan->offload->num_tails = ring->num_extents;
    return SHERD_OK;
}

static void tails_end(sherdi_plan *plan)
{
    for (size_t e = plan->offload->num_tails; e < 2 * plan->offload->num_tails; e++) {
        sherdi_extent *tail = &plan->rings[SHERDI_RING_STATE].extents[e];

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

        if (sherdi_plan_reads_values(plan, block)) {
            block->value_offset = block->state_offset + sherdi_plan_values_begin(plan, block);
        } else if (sherdi_plan_keeps_values(plan, block)) {
            const sherdi_extent *head;
            sherdi_extent       *tail;

            SHERDI_TRY(plan->offload->num_tails == 0 ? tails_make(plan) : SHERD_OK);
            head = &plan->rings[SHERDI_RING_STATE].extents[block->extent];
            tail =
                &plan->rings[SHERDI_RING_STATE].extents[plan->offload->num_tails + block->extent];
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
    const sherdi_extent *heads   = plan->rings[SHERDI_RING_STATE].extents;
    size_t               longest = 0;

    for (size_t e = 0; e < plan->rings[SHERDI_RING_STATE].num_extents; e++) {
        size_t tail_bytes =
            e < plan->offload->num_tails ? heads[plan->offload->num_tails + e].len_bytes : 0;

        longest = sherdi_max_size(longest, heads[e].len_bytes + tail_bytes);
    }
    return longest;
}

/* Decides where the slices of gradients of offloaded blocks rest. A segment with no offloaded block
 * keeps its slice in one piece. */
static sherd_status gradients_lay_out(sherdi_plan *plan)
{
    size_t  *bytes      = &plan->packing.buffers[SHERDI_BUFFER_HOST_GRADS].bytes;
    unsigned is_spilled = plan->settings.offload.gradients_on_nvme ? 1 : 0;

    /* otherwise slices stay on the device until the update */
    if (plan->settings.sharding.stage < 2 || plan->layout.is_deterministic ||
        plan->num_replicas > 1 || sherdi_plan_accumulates_on_device(plan)) {
        return SHERD_OK;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block   *block   = &plan->layout.blocks[b];
        sherdi_segment *segment = &plan->layout.segments[block->segment];

        segment->is_staged |= block->space != SHERDI_SPACE_DEVICE;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block         *block   = &plan->layout.blocks[b];
        const sherdi_segment *segment = sherdi_block_segment(plan, block);
        size_t                elem    = sherdi_grad_bytes(plan, segment);
        size_t                len     = sherdi_round_up(block->elems * elem, SHERD_ALIGN_BYTES);

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
            block->grad_offset = plan->rings[SHERDI_RING_GRADS].num_extents;
            SHERDI_TRY(ring_extend(plan, &plan->rings[SHERDI_RING_GRADS], len));
        }
    }
    return SHERD_OK;
}

static sherd_status pieces_make(sherdi_plan *plan)
{
    size_t most = plan->layout.block_elems;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        sherdi_segment *segment = &plan->layout.segments[s];
        size_t          elem    = sherdi_compute_bytes(segment);

        segment->first_piece = plan->offload->num_pieces;
        if (segment->param_space != SHERDI_SPACE_STORAGE) {
            continue;
        }
        for (size_t at = 0; at < segment->slice_elems; at += most) {
            sherdi_piece piece = {.segment      = (int)s,
                                  .offset_elems = at,
                                  .elems        = sherdi_min_size(most, segment->slice_elems - at)};

            SHERDI_TRY(SHERDI_GROW(plan->mem, plan->offload->pieces, plan->offload->num_pieces,
                                   plan->offload->cap_pieces));
            SHERDI_TRY(ring_extend(plan, &plan->rings[SHERDI_RING_PARAMS],
                                   sherdi_round_up(piece.elems * elem, SHERD_ALIGN_BYTES)));
            plan->offload->pieces[plan->offload->num_pieces++] = piece;
        }
        segment->num_pieces = plan->offload->num_pieces - segment->first_piece;
    }
    return SHERD_OK;
}

/* Marks the pieces in which elements of the parameter lie. */
static void pieces_of_param_mark(sherdi_plan *plan, size_t param, size_t elems)
{
    const sherdi_segment *segment = &plan->layout.segments[plan->layout.params[param].segment];
    size_t                before  = segment->slice_first;
    size_t                begin;
    size_t                end;
    size_t                grain;

    sherdi_plan_held(plan, param, elems, &begin, &end);
    if (begin == end || segment->num_pieces == 0) {
        return;
    }
    grain = plan->offload->pieces[segment->first_piece].elems; /* of all pieces but the last */
    begin = begin + plan->layout.params[param].offset_elems - before;
    end   = end + plan->layout.params[param].offset_elems - before;
    for (size_t i = begin / grain; i <= (end - 1) / grain; i++) {
        plan->offload->pieces[segment->first_piece + i].is_never_written = 0;
    }
}

/* Marks the pieces that are never written. Every step writes trained pieces, padding included; a
 * frozen piece is written once, if a parameter lies in it. */
static void pieces_mark(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t p = 0; p < plan->offload->num_pieces; p++) {
        plan->offload->pieces[p].is_never_written =
            plan->layout.segments[plan->offload->pieces[p].segment].kind == SHERDI_SEGMENT_FROZEN;
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
            plan->offload->grad_staging_bytes = sherdi_max_size(
                plan->offload->grad_staging_bytes,
                sherdi_round_up(segment->slice_elems * sherd_dtype_bytes(segment->types.comm),
                                SHERD_ALIGN_BYTES));
        }
    }
    plan->offload->num_grad_stagings =
        plan->machine.has_device || (plan->settings.sharding.overlap_comm && plan->world_size > 1)
            ? 2
            : 1;
    plan->packing.buffers[SHERDI_BUFFER_GRAD_STAGING].bytes =
        plan->offload->grad_staging_bytes * (size_t)plan->offload->num_grad_stagings;
}

/* Gives the staging buffer room for new values of a block, on their way off the device. */
static void publish_size(sherdi_plan *plan)
{
    size_t *bytes = &plan->packing.publish_bytes;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block   *block   = &plan->layout.blocks[b];
        const sherdi_segment *segment = sherdi_block_segment(plan, block);

        if (block->space == SHERDI_SPACE_DEVICE && segment->param_space != SHERDI_SPACE_DEVICE) {
            *bytes = sherdi_max_size(*bytes, block->elems * sherdi_compute_bytes(segment));
        }
    }
}

/* The bytes of an offloaded block's gradient that pass through the bounce buffer. */
static size_t bounce_grad_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    const sherdi_types *types = &sherdi_block_segment(plan, block)->types;

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
        const sherdi_segment *segment = sherdi_block_segment(plan, block);

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
    plan->offload->bounce_param_offset = sherdi_round_up(grads, SHERD_ALIGN_BYTES);
    plan->offload->bounce_direction_offset =
        plan->offload->bounce_param_offset + sherdi_round_up(params, SHERD_ALIGN_BYTES);
    plan->offload->bounce_bytes =
        plan->offload->bounce_direction_offset + sherdi_round_up(directions, SHERD_ALIGN_BYTES);
    plan->offload->num_bounces = plan->machine.has_device ? SHERDI_MOST_BOUNCES : 1;
    plan->packing.buffers[SHERDI_BUFFER_BOUNCE].bytes =
        plan->offload->bounce_bytes * (size_t)plan->offload->num_bounces;
}

static void ring_size(sherdi_plan *plan, sherdi_ring which, sherdi_buffer_id id, size_t longest,
                      const sherdi_offload_settings *settings)
{
    sherdi_plan_ring *ring = &plan->rings[which];

    ring->tier       = settings->tier;
    ring->slot_bytes = longest;
    /* out of each slot and into it */
    ring->transfers = 2 * sherdi_min_size(ring->num_extents, (size_t)settings->buffer_count);
    plan->packing.buffers[id].bytes = longest * ring->transfers / 2;
}

/* Marks the extents on NVMe that the first of two sweeps needs, if not all segments have two
 * sweeps. */
static sherd_status measured_mark(sherdi_plan *plan)
{
    size_t states = plan->rings[SHERDI_RING_STATE].num_extents;
    int    is_all = 1;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        is_all = is_all && (plan->layout.segments[s].optimizer == NULL ||
                            sherdi_segment_is_measured(&plan->layout.segments[s]) ==
                                sherdi_plan_is_measured(plan));
    }
    if (is_all || states == 0) {
        return SHERD_OK;
    }
    plan->offload->measured_state = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, states, 1);
    plan->offload->measured_grads = sherdi_alloc_array(
        plan->mem, SHERDI_MEM_CONTROL, plan->rings[SHERDI_RING_GRADS].num_extents + 1, 1);
    if (plan->offload->measured_state == NULL || plan->offload->measured_grads == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];
        int is_measured           = sherdi_segment_is_measured(sherdi_block_segment(plan, block));

        if (is_measured && block->space == SHERDI_SPACE_STORAGE) {
            plan->offload->measured_state[block->extent] = 1;
        }
        if (is_measured && block->grad_space == SHERDI_SPACE_STORAGE) {
            plan->offload->measured_grads[block->grad_offset] = 1;
        }
    }
    return SHERD_OK;
}

/* Names the buffers between spaces. */
static void buffers_name(sherdi_plan *plan)
{
    static const struct {
        sherdi_buffer_id   id;
        const char        *name;
        sherdi_mem_purpose purpose;
    } NAMES[] = {
        {SHERDI_BUFFER_HOST_PARAMS, "offloaded parameters", SHERDI_MEM_HOST_PARAMS},
        {SHERDI_BUFFER_HOST_GRADS, "offloaded gradients", SHERDI_MEM_HOST_GRADS},
        {SHERDI_BUFFER_HOST_STATE, "offloaded optimizer state", SHERDI_MEM_HOST_STATE},
        {SHERDI_BUFFER_BOUNCE, "bounce buffers", SHERDI_MEM_HOST_STAGING},
        {SHERDI_BUFFER_STATE_RING, "ring of state", SHERDI_MEM_HOST_STAGING},
        {SHERDI_BUFFER_PARAM_RING, "ring of parameters", SHERDI_MEM_HOST_STAGING},
        {SHERDI_BUFFER_GRAD_RING, "ring of gradients", SHERDI_MEM_HOST_STAGING},
    };

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        sherdi_plan_buffer_name(plan, NAMES[i].id, NAMES[i].name, NAMES[i].purpose, 1);
    }
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_GRAD_STAGING, "staging of gradients",
                            SHERDI_MEM_STAGING, 0);
}

/* Which host buffers are locked for copies from and to the device, or for transfers. */
static void buffers_pin(sherdi_plan *plan)
{
    sherdi_plan_buffer             *buffers = plan->packing.buffers;
    const sherdi_offloads_settings *offload = &plan->settings.offload;

    /* offloaded slices come up into the gathered unit itself, where peers read them */
    buffers[SHERDI_BUFFER_GATHER].is_shared =
        plan->settings.sharding.stage == 3 && offload->params.space != SHERDI_SPACE_DEVICE;
    buffers[SHERDI_BUFFER_STATE_RING].is_pinned = offload->state.pin_memory;
    buffers[SHERDI_BUFFER_GRAD_RING].is_pinned  = offload->state.pin_memory;
    buffers[SHERDI_BUFFER_PARAM_RING].is_pinned = offload->params.pin_memory;
    if (plan->machine.has_device) {
        buffers[SHERDI_BUFFER_HOST_GRADS].is_pinned  = offload->state.pin_memory;
        buffers[SHERDI_BUFFER_BOUNCE].is_pinned      = 1;
        buffers[SHERDI_BUFFER_HOST_PARAMS].is_pinned = offload->params.pin_memory;
    }
}

static void rings_size(sherdi_plan *plan)
{
    const sherdi_offloads_settings *settings = &plan->settings.offload;

    ring_size(plan, SHERDI_RING_STATE, SHERDI_BUFFER_STATE_RING, longest_state(plan),
              &settings->state);
    plan->rings[SHERDI_RING_STATE].transfers *= plan->offload->num_tails == 0 ? 1 : 2;
    ring_size(plan, SHERDI_RING_PARAMS, SHERDI_BUFFER_PARAM_RING,
              extents_longest(&plan->rings[SHERDI_RING_PARAMS]), &settings->params);
    ring_size(plan, SHERDI_RING_GRADS, SHERDI_BUFFER_GRAD_RING,
              extents_longest(&plan->rings[SHERDI_RING_GRADS]), &settings->state);
}

static void files_count(sherdi_plan *plan)
{
    size_t stored = sherdi_plan_stored(plan);

    for (int ring = SHERDI_RING_STATE; ring <= SHERDI_RING_PARAMS; ring++) {
        plan->has_files |= plan->rings[ring].num_extents > 0 && plan->rings[ring].tier->has_files;
    }
    plan->has_generations = has_generations(plan);
    if (plan->has_generations) {
        plan->index_bytes = plan->settings.offload.state.tier->index_bytes(stored);
    }
    for (int ring = SHERDI_RING_STATE; ring <= SHERDI_RING_GRADS; ring++) {
        plan->nvme_bytes[ring] =
            extents_end(plan->rings[ring].extents,
                        ring == SHERDI_RING_STATE ? stored : plan->rings[ring].num_extents);
    }
    /* a state of which only a part is on storage cannot be resumed, so it needs no second set */
    plan->nvme_bytes[SHERDI_RING_STATE] *= plan->has_generations ? 2 : 1;
}

static sherd_status blocks_place(sherdi_plan *plan, const sherdi_model *model)
{
    plan->offload = sherdi_alloc(plan->mem, SHERDI_MEM_CONTROL, sizeof(*plan->offload));
    if (plan->offload == NULL) {
        return SHERD_E_NOMEM;
    }
    buffers_name(plan);
    buffers_pin(plan);
    state_spaces_choose(plan);
    SHERDI_TRY(states_lay_out(plan));
    SHERDI_TRY(values_lay_out(plan));
    SHERDI_TRY(gradients_lay_out(plan));
    SHERDI_TRY(pieces_make(plan));
    pieces_mark(plan, model);
    SHERDI_TRY(measured_mark(plan));
    grad_staging_size(plan);
    publish_size(plan);
    bounce_size(plan);
    rings_size(plan);
    files_count(plan);
    return SHERD_OK;
}

/* ---------------------------------------------------------------- fetches -- */

/* Lists the pieces of the gathers of a sequence in their order, to *out if it is not NULL. Returns
 * their number. */
static size_t live_ranges_pieces(const sherdi_plan *plan, sherdi_sequence *sequence, uint32_t *out)
{
    size_t count = 0;

    for (size_t i = 0; i < sequence->live_ranges.count; i++) {
        const sherdi_plan_unit *unit = &plan->layout.units[sequence->live_ranges.items[i].unit];

        sequence->live_ranges.items[i].first_fetch = count;

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

/* Makes the order in which pieces of parameters are fetched, as the schedule gathers units. */
static sherd_status fetches_make(sherdi_plan *plan, const sherdi_model *model)
{
    sherdi_plan_offload *offload = plan->offload;

    (void)model;
    offload->num_train_fetches = live_ranges_pieces(plan, &plan->schedule.train, NULL);
    offload->num_eval_fetches  = live_ranges_pieces(plan, &plan->schedule.eval, NULL);
    offload->fetches           = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL,
                                                    offload->num_train_fetches + offload->num_eval_fetches,
                                                    sizeof(*offload->fetches));
    if (offload->fetches == NULL) {
        return SHERD_E_NOMEM;
    }
    (void)live_ranges_pieces(plan, &plan->schedule.train, offload->fetches);
    (void)live_ranges_pieces(plan, &plan->schedule.eval,
                             offload->fetches + offload->num_train_fetches);
    return SHERD_OK;
}

static void offload_destroy(sherdi_plan *plan)
{
    if (plan->offload != NULL) {
        sherdi_free(plan->offload->measured_state);
        sherdi_free(plan->offload->measured_grads);
        sherdi_free(plan->offload->pieces);
        sherdi_free(plan->offload->fetches);
        sherdi_free(plan->offload);
    }
}

const sherdi_module sherdi_module_offload = {.plan_destroyed = offload_destroy,

                                             .segments_made = param_spaces_choose,
                                             .blocks_made   = blocks_place,
                                             .lay_out       = fetches_make};
