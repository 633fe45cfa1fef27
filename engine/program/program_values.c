/* Values of a parameter and of its state, any range of them, in fp32: values of a caller are
 * written to the space where they rest, and values for a caller are read from it. Written master
 * weights are also written, in the compute type, to the space where the parameter rests. First
 * values are a whole parameter.
 *
 * A range passes through the fill buffer, a portion at a time. With several parts each portion lies
 * in one block, and all its parts are moved before the next portion comes: so the block's extent is
 * needed only once.
 *
 * Parameters come in any order. An extent on a drive stays in its slot until another extent needs
 * the slot. A changed extent is written to the drive then, or when all its parameters have their
 * first values, or at the end. After its last write the slot still holds the extent, so that it can
 * be written again if the write failed. */
#include "engine/program/program.h"

#include "base/assert.h"
#include "base/checked.h"

#include <stddef.h>

/* -------------------------------------------------------------------- cuts -- */

/* A walk over elements of a segment's whole, cut at its blocks or pieces. All of these but the last
 * have `grain` elements. */
typedef struct cuts {
    size_t first, limit, grain; /* begin and end of all blocks; elements of one */
    size_t last;                /* where the walk ends */
    size_t index, border;       /* the block, and its end */
    size_t begin, end;          /* the elements in it */
} cuts;

static cuts cuts_of(size_t first, size_t count, size_t grain, size_t begin, size_t end)
{
    return (cuts){.first = first,
                  .limit = first + count,
                  .grain = grain,
                  .last  = sherdi_min_size(end, first + count),
                  .end   = sherdi_max_size(begin, first)};
}

static cuts blocks_of(const sherdi_plan *plan, const sherdi_segment *segment, size_t begin,
                      size_t end)
{
    size_t first;
    size_t owned = sherdi_plan_owned(plan, segment, &first);

    if (segment->num_blocks == 0) {
        return (cuts){0};
    }
    return cuts_of(first, owned, plan->layout.blocks[segment->first_block].elems, begin, end);
}

static cuts pieces_of(const sherdi_plan *plan, const sherdi_segment *segment, size_t begin,
                      size_t end)
{
    if (segment->num_pieces == 0) {
        return (cuts){0};
    }
    return cuts_of((size_t)plan->rank * segment->slice_elems, segment->slice_elems,
                   plan->offload.pieces[segment->first_piece].elems, begin, end);
}

static int cuts_next(cuts *c)
{
    c->begin = c->end;
    if (c->begin >= c->last) {
        return 0;
    }
    c->index  = (c->begin - c->first) / c->grain;
    c->border = sherdi_min_size(c->limit, c->first + (c->index + 1) * c->grain);
    c->end    = sherdi_min_size(c->last, c->border);
    return 1;
}

/* ---------------------------------------------------------------- counting -- */

static void left_count(sherdi_progress *progress, const sherdi_plan *plan, size_t param,
                       size_t elems)
{
    const sherdi_segment *segment = &plan->layout.segments[plan->layout.params[param].segment];
    size_t                start   = plan->layout.params[param].offset_elems;
    size_t                begin;
    size_t                end;
    cuts                  c;

    sherdi_plan_held(plan, param, elems, &begin, &end);
    for (c = blocks_of(plan, segment, start + begin, start + end); cuts_next(&c);) {
        const sherdi_block *block = &plan->layout.blocks[segment->first_block + c.index];

        if (block->space == SHERDI_SPACE_STORAGE) {
            progress->rings[SHERDI_RING_STATE].extents[block->extent].left++;
        }
    }
    for (c = pieces_of(plan, segment, start + begin, start + end); cuts_next(&c);) {
        progress->rings[SHERDI_RING_PARAMS].extents[segment->first_piece + c.index].left++;
    }
}

void sherdi_program_fill_count(sherdi_progress *progress, const sherdi_plan *plan,
                               const sherdi_model *model)
{
    for (size_t p = 0; p < plan->layout.num_params; p++) {
        left_count(progress, plan, p, model->params[p].elems);
    }
}

