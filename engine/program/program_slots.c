/* Values that pass through the slots of rings: the state and the parameters of a rank that rest on
 * storage (program_values.c).
 *
 * Parameters come in any order. An extent on a drive stays in its slot until another extent needs
 * the slot. A changed extent is written to the drive then, or when all its parameters have their
 * first values, or at the end. After its last write the slot still holds the extent, so that it can
 * be written again if the write failed. */
#include "engine/program/program_rings.h"
#include "engine/program/program_values.h"

#include "base/assert.h"
#include "base/checked.h"

/* Goes on to the piece of the next elements of the range, which *part becomes; see
 * sherdi_values_next_block. Returns its end; 0: there are no more. */
static size_t next_piece(const sherdi_value_range *f, sherdi_value_range *part, size_t *piece)
{
    const sherdi_segment *segment = f->segment;
    size_t                first   = segment->slice_first;
    size_t                end     = sherdi_min_size(f->end, first + segment->slice_elems);
    size_t                most;
    size_t                border;

    part->begin = sherdi_max_size(part->end, first);
    if (segment->num_pieces == 0 || part->begin >= end) {
        return 0;
    }
    most      = f->program->plan->offload->pieces[segment->first_piece].elems;
    *piece    = segment->first_piece + (part->begin - first) / most;
    border    = sherdi_min_size(first + segment->slice_elems,
                                first + (*piece - segment->first_piece + 1) * most);
    part->end = sherdi_min_size(end, border);
    return border;
}

/* ---------------------------------------------------------------- counting -- */

static void left_count(const sherdi_program *program, size_t param)
{
    const sherdi_plan  *plan  = program->plan;
    size_t              start = plan->layout.params[param].offset_elems;
    sherdi_value_range  f     = {.program = program, .segment = sherdi_param_segment(plan, param)};
    sherdi_value_range  part;
    const sherdi_block *block;
    size_t              piece;

    sherdi_plan_held(plan, param, program->model->params[param].elems, &f.begin, &f.end);
    f.begin += start;
    f.end += start;
    for (part.end = f.begin; (block = sherdi_values_next_block(&f, &part)) != NULL;) {
        if (block->space == SHERDI_SPACE_STORAGE) {
            program->progress->rings[SHERDI_RING_STATE].extents[block->extent].left++;
        }
    }
    for (part.end = f.begin; next_piece(&f, &part, &piece) > 0;) {
        program->progress->rings[SHERDI_RING_PARAMS].extents[piece].left++;
    }
}

void sherdi_slots_count(sherdi_progress *progress, const sherdi_plan *plan,
                        const sherdi_model *model)
{
    sherdi_program program = {.plan = plan, .model = model, .progress = progress};

    for (size_t p = 0; p < plan->layout.num_params; p++) {
        left_count(&program, p);
    }
}

/* -------------------------------------------------------------------- slots -- */

/* Records that all of an extent is in a slot. */
static void slot_hold(const sherdi_program *program, sherdi_ring ring, sherdi_slot *slot,
                      size_t extent)
{
    slot->head = extent;
    slot->tail = sherdi_ring_tail(program->plan, ring, extent);
}

static sherd_status slot_write(const sherdi_program *program, sherdi_ring ring, size_t number)
{
    sherdi_slot *slot   = sherdi_progress_slot(program->progress, ring, number);
    size_t       extent = slot->head;
    sherd_status status = sherdi_program_write(program, ring, number, extent, -1);

    slot_hold(program, ring, slot, extent);
    slot->is_changed                                        = status != SHERD_OK;
    program->progress->rings[ring].extents[extent].is_spare = 1;
    return status;
}

/* Zeroes a slot for an extent. It covers all of the extent that the slot holds, also beyond the new
 * one, and so follows all writes from the slot: if one of these failed, this fails too, and the
 * slot still holds its extent. */
static sherd_status slot_clear(const sherdi_value_range *f, sherdi_ring ring, size_t slot,
                               size_t extent)
{
    const sherdi_plan *plan = f->program->plan;
    size_t             held = sherdi_progress_slot(f->program->progress, ring, slot)->head;
    size_t left = held == SHERDI_NO_EXTENT ? 0 : sherdi_ring_whole(plan, ring, slot, held).bytes;
    sherdi_range all = sherdi_ring_whole(plan, ring, slot, extent);

    if (!f->is_put && left == 0) {
        return SHERD_OK;
    }
    all.bytes = sherdi_max_size(all.bytes, left);
    return sherdi_program_make(f->program, sherdi_value_op(f, SHERDI_OP_ZERO, SHERDI_LANE_HOST),
                               all);
}

/* Reads an extent into a slot. It is read if it is asked for or has some of its values already;
 * otherwise it begins with zeros. */
static sherd_status slot_begin(const sherdi_value_range *f, sherdi_ring ring, size_t slot,
                               size_t extent)
{
    sherdi_progress *progress = f->program->progress;

    SHERDI_TRY(slot_clear(f, ring, slot, extent));
    sherdi_progress_release(progress, ring, slot);
    return f->is_put && !progress->rings[ring].extents[extent].is_begun
               ? SHERD_OK
               : sherdi_program_read_whole(f->program, ring, slot, extent, f->segment->unit);
}

/* Chooses a slot whose extent is on the drive already; otherwise the slot that is freed next. */
static size_t slot_choose(sherdi_ring_progress *ring)
{
    size_t i = 0;

    while (i < ring->num_slots && ring->slots[(ring->next + i) % ring->num_slots].is_changed) {
        i++;
    }
    ring->next = (ring->next + i) % ring->num_slots + 1;
    return ring->next - 1;
}

/* Invariant: no two slots of a ring hold the same extent. So the first slot that holds an extent
 * has all of its values so far. */
