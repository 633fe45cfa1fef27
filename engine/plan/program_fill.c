/* First values: what the trainer gives of a parameter goes to the master weights and, in the compute type, to where the
 * parameter rests; and back from there, for who asks what a frozen one is.
 *
 * Parameters come in any order. An extent on a drive stays in its slot until all its parameters have come; one that has
 * to make room before that goes to the drive as it is and comes back. Behind its last write a slot still holds it: what
 * could not be written is written again. */
#include "engine/plan/program.h"

#include "base/checked.h"

#include <stddef.h>

/* -------------------------------------------------------------------- cuts -- */

/* Elements of a segment's whole, cut where its blocks begin, or its pieces: of as many elements all but the last. */
typedef struct cuts {
    size_t first, limit, grain; /* of the blocks */
    size_t last;                /* where the elements end */
    size_t index, border;       /* of the block, and where it ends */
    size_t begin, end;          /* what lies in it */
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

    if (!segment->has_master || segment->num_blocks == 0) {
        return (cuts){0};
    }
    return cuts_of(first, owned, plan->blocks[segment->first_block].elems, begin, end);
}

static cuts pieces_of(const sherdi_plan *plan, const sherdi_segment *segment, size_t begin,
                      size_t end)
{
    if (segment->num_pieces == 0) {
        return (cuts){0};
    }
    return cuts_of((size_t)plan->rank * segment->slice_elems, segment->slice_elems,
                   plan->pieces[segment->first_piece].elems, begin, end);
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

/* Whether nothing of the parameter comes behind it in the block. */
static int is_all(const cuts *c, size_t param_end)
{
    return c->end == param_end || c->end == c->border;
}

/* ---------------------------------------------------------------- counting -- */

static void left_count(sherdi_progress *progress, const sherdi_plan *plan, size_t param,
                       size_t elems)
{
    const sherdi_segment *segment = &plan->segments[plan->params[param].segment];
    size_t                start   = plan->params[param].offset_elems;
    size_t                begin;
    size_t                end;
    cuts                  c;

    sherdi_plan_held(plan, param, elems, &begin, &end);
    for (c = blocks_of(plan, segment, start + begin, start + end); cuts_next(&c);) {
        const sherdi_block *block = &plan->blocks[segment->first_block + c.index];

        if (block->place == SHERDI_PLACE_STORAGE) {
            progress->filled[SHERDI_RING_STATE][block->extent].left++;
        }
    }
    for (c = pieces_of(plan, segment, start + begin, start + end); cuts_next(&c);) {
        progress->filled[SHERDI_RING_PARAMS][segment->first_piece + c.index].left++;
    }
}

void sherdi_program_fill_count(sherdi_progress *progress, const sherdi_plan *plan,
                               const sherdi_model *model)
{
    for (size_t p = 0; p < plan->num_params; p++) {
        left_count(progress, plan, p, model->params[p].elems);
    }
}

/* Elements that are filled together, or looked at. */
typedef struct fill {
    const sherdi_program *program;
    int                   is_put; /* else they are looked at */
    const sherdi_segment *segment;
    size_t                param;
    size_t begin, end; /* of the segment's whole: what the buffer of first values has */
    size_t param_end;  /* of what this rank holds of the parameter */
} fill;

static sherdi_op fill_op(const fill *f, sherdi_op_kind kind, sherdi_lane_id lane)
{
    sherdi_op op = sherdi_op_of_segment(f->program->plan, kind, lane, f->segment);

    op.param = (int)f->param;
    op.place = SHERDI_PLACE_HOST;
    return op;
}

/* -------------------------------------------------------------------- slots -- */

static sherd_status slot_write(const sherdi_program *program, sherdi_ring ring, size_t slot)
{
    sherdi_progress *progress = program->progress;
    size_t           extent   = progress->held[ring][slot];
    sherd_status     status   = sherdi_program_write(program, ring, slot, extent, -1);

    progress->is_changed[ring][slot] = status != SHERD_OK;
    progress->held[ring][slot]       = extent;
    return status;
}

/* Behind what is written from it: if that failed it holds that still. An extent comes as it went when it had to make
 * room. */
static sherd_status slot_begin(const fill *f, sherdi_ring ring, size_t slot, size_t extent)
{
    const sherdi_plan *plan = f->program->plan;
    int                unit = f->segment->unit;
    sherdi_op          zero = fill_op(f, SHERDI_OP_ZERO, SHERDI_LANE_HOST);
    sherdi_op          read = sherdi_op_of_transfer(plan, SHERDI_OP_READ, ring, slot, extent, unit);
    sherdi_op write = sherdi_op_of_transfer(plan, SHERDI_OP_WRITE, ring, slot, extent, unit);

    sherdi_op_use(&zero, SHERDI_USE_DST, SHERDI_WRITES, read.uses[SHERDI_USE_DST]);
    SHERDI_TRY(sherdi_program_emit(f->program, &zero));
    sherdi_progress_release(f->program->progress, plan, ring, slot);
    if (!f->program->progress->filled[ring][extent].is_begun) {
        return SHERD_OK;
    }
    sherdi_op_use(&read, SHERDI_USE_SRC, SHERDI_READS, write.uses[SHERDI_USE_DST]);
    return sherdi_program_emit(f->program, &read);
}

/* One whose extent is on the drive, or else the one that has had its turn. */
static size_t slot_choose(sherdi_progress *progress, sherdi_ring ring, size_t slots)
{
    size_t *next = &progress->next[ring];
    size_t  i    = 0;

    while (i < slots && progress->is_changed[ring][(*next + i) % slots]) {
        i++;
    }
    *next = (*next + i) % slots + 1;
    return *next - 1;
}

/* The slot with an extent in it. */
static sherd_status slot_take(const fill *f, sherdi_ring ring, size_t extent, size_t *out)
{
    sherdi_progress *progress = f->program->progress;
    size_t           slots    = sherdi_ring_slots(f->program->plan, ring);

    if (!f->is_put) {
        *out = extent % slots;
        return sherdi_program_read(f->program, ring, *out, extent, f->segment->unit);
    }
    for (*out = 0; *out < slots; ++*out) {
        if (progress->held[ring][*out] == extent) {
            return SHERD_OK;
        }
    }
    *out = slot_choose(progress, ring, slots);
    if (progress->is_changed[ring][*out]) {
        SHERDI_TRY(slot_write(f->program, ring, *out));
    }
    return slot_begin(f, ring, *out, extent);
}

/* Some of its values have come; `is_last`: of the parameter. An extent that is filled again was complete before. */
static sherd_status slot_give(const fill *f, sherdi_ring ring, size_t extent, size_t slot,
                              int is_last)
{
    sherdi_progress    *progress = f->program->progress;
    sherdi_fill_extent *filled   = &progress->filled[ring][extent];

    if (!f->is_put) {
        sherdi_progress_release(progress, f->program->plan, ring, slot);
        return SHERD_OK;
    }
    progress->held[ring][slot]       = extent;
    progress->is_changed[ring][slot] = 1;
    filled->is_begun                 = 1;
    filled->left -= is_last && filled->left > 0;
    return is_last && filled->left == 0 ? slot_write(f->program, ring, slot) : SHERD_OK;
}

/* ------------------------------------------------------------------- values -- */

/* Global, of what lies there in the segment's whole. */
static uint64_t element_index(const fill *f, size_t at)
{
    return f->program->model->params[f->param].first_index +
           (at - f->program->plan->params[f->param].offset_elems);
}

static sherdi_range values_at(const fill *f, size_t begin, size_t end)
{
    return sherdi_range_of(SHERDI_BUFFER_FILL, (begin - f->begin) * sizeof(float),
                           (end - begin) * sizeof(float));
}

/* To memory of a place, or from it. */
static sherd_status bytes_move(const fill *f, sherdi_place place, sherdi_range at,
                               sherdi_range buffer)
{
    int       is_apart = place == SHERDI_PLACE_DEVICE && f->program->plan->machine.has_device;
    sherdi_op op = fill_op(f, SHERDI_OP_COPY, is_apart ? SHERDI_LANE_COMPUTE : SHERDI_LANE_HOST);

    at.bytes = buffer.bytes;
    return f->is_put ? sherdi_program_move(f->program, op, at, buffer)
                     : sherdi_program_move(f->program, op, buffer, at);
}

/* ... in the compute type. The host's kernels reach all but what is on a device. */
static sherd_status values_cast(const fill *f, size_t begin, size_t end, sherdi_place place,
                                sherdi_range at)
{
    const sherdi_plan *plan     = f->program->plan;
    sherd_dtype        dtype    = plan->settings.compute_dtype;
    int                is_apart = place == SHERDI_PLACE_DEVICE && plan->machine.has_device;
    sherdi_op          op       = fill_op(f, SHERDI_OP_CAST, SHERDI_LANE_HOST);
    sherdi_range       values   = values_at(f, begin, end);
    sherdi_range       near     = at;

    near.bytes = (end - begin) * sherd_dtype_bytes(dtype);
    if (is_apart) {
        near.where  = SHERDI_BUFFER_FILL;
        near.offset = plan->fill_cast_offset;
    }
    op.from  = f->is_put ? SHERD_F32 : dtype;
    op.to    = f->is_put ? dtype : SHERD_F32;
    op.elems = end - begin;
    if (is_apart && !f->is_put) {
        SHERDI_TRY(bytes_move(f, place, at, near));
    }
    SHERDI_TRY(f->is_put ? sherdi_program_move(f->program, op, near, values)
                         : sherdi_program_move(f->program, op, values, near));
    return is_apart && f->is_put ? bytes_move(f, place, at, near) : SHERD_OK;
}

/* What they add to this rank's share of the fingerprint: of what is frozen, in its slice; else in what it updates. */
static sherd_status values_count(const fill *f)
{
    const sherdi_plan *plan  = f->program->plan;
    size_t             first = (size_t)plan->rank * f->segment->slice_elems;
    size_t             owned = f->segment->kind == SHERDI_SEGMENT_FROZEN
                                   ? f->segment->slice_elems
                                   : sherdi_plan_owned(plan, f->segment, &first);
    size_t             begin = sherdi_max_size(f->begin, first);
    size_t             end   = sherdi_min_size(f->end, first + owned);
    sherdi_op          op    = fill_op(f, SHERDI_OP_FINGERPRINT, SHERDI_LANE_HOST);

    if (begin >= end) {
        return SHERD_OK;
    }
    op.elems = end - begin;
    op.index = element_index(f, begin);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, values_at(f, begin, end));
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                  sherdi_fingerprint_at(plan, SHERDI_PLACE_HOST));
    return sherdi_program_emit(f->program, &op);
}