void sherdi_progress_complete(sherdi_progress *progress, sherdi_ring ring)
{
    for (size_t e = 0; e < progress->rings[ring].num_extents; e++) {
        progress->rings[ring].extents[e].left     = 0;
        progress->rings[ring].extents[e].is_begun = 1;
    }
}

/* --------------------------------------------------------------- ranges -- */

/* Elements of one part of a parameter that are moved together. */
typedef struct value_range {
    const sherdi_program *program;
    const sherdi_segment *segment;
    size_t                param;
    int                   part;
    int                   is_last;    /* of the parts that are put */
    int                   is_put;     /* 1: values are written; 0: read */
    size_t                begin, end; /* in the whole segment: the range in the fill buffer */
    size_t                param_end;  /* end of this rank's part of the parameter */
} value_range;

static sherdi_op range_op(const value_range *s, sherdi_op_kind kind, sherdi_lane_id lane)
{
    sherdi_op op = sherdi_op_of_segment(s->program->plan, kind, lane, s->segment);

    op.param = (int)s->param;
    op.part  = s->part;
    op.space = SHERDI_SPACE_HOST;
    return op;
}

/* The part of the range that lies in [first, first + count). */
static value_range range_within(const value_range *s, size_t first, size_t count)
{
    value_range within = *s;

    within.begin = sherdi_max_size(s->begin, first);
    within.end   = sherdi_max_size(within.begin, sherdi_min_size(s->end, first + count));
    return within;
}

/* The part that lies in the elements that this rank updates. */
static value_range range_owned(const value_range *s)
{
    size_t first;
    size_t owned = sherdi_plan_owned(s->program->plan, s->segment, &first);

    return range_within(s, first, owned);
}