static int are_held_once(const sherdi_ring_progress *ring)
{
    for (size_t i = 0; i < ring->num_slots; i++) {
        for (size_t j = 0; j < i; j++) {
            if (ring->slots[i].head == ring->slots[j].head &&
                ring->slots[i].head != SHERDI_NO_EXTENT) {
                return 0;
            }
        }
    }
    return 1;
}

/* Returns a slot with the extent in it. */
static sherd_status slot_take(const sherdi_value_range *f, sherdi_ring which, size_t extent,
                              size_t *out)
{
    sherdi_ring_progress *ring = &f->program->progress->rings[which];

    SHERDI_SLOW_ASSERT(are_held_once(ring));
    for (*out = 0; *out < ring->num_slots; ++*out) {
        if (ring->slots[*out].head == extent) { /* an update may have read it without its tail */
            return sherdi_program_read_whole(f->program, which, *out, extent, f->segment->unit);
        }
    }
    *out = slot_choose(ring);
    if (ring->slots[*out].is_changed) {
        SHERDI_TRY(slot_write(f->program, which, *out));
    }
    return slot_begin(f, which, *out, extent);
}

/* Whether the rest of a block, or piece, which ends at `border`, has nothing of the parameter. */
static int are_all(const sherdi_value_range *f, size_t border)
{
    return f->end == f->param_end || f->end == border;
}

/* Records that some of an extent's values have come; `is_last`: the last ones of the parameter in
 * it. */
static sherd_status slot_give(const sherdi_value_range *f, sherdi_ring which, size_t extent,
                              size_t slot, int is_last)
{
    sherdi_ring_progress *ring   = &f->program->progress->rings[which];
    sherdi_fill_extent   *filled = &ring->extents[extent];

    if (!f->is_put) {
        return SHERD_OK; /* the next caller may need it too */
    }
    slot_hold(f->program, which, &ring->slots[slot], extent);
    ring->slots[slot].is_changed = 1;
    filled->is_begun             = 1;
    if (!is_last || filled->left == 0) {
        return SHERD_OK;
    }
    filled->left--;
    return filled->left == 0 ? slot_write(f->program, which, slot) : SHERD_OK;
}

/* ------------------------------------------------------------------- values -- */

/* Returns where the parameter's half of a block's masters is; `state` is where the block's state is
 * now. */
static sherdi_range half_at(const sherdi_value_range *f, const sherdi_block *block,
                            sherdi_range state)
{
    sherdi_range values;

    if (!sherdi_block_keeps_values(block)) {
        return sherdi_program_param_at(f->program->plan, f->segment, block);
    }
    values        = sherdi_state_values_at(f->program->plan, block);
    values.offset = state.offset - block->state_offset + block->value_offset;
    return values;
}

sherd_status sherdi_slots_block_move(const sherdi_value_range *f, const sherdi_block *block)
{
    const sherdi_plan *plan   = f->program->plan;
    sherdi_range       at     = sherdi_state_at(plan, block);
    size_t             border = f->segment->own_first + block->offset_elems + block->elems;
    size_t             slot;

    SHERDI_TRY(slot_take(f, SHERDI_RING_STATE, block->extent, &slot));
    at = sherdi_ring_slot(plan, SHERDI_RING_STATE, slot, at.bytes);
    at.offset += block->state_offset;
    SHERDI_TRY(sherdi_values_block_move(f, block, at, half_at(f, block, at)));
    return slot_give(f, SHERDI_RING_STATE, block->extent, slot, f->is_last && are_all(f, border));
}

/* Moves the parameter between the fill buffer and pieces that rest on a drive. */
static sherd_status pieces_move(const sherdi_value_range *f)
{
    const sherdi_plan *plan  = f->program->plan;
    sherd_dtype        dtype = f->segment->types.compute;
    sherdi_value_range part  = *f;
    size_t             piece;
    size_t             border;

    for (part.end = f->begin; (border = next_piece(f, &part, &piece)) > 0;) {
        size_t       most = plan->offload->pieces[f->segment->first_piece].elems;
        sherdi_range at;
        size_t       slot;

        SHERDI_TRY(slot_take(f, SHERDI_RING_PARAMS, piece, &slot));
        at = sherdi_ring_slot(plan, SHERDI_RING_PARAMS, slot, 0);
        at.offset += (part.begin - f->segment->slice_first) % most * sherd_dtype_bytes(dtype);
        SHERDI_TRY(sherdi_values_cast(&part, SHERDI_SPACE_STORAGE, dtype, at));
        SHERDI_TRY(slot_give(f, SHERDI_RING_PARAMS, piece, slot, are_all(&part, border)));
    }
    return SHERD_OK;
}

sherd_status sherdi_slots_param_move(const sherdi_value_range *f)
{
    const sherdi_segment *segment = f->segment;
    size_t                first   = segment->slice_first;

    if (segment->param_space == SHERDI_SPACE_STORAGE) {
        return pieces_move(f);
    }
    return sherdi_values_cast(
        f, segment->param_space, segment->types.compute,
        sherdi_range_of(SHERDI_BUFFER_HOST_PARAMS,
                        segment->param_offset + (f->begin - first) * sherdi_compute_bytes(segment),
                        0));
}

static sherd_status slots_write(const sherdi_program *program)
{
    for (int r = 0; r < SHERDI_RINGS; r++) {
        const sherdi_ring_progress *ring = &program->progress->rings[r];

        for (size_t slot = 0; slot < ring->num_slots; slot++) {
            if (ring->slots[slot].is_changed) {
                SHERDI_TRY(slot_write(program, (sherdi_ring)r, slot));
            }
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_slots_fill_end(const sherdi_program *program)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status status = slots_write(program);

    program->progress->flags = before;
    return status;
}
