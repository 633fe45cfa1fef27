/* Values of a parameter and of its state, any range of them, in fp32: values of a caller are
 * written to the space where they rest, and values for a caller are read from it. With several
 * parts each portion lies in one block, and all its parts are moved before the next portion comes:
 * so the block's extent is needed only once. Also the norm of one parameter's gradient. */
#include "engine/program/fixed.h"
#include "engine/program/program_values.h"
#include "engine/program/values.h"

#include "base/checked.h"
#include "engine/program/offload.h"
#include "engine/program/program_walk.h"

#include <stddef.h>

/* Moves integers, which always lie on the device: widened as for the norm, as many at a time as the
 * staging buffer has room for. */
static sherd_status fixed_gradient_move(const sherdi_value_range *f)
{
    const sherdi_plan *plan   = f->program->plan;
    size_t             first  = f->segment->slice_first;
    size_t             staged = plan->packing.buffers[SHERDI_BUFFER_STAGING].bytes / sizeof(float);

    for (size_t at = f->begin; at < f->end; at += staged) {
        size_t       end  = sherdi_min_size(f->end, at + staged);
        sherdi_range sums = sherdi_range_of(
            SHERDI_BUFFER_GRADS, f->segment->grad_offset + (at - first) * sizeof(int64_t),
            (end - at) * sizeof(int64_t));
        sherdi_range wide = sherdi_range_of(SHERDI_BUFFER_STAGING, 0, (end - at) * sizeof(float));
        sherdi_value_range part = sherdi_values_within(f, at, staged);

        SHERDI_TRY(sherdi_program_widen(f->program, f->segment, sums, wide));
        SHERDI_TRY(sherdi_values_copy(f, SHERDI_SPACE_DEVICE, wide, sherdi_values_at(&part)));
    }
    return SHERD_OK;
}

/* Moves the reduced gradient of a prepared step. */
static sherd_status gradient_move(const sherdi_value_range *f)
{
    const sherdi_plan  *plan  = f->program->plan;
    sherd_dtype         dtype = f->segment->types.grad;
    sherdi_value_range  part  = *f;
    const sherdi_block *block;

    if (plan->layout.is_deterministic) {
        return fixed_gradient_move(f);
    }
    for (part.end = f->begin; (block = sherdi_values_next_block(f, &part)) != NULL;) {
        sherdi_range at = sherdi_program_gradient(plan, block);

        at.offset += sherdi_values_in_block(&part, block) * sherd_dtype_bytes(dtype);
        SHERDI_TRY(SHERDI_IF_OFFLOAD(gradient_read(f->program, block)));
        SHERDI_TRY(dtype == SHERD_F32
                       ? sherdi_values_copy(f, block->grad_space, at, sherdi_values_at(&part))
                       : sherdi_values_cast(&part, block->grad_space, dtype, at));
    }
    return SHERD_OK;
}

/* The part of the range that this rank updates. */
static sherdi_value_range range_owned(const sherdi_value_range *f)
{
    return sherdi_values_within(f, f->segment->own_first, f->segment->own_elems);
}

static sherd_status part_put(sherdi_value_range *f)
{
    sherdi_value_range own = range_owned(f);

    if (f->part == 0 || f->part == SHERDI_VALUE_COMPUTE) {
        return sherdi_weights_put(f);
    }
    if (own.begin == own.end) {
        return SHERD_OK;
    }
    own.is_put = 1;
    SHERDI_TRY(sherdi_values_call(&own, SHERDI_OP_FILL));
    return sherdi_values_state_move(&own);
}

static sherd_status weights_look(sherdi_value_range *f, unsigned parts)
{
    (void)parts; /* the master weights */
    SHERDI_TRY(f->segment->has_master ? sherdi_values_state_move(f) : sherdi_values_param_move(f));
    return sherdi_values_count(f);
}

/* This rank's range of a part: of the compute type all elements that rest on this rank, else the
 * elements that it updates. */
static sherdi_value_range range_had(const sherdi_value_range *f)
{
    if (f->part == SHERDI_VALUE_COMPUTE) {
        return *f;
    }
    return f->part == SHERDI_VALUE_GRADIENT && f->program->plan->layout.is_deterministic
               ? sherdi_values_within(f, f->segment->slice_first, f->segment->slice_elems)
               : range_owned(f);
}

static sherd_status part_get(sherdi_value_range *f)
{
    sherdi_value_range had = range_had(f);

    if (had.begin == had.end) {
        return SHERD_OK;
    }
    if (f->part == SHERDI_VALUE_GRADIENT) {
        SHERDI_TRY(gradient_move(&had));
    } else if (f->part == SHERDI_VALUE_COMPUTE || (f->part == 0 && !f->segment->has_master)) {
        SHERDI_TRY(sherdi_values_param_move(&had));
    } else {
        SHERDI_TRY(sherdi_values_state_move(&had));
    }
    return sherdi_values_call(&had, SHERDI_OP_TAKE);
}

static sherd_status parts_run(const sherdi_value_range *f, unsigned parts,
                              sherd_status (*run)(sherdi_value_range *f))
{
    for (int part = 0; part < SHERDI_VALUE_PARTS; part++) {
        sherdi_value_range one = *f;

        if (parts >> part & 1) {
            one.part    = part;
            one.is_last = parts >> part == 1;
            SHERDI_TRY(run(&one));
        }
    }
    return SHERD_OK;
}

static sherd_status parts_put(sherdi_value_range *f, unsigned parts)
{
    return parts_run(f, parts, part_put);
}