/* The part that lies in this rank's slice. */
static value_range range_slice(const value_range *s)
{
    size_t slice = s->segment->slice_elems;

    return range_within(s, (size_t)s->program->plan->rank * slice, slice);
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
static sherd_status slot_clear(const value_range *f, sherdi_ring ring, size_t slot, size_t extent)
{
    const sherdi_plan *plan = f->program->plan;
    size_t             held = sherdi_progress_slot(f->program->progress, ring, slot)->head;
    size_t left = held == SHERDI_NO_EXTENT ? 0 : sherdi_ring_whole(plan, ring, slot, held).bytes;
    sherdi_range all  = sherdi_ring_whole(plan, ring, slot, extent);
    sherdi_op    zero = range_op(f, SHERDI_OP_ZERO, SHERDI_LANE_HOST);

    if (!f->is_put && left == 0) {
        return SHERD_OK;
    }
    all.bytes = sherdi_max_size(all.bytes, left);
    sherdi_op_use(&zero, SHERDI_USE_DST, SHERDI_WRITES, all);
    return sherdi_program_emit(f->program, &zero);
}

/* Reads an extent into a slot. It is read if it is asked for or has some of its values already;
 * otherwise it begins with zeros. */
static sherd_status slot_begin(const value_range *f, sherdi_ring ring, size_t slot, size_t extent)
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
static sherd_status slot_take(const value_range *f, sherdi_ring which, size_t extent, size_t *out)
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

/* Records that some of an extent's values have come; `is_last`: the last ones of the parameter in
 * it. */
static sherd_status slot_give(const value_range *f, sherdi_ring which, size_t extent, size_t slot,
                              int is_last)
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

/* The number in the model of the element at `at` of the segment's whole. */
static uint64_t element_index(const value_range *f, size_t at)
{
    return f->program->model->params[f->param].first_index +
           (at - f->program->plan->layout.params[f->param].offset_elems);
}

static sherdi_range values_at(const value_range *f, size_t begin, size_t end)
{
    return sherdi_range_of(SHERDI_BUFFER_FILL, (begin - f->begin) * sizeof(float),
                           (end - begin) * sizeof(float));
}

static int space_is_apart(const value_range *f, sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE && f->program->plan->machine.has_device;
}

/* The lane whose copies and kernels reach both the space and the fill buffer. */
static sherdi_lane_id lane_of_space(const value_range *f, sherdi_space space)
{
    return space_is_apart(f, space) ? SHERDI_LANE_COMPUTE : SHERDI_LANE_HOST;
}

/* Copies to memory of a space, or from it. */
static sherd_status bytes_move(const value_range *f, sherdi_space space, sherdi_range at,
                               sherdi_range buffer)
{
    sherdi_op op = range_op(f, SHERDI_OP_COPY, lane_of_space(f, space));

    at.bytes = buffer.bytes;
    return f->is_put ? sherdi_program_move(f->program, op, at, buffer)
                     : sherdi_program_move(f->program, op, buffer, at);
}

/* The same with a cast. The host's kernels reach everything except a device's memory. */
static sherd_status values_cast(const value_range *f, size_t begin, size_t end, sherdi_space space,
                                sherd_dtype dtype, sherdi_range at)
{
    const sherdi_plan *plan     = f->program->plan;
    int                is_apart = space_is_apart(f, space);
    sherdi_op          op       = range_op(f, SHERDI_OP_CAST, SHERDI_LANE_HOST);
    sherdi_range       values   = values_at(f, begin, end);
    sherdi_range       near     = at;

    near.bytes = (end - begin) * sherd_dtype_bytes(dtype);
    if (is_apart) {
        near.where  = SHERDI_BUFFER_FILL;
        near.offset = plan->packing.fill_cast_offset;
    }
    op.from  = f->is_put ? SHERD_F32 : dtype;
    op.to    = f->is_put ? dtype : SHERD_F32;
    op.elems = end - begin;
    if (is_apart && !f->is_put) {
        SHERDI_TRY(bytes_move(f, space, at, near));
    }
    SHERDI_TRY(f->is_put ? sherdi_program_move(f->program, op, near, values)
                         : sherdi_program_move(f->program, op, values, near));
    return is_apart && f->is_put ? bytes_move(f, space, at, near) : SHERD_OK;
}

/* Whether this rank's share of the fingerprint is computed while weights are put. */
static int is_counted(const value_range *f)
{
    return f->segment->kind == SHERDI_SEGMENT_FROZEN ||
           sherdi_plan_has_generations(f->program->plan);
}

/* Adds the values to this rank's share of the fingerprint: of a frozen parameter those in its
 * slice, else those that it updates. */
static sherd_status values_count(const value_range *f)
{
    const sherdi_plan *plan = f->program->plan;
    value_range own = f->segment->kind == SHERDI_SEGMENT_FROZEN ? range_slice(f) : range_owned(f);
    sherdi_op   op  = range_op(f, SHERDI_OP_FINGERPRINT, SHERDI_LANE_HOST);

    if (own.begin >= own.end) {
        return SHERD_OK;
    }
    op.elems = own.end - own.begin;
    op.index = element_index(f, own.begin);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, values_at(f, own.begin, own.end));
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                  sherdi_fingerprint_at(plan, SHERDI_SPACE_HOST));
    return sherdi_program_emit(f->program, &op);
}

/* ------------------------------------------------------------------- spaces -- */

/* Whether the rest of the block has nothing of the parameter. */
static int is_all(const value_range *f, const cuts *c)
{
    return f->is_last && (c->end == f->param_end || c->end == c->border);
}

/* Returns where the parameter's half of a block's masters is; `state` is where the block's state is
 * now. */
static sherdi_range half_at(const value_range *f, const sherdi_block *block, sherdi_range state)
{
    sherdi_range values;

    if (!sherdi_block_keeps_values(block)) {
        return sherdi_program_param_at(f->program->plan, f->segment, block);
    }
    values        = sherdi_state_values_at(f->program->plan, block);
    values.offset = state.offset - block->state_offset + block->value_offset;
    return values;
}