/* ------------------------------------------------------------------- places -- */

/* The master weights, where they are apart from the parameter. */
static sherd_status masters_move(const fill *f)
{
    const sherdi_plan *plan = f->program->plan;

    for (cuts c = blocks_of(plan, f->segment, f->begin, f->end); cuts_next(&c);) {
        const sherdi_block *block = &plan->blocks[f->segment->first_block + c.index];
        int                 rests = block->place == SHERDI_PLACE_STORAGE;
        sherdi_range        at    = sherdi_state_at(plan, block);
        size_t              slot  = 0;

        if (rests) {
            SHERDI_TRY(slot_take(f, SHERDI_RING_STATE, block->extent, &slot));
            at = sherdi_ring_slot(plan, SHERDI_RING_STATE, slot, 0);
            at.offset += block->state_offset;
        }
        at.offset += (c.begin - c.first) % c.grain * sizeof(float);
        SHERDI_TRY(bytes_move(f, block->place, at, values_at(f, c.begin, c.end)));
        if (rests) {
            SHERDI_TRY(
                slot_give(f, SHERDI_RING_STATE, block->extent, slot, is_all(&c, f->param_end)));
        }
    }
    return SHERD_OK;
}

/* The parameter where it rests. */
static sherd_status param_move(const fill *f)
{
    const sherdi_plan    *plan    = f->program->plan;
    const sherdi_segment *segment = f->segment;
    size_t                elem    = sherdi_compute_bytes(plan);
    size_t first = segment->is_resident ? 0 : (size_t)plan->rank * segment->slice_elems;
    int    where = segment->param_place == SHERDI_PLACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                             : SHERDI_BUFFER_PARAMS;

    if (segment->is_bound) {
        return values_cast(
            f, f->begin, f->end, SHERDI_PLACE_DEVICE,
            sherdi_range_of(SHERDI_AT_TRAINER_DATA, (size_t)element_index(f, f->begin) * elem, 0));
    }
    if (segment->param_place != SHERDI_PLACE_STORAGE) {
        return values_cast(
            f, f->begin, f->end, segment->param_place,
            sherdi_range_of(where, segment->param_offset + (f->begin - first) * elem, 0));
    }
    for (cuts c = pieces_of(plan, segment, f->begin, f->end); cuts_next(&c);) {
        size_t       piece = segment->first_piece + c.index;
        sherdi_range at;
        size_t       slot;

        SHERDI_TRY(slot_take(f, SHERDI_RING_PARAMS, piece, &slot));
        at = sherdi_ring_slot(plan, SHERDI_RING_PARAMS, slot, 0);
        at.offset += (c.begin - c.first) % c.grain * elem;
        SHERDI_TRY(values_cast(f, c.begin, c.end, SHERDI_PLACE_STORAGE, at));
        SHERDI_TRY(slot_give(f, SHERDI_RING_PARAMS, piece, slot, is_all(&c, f->param_end)));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- events -- */

static sherd_status values_ask(const fill *f)
{
    sherdi_op op = fill_op(f, SHERDI_OP_FILL, SHERDI_LANE_HOST);

    op.elems = f->end - f->begin;
    op.index = element_index(f, f->begin);
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, values_at(f, f->begin, f->end));
    return sherdi_program_emit(f->program, &op);
}

/* From the trainer, or its own memory, to where they rest. */
static sherd_status stretch_fill(fill *f, int is_given)
{
    f->is_put = 0;
    SHERDI_TRY(is_given ? values_ask(f) : param_move(f));
    if (f->segment->kind == SHERDI_SEGMENT_FROZEN ||
        sherdi_plan_has_generations(f->program->plan)) {
        SHERDI_TRY(values_count(f));
    }
    f->is_put = 1;
    SHERDI_TRY(masters_move(f));
    return is_given ? param_move(f) : SHERD_OK;
}

static sherd_status stretch_look(fill *f, int is_given)
{
    (void)is_given;
    SHERDI_TRY(f->segment->has_master ? masters_move(f) : param_move(f));
    return values_count(f);
}

/* What this rank holds of a parameter, as much at once as the buffer has room for. */
static sherd_status param_run(const sherdi_program *program, size_t           param,
                              sherd_status (*run)(fill *f, int is_given), int is_given)
{
    const sherdi_plan *plan  = program->plan;
    size_t             start = plan->params[param].offset_elems;
    size_t             at;
    size_t             end;

    sherdi_plan_held(plan, param, program->model->params[param].elems, &at, &end);
    for (; at < end; at += plan->fill_elems) {
        fill f = {.program   = program,
                  .segment   = &plan->segments[plan->params[param].segment],
                  .param     = param,
                  .begin     = start + at,
                  .end       = start + sherdi_min_size(end, at + plan->fill_elems),
                  .param_end = start + end};

        SHERDI_TRY(run(&f, is_given));
    }
    return SHERD_OK;
}

sherd_status sherdi_program_fill(const sherdi_program *program, size_t param, int is_given)
{
    return param_run(program, param, stretch_fill, is_given);
}

sherd_status sherdi_program_fill_end(const sherdi_program *program)
{
    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        for (size_t slot = 0; slot < sherdi_ring_slots(program->plan, (sherdi_ring)ring); slot++) {
            if (program->progress->is_changed[ring][slot]) {
                SHERDI_TRY(slot_write(program, (sherdi_ring)ring, slot));
            }
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_program_fingerprint(const sherdi_program *program, size_t param)
{
    SHERDI_TRY(sherdi_program_clear(program, offsetof(sherdi_scalars_head, fingerprint),
                                    sizeof(uint64_t)));
    SHERDI_TRY(param_run(program, param, stretch_look, 0));
    return sherdi_program_collect(program);
}