static sherd_status parts_get(sherdi_value_range *f, unsigned parts)
{
    return parts_run(f, parts, part_get);
}

/* With several parts, a portion ends where a block ends or begins. */
static size_t block_border(const sherdi_value_range *f)
{
    sherdi_value_range part = *f;

    part.end = f->begin;
    if (sherdi_values_next_block(f, &part) == NULL) {
        return f->end;
    }
    return part.begin > f->begin ? part.begin : part.end;
}

/* A portion does not end inside a chunk of a parameter: a chunk may be encoded as a whole. */
static size_t chunk_border(const sherdi_value_range *f, size_t end)
{
    size_t start  = f->program->plan->layout.params[f->param].offset_elems;
    size_t border = start + (f->end - start) / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;

    return f->end == end || border <= f->begin ||
                   !sherdi_has_encoded(f->segment->encodings, SHERDI_MOST_PARTS)
               ? f->end
               : border;
}

static size_t border_of(const sherdi_value_range *f, unsigned parts, size_t end)
{
    sherdi_value_range portion = *f;

    portion.end = (parts & (parts - 1)) != 0 ? block_border(f) : f->end;
    return chunk_border(&portion, end);
}

/* Works on this rank's part of a range, in portions of the fill buffer. */
static sherd_status portions_run(const sherdi_program *program, const sherdi_values *values,
                                 sherd_status (*run)(sherdi_value_range *f, unsigned parts))
{
    sherdi_value_range all =
        sherdi_values_range(program, values->param, values->first, values->count);
    sherdi_value_range f      = all;
    uint32_t           before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status       status = SHERD_OK;

    for (f.end = f.begin; f.end < all.end && status == SHERD_OK;) {
        f.begin = f.buffered = f.end;
        f.end  = sherdi_min_size(all.end, f.begin + program->plan->packing.fill_elems);
        f.end  = border_of(&f, values->parts, all.end);
        status = run(&f, values->parts);
    }
    program->progress->flags = before;
    return status;
}

sherd_status sherdi_program_put(const sherdi_program *program, const sherdi_values *values)
{
    return portions_run(program, values, parts_put);
}

sherd_status sherdi_program_get(const sherdi_program *program, const sherdi_values *values)
{
    return portions_run(program, values, parts_get);
}

sherd_status sherdi_program_fingerprint(const sherdi_program *program, const sherdi_values *values)
{
    sherdi_values weights = *values;

    weights.parts = SHERDI_VALUES_MASTER;
    SHERDI_TRY(sherdi_program_clear(program, SHERDI_LANE_UPDATE,
                                    offsetof(sherdi_scalars_head, fingerprint), sizeof(uint64_t)));
    SHERDI_TRY(portions_run(program, &weights, weights_look));
    SHERDI_TRY(sherdi_program_fingerprint_send(program));
    return sherdi_program_fingerprint_sent(program);
}

/* ------------------------------------------------------------------- norms -- */

static sherd_status norm_clear(const sherdi_program *program)
{
    return sherdi_program_clear(program, SHERDI_LANE_UPDATE, offsetof(sherdi_scalars_head, norm),
                                sizeof(sherdi_norm_acc));
}

/* Adds the squares of elements [first, end) of a block. */
static sherd_status block_norm(const sherdi_program *program, const sherdi_block *block,
                               size_t first, size_t end)
{
    const sherdi_segment *segment  = sherdi_block_segment(program->plan, block);
    size_t                elem     = sherdi_grad_bytes(program->plan, segment);
    sherdi_range          gradient = sherdi_program_gradient(program->plan, block);
    sherdi_op             op;

    gradient.offset += first * elem;
    gradient.bytes = (end - first) * elem;
    op             = sherdi_program_norm_op(program->plan, segment, block->grad_space, gradient,
                                            segment->types.grad);
    SHERDI_TRY(SHERDI_IF_OFFLOAD(gradient_read(program, block)));
    return sherdi_program_emit(program, &op);
}

/* Adds the squares of this rank's part of elements [begin, end) of a segment; both are at chunks,
 * as blocks are. */
static sherd_status range_norm(const sherdi_program *program, const sherdi_segment *segment,
                               size_t begin, size_t end)
{
    const sherdi_plan *plan = program->plan;
    size_t             own  = segment->slice_first;

    if (plan->layout.is_deterministic) {
        return sherdi_program_fixed_norm(
            program, segment, sherdi_max_size(begin, own) - own,
            sherdi_max_size(sherdi_min_size(end, own + segment->slice_elems), own) - own);
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[segment->first_block + b];
        size_t              at    = segment->own_first + block->offset_elems;
        size_t              first = sherdi_max_size(begin, at);
        size_t              last  = sherdi_min_size(end, at + block->elems);

        if (first < last) {
            SHERDI_TRY(block_norm(program, block, first - at, last - at));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_program_param_norm(const sherdi_program *program, size_t param)
{
    const sherdi_plan_param *layout  = &program->plan->layout.params[param];
    const sherdi_segment    *segment = &program->plan->layout.segments[layout->segment];
    size_t elems = sherdi_round_up(program->model->params[param].elems, SHERD_CHUNK_ELEMS);

    SHERDI_TRY(norm_clear(program));
    if (segment->has_gradient) {
        uint32_t     before = sherdi_program_flag(program, SHERDI_OP_ALONE);
        sherd_status status =
            range_norm(program, segment, layout->offset_elems, layout->offset_elems + elems);

        program->progress->flags = before;
        SHERDI_TRY(status);
    }
    return sherdi_program_collect(program);
}