/* Moves a part that is not stored as fp32. Putting a split master sets the parameter too. */
static sherd_status encoded_move(const value_range *f, const sherdi_block *block, const cuts *c,
                                 sherdi_range state)
{
    sherdi_op     op     = range_op(f, f->is_put ? SHERDI_OP_ENCODE : SHERDI_OP_DECODE,
                                    lane_of_space(f, block->space));
    sherdi_access access = f->is_put ? SHERDI_ADDS : SHERDI_READS;

    op.block = block;
    op.elems = c->end - c->begin;
    op.index = (c->begin - c->first) % c->grain;
    sherdi_op_use(&op, SHERDI_USE_STATE, access, state);
    if (f->part == 0 && sherdi_segment_is_beside(f->segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM, access, half_at(f, block, state));
    }
    sherdi_op_use(&op, f->is_put ? SHERDI_USE_SRC : SHERDI_USE_DST,
                  f->is_put ? SHERDI_READS : SHERDI_WRITES, values_at(f, c->begin, c->end));
    return sherdi_program_emit(f->program, &op);
}

static sherd_status block_move(const value_range *f, const sherdi_block *block, const cuts *c,
                               sherdi_range state)
{
    size_t      first = (c->begin - c->first) % c->grain;
    value_range rests = *f;

    if (!sherdi_segment_part_is_encoded(f->segment, f->part)) {
        state.offset += sherdi_plan_part_offset(f->program->plan, block, f->part, first);
        return bytes_move(f, block->space, state, values_at(f, c->begin, c->end));
    }
    SHERDI_TRY(encoded_move(f, block, c, state));
    if (!f->is_put || f->part != 0 || !is_counted(f)) {
        return SHERD_OK;
    }
    rests.is_put = 0; /* an encoding may have rounded the values, and what rests is what counts */
    return encoded_move(&rests, block, c, state);
}

/* Moves a part of the state; of master weights those that are separate from the parameter. */
static sherd_status state_move(const value_range *f)
{
    const sherdi_plan *plan = f->program->plan;

    for (cuts c = blocks_of(plan, f->segment, f->begin, f->end); cuts_next(&c);) {
        const sherdi_block *block = &plan->layout.blocks[f->segment->first_block + c.index];
        int                 rests = block->space == SHERDI_SPACE_STORAGE;
        sherdi_range        at    = sherdi_state_at(plan, block);
        size_t              slot  = 0;

        if (rests) {
            SHERDI_TRY(slot_take(f, SHERDI_RING_STATE, block->extent, &slot));
            at = sherdi_ring_slot(plan, SHERDI_RING_STATE, slot, at.bytes);
            at.offset += block->state_offset;
        }
        SHERDI_TRY(block_move(f, block, &c, at));
        if (rests) {
            SHERDI_TRY(slot_give(f, SHERDI_RING_STATE, block->extent, slot, is_all(f, &c)));
        }
    }
    return SHERD_OK;
}

/* Moves the parameter between the fill buffer and pieces that rest on a drive. */
static sherd_status pieces_move(const value_range *f)
{
    const sherdi_plan *plan  = f->program->plan;
    sherd_dtype        dtype = f->segment->types.compute;

    for (cuts c = pieces_of(plan, f->segment, f->begin, f->end); cuts_next(&c);) {
        size_t       piece = f->segment->first_piece + c.index;
        sherdi_range at;
        size_t       slot;

        SHERDI_TRY(slot_take(f, SHERDI_RING_PARAMS, piece, &slot));
        at = sherdi_ring_slot(plan, SHERDI_RING_PARAMS, slot, 0);
        at.offset += (c.begin - c.first) % c.grain * sherd_dtype_bytes(dtype);
        SHERDI_TRY(values_cast(f, c.begin, c.end, SHERDI_SPACE_STORAGE, dtype, at));
        SHERDI_TRY(slot_give(f, SHERDI_RING_PARAMS, piece, slot, is_all(f, &c)));
    }
    return SHERD_OK;
}

/* Moves the parameter where it rests. */
static sherd_status param_move(const value_range *f)
{
    const sherdi_plan    *plan    = f->program->plan;
    const sherdi_segment *segment = f->segment;
    sherd_dtype           dtype   = segment->types.compute;
    size_t                elem    = sherd_dtype_bytes(dtype);
    size_t first = segment->is_resident ? 0 : (size_t)plan->rank * segment->slice_elems;
    int    where = segment->param_space == SHERDI_SPACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                             : SHERDI_BUFFER_PARAMS;

    if (segment->is_bound) {
        size_t at = sherdi_trainer_offset(plan, f->program->model, f->param) +
                    (f->begin - plan->layout.params[f->param].offset_elems) * elem;

        return values_cast(f, f->begin, f->end, SHERDI_SPACE_DEVICE, dtype,
                           sherdi_range_of(SHERDI_AT_TRAINER_DATA, at, 0));
    }
    if (segment->param_space == SHERDI_SPACE_STORAGE) {
        return pieces_move(f);
    }
    return values_cast(
        f, f->begin, f->end, segment->param_space, dtype,
        sherdi_range_of(where, segment->param_offset + (f->begin - first) * elem, 0));
}

/* Moves integers, which always lie on the device: widened as for the norm, as many at a time as the
 * staging buffer has room for. */
static sherd_status fixed_gradient_move(const value_range *f)
{
    const sherdi_plan *plan   = f->program->plan;
    size_t             first  = (size_t)plan->rank * f->segment->slice_elems;
    size_t             staged = plan->packing.buffers[SHERDI_BUFFER_STAGING].bytes / sizeof(float);

    for (size_t at = f->begin; at < f->end; at += staged) {
        size_t       end  = sherdi_min_size(f->end, at + staged);
        sherdi_range sums = sherdi_range_of(
            SHERDI_BUFFER_GRADS, f->segment->grad_offset + (at - first) * sizeof(int64_t),
            (end - at) * sizeof(int64_t));
        sherdi_range wide = sherdi_range_of(SHERDI_BUFFER_STAGING, 0, (end - at) * sizeof(float));

        SHERDI_TRY(sherdi_program_widen(f->program, f->segment, sums, wide));
        SHERDI_TRY(bytes_move(f, SHERDI_SPACE_DEVICE, wide, values_at(f, at, end)));
    }
    return SHERD_OK;
}

/* Moves the reduced gradient of a prepared step. */
static sherd_status gradient_move(const value_range *f)
{
    const sherdi_plan *plan  = f->program->plan;
    sherd_dtype        dtype = f->segment->types.grad;

    if (plan->layout.is_deterministic) {
        return fixed_gradient_move(f);
    }
    for (cuts c = blocks_of(plan, f->segment, f->begin, f->end); cuts_next(&c);) {
        const sherdi_block *block = &plan->layout.blocks[f->segment->first_block + c.index];
        sherdi_range        at    = sherdi_program_gradient(plan, block);

        at.offset += (c.begin - c.first) % c.grain * sherd_dtype_bytes(dtype);
        SHERDI_TRY(sherdi_program_gradient_read(f->program, block));
        SHERDI_TRY(dtype == SHERD_F32
                       ? bytes_move(f, block->grad_space, at, values_at(f, c.begin, c.end))
                       : values_cast(f, c.begin, c.end, block->grad_space, dtype, at));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- parts -- */

/* Lets the trainer, or another caller, give the values or receive them. */
static sherd_status values_call(const value_range *f, sherdi_op_kind kind)
{
    sherdi_op op      = range_op(f, kind, SHERDI_LANE_HOST);
    int       is_fill = kind == SHERDI_OP_FILL;

    op.elems = f->end - f->begin;
    op.index = element_index(f, f->begin);
    sherdi_op_use(&op, is_fill ? SHERDI_USE_DST : SHERDI_USE_SRC,
                  is_fill ? SHERDI_WRITES : SHERDI_ADDS, values_at(f, f->begin, f->end));
    return sherdi_program_emit(f->program, &op);
}

/* Puts weights that a caller gives, or that are in the trainer's own memory, to where they rest.
 * The parameter comes first: for a split master, its half counts. */
static sherd_status weights_put(value_range *f, int is_given)
{
    value_range master;
    value_range copies;

    f->is_put = 0;
    SHERDI_TRY(is_given ? values_call(f, SHERDI_OP_FILL) : param_move(f));
    f->is_put      = 1;
    master         = *f;
    master.part    = 0;
    copies         = *f;
    copies.is_last = 1; /* it is the only part there */
    SHERDI_TRY(is_given ? param_move(&copies) : SHERD_OK);
    SHERDI_TRY(f->segment->has_master ? state_move(&master) : SHERD_OK);
    return is_counted(f) ? values_count(f) : SHERD_OK;
}

static sherd_status part_put(value_range *f)
{
    value_range own = range_owned(f);

    if (f->part == 0 || f->part == SHERDI_VALUE_COMPUTE) {
        return weights_put(f, 1);
    }
    if (own.begin == own.end) {
        return SHERD_OK;
    }
    own.is_put = 1;
    SHERDI_TRY(values_call(&own, SHERDI_OP_FILL));
    return state_move(&own);
}

static sherd_status weights_fill(value_range *f)
{
    return weights_put(f, 1);
}

static sherd_status weights_keep(value_range *f)
{
    return weights_put(f, 0);
}

static sherd_status weights_look(value_range *f)
{
    SHERDI_TRY(f->segment->has_master ? state_move(f) : param_move(f));
    return values_count(f);
}

/* This rank's range of a part: of the compute type all elements that rest on this rank, else the
 * elements that it updates. */
static value_range range_had(const value_range *f)
{
    if (f->part == SHERDI_VALUE_COMPUTE) {
        return *f;
    }
    return f->part == SHERDI_VALUE_GRADIENT && f->program->plan->layout.is_deterministic
               ? range_slice(f)
               : range_owned(f);
}

static sherd_status part_get(value_range *f)
{
    value_range had = range_had(f);

    if (had.begin == had.end) {
        return SHERD_OK;
    }
    if (f->part == SHERDI_VALUE_GRADIENT) {
        SHERDI_TRY(gradient_move(&had));
    } else if (f->part == SHERDI_VALUE_COMPUTE || (f->part == 0 && !f->segment->has_master)) {
        SHERDI_TRY(param_move(&had));
    } else {
        SHERDI_TRY(state_move(&had));
    }
    return values_call(&had, SHERDI_OP_TAKE);
}

/* ------------------------------------------------------------------- events -- */

typedef sherd_status (*part_fn)(value_range *f);

static sherd_status parts_run(const value_range *f, unsigned parts, part_fn run)
{
    for (int part = 0; part < SHERDI_VALUE_PARTS; part++) {
        value_range one = *f;

        if (parts >> part & 1) {
            one.part    = part;
            one.is_last = parts >> part == 1;
            SHERDI_TRY(run(&one));
        }
    }
    return SHERD_OK;
}

/* With several parts, a portion ends where a block ends or begins. */
static size_t block_border(const value_range *f)
{
    cuts c = blocks_of(f->program->plan, f->segment, f->begin, f->end);

    if (!cuts_next(&c)) {
        return f->end;
    }
    return c.begin > f->begin ? c.begin : c.end;
}

/* A portion does not end inside a chunk of a parameter: a chunk may be encoded as a whole. */
static size_t chunk_border(const value_range *f, size_t start, size_t end)
{
    size_t border = start + (f->end - start) / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;

    return f->end == end || border <= f->begin || !sherdi_segment_is_encoded(f->segment) ? f->end
                                                                                         : border;
}

/* Walks over this rank's part of a range, in portions of the fill buffer. */
static sherd_status portions_run(const sherdi_program *program, const sherdi_values *values,
                                 part_fn run)
{
    const sherdi_plan *plan       = program->plan;
    size_t             start      = plan->layout.params[values->param].offset_elems;
    int                is_several = (values->parts & (values->parts - 1)) != 0;
    value_range        f          = {.program = program,
                                     .segment = &plan->layout.segments[plan->layout.params[values->param].segment],
                                     .param = values->param};
    size_t             at;
    size_t             end;

    sherdi_plan_held(plan, values->param, program->model->params[values->param].elems, &at, &end);
    f.param_end = start + end;
    at          = start + sherdi_max_size(at, values->first);
    end         = start + sherdi_min_size(end, values->first + values->count);
    for (; at < end; at = f.end) {
        f.begin = at;
        f.end   = sherdi_min_size(end, at + plan->packing.fill_elems);
        f.end   = is_several ? block_border(&f) : f.end;
        f.end   = chunk_border(&f, start, end);
        SHERDI_TRY(parts_run(&f, values->parts, run));
    }
    return SHERD_OK;
}

/* The weights of a parameter, all of them. */
static sherdi_values weights_of(const sherdi_program *program, size_t param)
{
    const sherdi_model_param *info = &program->model->params[param];

    return (sherdi_values){.param = param,
                           .count = info->elems,
                           .parts = info->is_frozen ? SHERDI_VALUES_COMPUTE : SHERDI_VALUES_MASTER};
}

/* Each rank does it for its part. */
static sherd_status values_run(const sherdi_program *program, const sherdi_values *values,
                               part_fn run)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status status = portions_run(program, values, run);

    program->progress->flags = before;
    return status;
}

sherd_status sherdi_program_fill(const sherdi_program *program, size_t param, int is_given)
{
    sherdi_values values = weights_of(program, param);

    return values_run(program, &values, is_given ? weights_fill : weights_keep);
}

sherd_status sherdi_program_put(const sherdi_program *program, const sherdi_values *values)
{
    return values_run(program, values, part_put);
}

sherd_status sherdi_program_get(const sherdi_program *program, const sherdi_values *values)
{
    return values_run(program, values, part_get);
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

sherd_status sherdi_program_fill_end(const sherdi_program *program)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status status = slots_write(program);

    program->progress->flags = before;
    return status;
}

sherd_status sherdi_program_hash(const sherdi_program *program, size_t param)
{
    const sherdi_plan    *plan    = program->plan;
    const sherdi_segment *segment = sherdi_param_segment(plan, param);
    size_t                elem    = sherdi_compute_bytes(segment);
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_HASH, SHERDI_LANE_COMPUTE, segment);

    op.param = (int)param;
    op.flags = SHERDI_OP_WAITS;
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                  segment->is_bound
                      ? sherdi_program_trainer(program, SHERDI_AT_TRAINER_DATA, param)
                      : sherdi_range_of(SHERDI_BUFFER_PARAMS,
                                        segment->param_offset +
                                            plan->layout.params[param].offset_elems * elem,
                                        program->model->params[param].elems * elem));
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_fingerprint(const sherdi_program *program, const sherdi_values *values)
{
    sherdi_values weights = *values;

    weights.parts = SHERDI_VALUES_MASTER;
    SHERDI_TRY(sherdi_program_clear(program, SHERDI_LANE_UPDATE,
                                    offsetof(sherdi_scalars_head, fingerprint), sizeof(uint64_t)));
    SHERDI_TRY(values_run(program, &weights, weights_look));
    SHERDI_TRY(sherdi_program_fingerprint_send(program));
    return sherdi_program_fingerprint_sent(program);
}
