/* First values of parameters, in fp32: they are written to the space where they rest, the master
 * weights and the parameter in its own type. A parameter passes through the fill buffer, a portion
 * at a time. Parameters come in any order. program_values.c uses the same ranges for values of any
 * part, which it also reads. */
#include "engine/program/program_values.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/program/offload.h"
#include "engine/program/program_walk.h"

/* --------------------------------------------------------------- ranges -- */

sherdi_op sherdi_value_op(const sherdi_value_range *s, sherdi_op_kind kind, sherdi_lane_id lane)
{
    sherdi_op op = sherdi_op_of_segment(s->program->plan, kind, lane, s->segment);

    op.param = (int)s->param;
    op.part  = s->part;
    op.space = SHERDI_SPACE_HOST;
    return op;
}

sherdi_value_range sherdi_values_within(const sherdi_value_range *f, size_t first, size_t count)
{
    sherdi_value_range within = *f;

    within.begin = sherdi_max_size(f->begin, first);
    within.end   = sherdi_max_size(within.begin, sherdi_min_size(f->end, first + count));
    return within;
}

const sherdi_block *sherdi_values_next_block(const sherdi_value_range *f, sherdi_value_range *part)
{
    const sherdi_segment *segment = f->segment;
    const sherdi_block   *block   = NULL;

    part->begin = sherdi_max_size(part->end, segment->own_first);
    if (segment->num_blocks > 0 &&
        part->begin < sherdi_min_size(f->end, segment->own_first + segment->own_elems)) {
        block = &f->program->plan->layout.blocks[segment->first_block];
        block += (part->begin - segment->own_first) / block->elems; /* the last may be shorter */
        part->end =
            sherdi_min_size(f->end, segment->own_first + block->offset_elems + block->elems);
    }
    return block;
}

/* ------------------------------------------------------------------- values -- */

/* Names the elements of the range, by their number in the model. */
static void elements_name(const sherdi_value_range *f, sherdi_op *op)
{
    op->elems = f->end - f->begin;
    op->index = f->program->model->params[f->param].first_index +
                (f->begin - f->program->plan->layout.params[f->param].offset_elems);
}

sherdi_range sherdi_values_at(const sherdi_value_range *f)
{
    return sherdi_range_of(SHERDI_BUFFER_FILL, (f->begin - f->buffered) * sizeof(float),
                           (f->end - f->begin) * sizeof(float));
}

static int space_is_apart(const sherdi_value_range *f, sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE && f->program->plan->machine.has_device;
}

sherdi_lane_id sherdi_values_lane(const sherdi_value_range *f, sherdi_space space)
{
    return space_is_apart(f, space) ? SHERDI_LANE_COMPUTE : SHERDI_LANE_HOST;
}

sherd_status sherdi_values_copy(const sherdi_value_range *f, sherdi_space space, sherdi_range at,
                                sherdi_range buffer)
{
    sherdi_op op = sherdi_value_op(f, SHERDI_OP_COPY, sherdi_values_lane(f, space));

    at.bytes = buffer.bytes;
    return f->is_put ? sherdi_program_move(f->program, op, at, buffer)
                     : sherdi_program_move(f->program, op, buffer, at);
}

sherd_status sherdi_values_cast(const sherdi_value_range *f, sherdi_space space, sherd_dtype dtype,
                                sherdi_range at)
{
    sherdi_op    op     = sherdi_value_op(f, SHERDI_OP_CAST, SHERDI_LANE_HOST);
    sherdi_range values = sherdi_values_at(f);

    if (space_is_apart(f, space)) {
        return f->program->progress->apart->values_cast(f, dtype, at);
    }
    op.from  = f->is_put ? SHERD_F32 : dtype;
    op.to    = f->is_put ? dtype : SHERD_F32;
    op.elems = f->end - f->begin;
    at.bytes = op.elems * sherd_dtype_bytes(dtype);
    return f->is_put ? sherdi_program_move(f->program, op, at, values)
                     : sherdi_program_move(f->program, op, values, at);
}

int sherdi_values_are_counted(const sherdi_value_range *f)
{
    return f->segment->kind == SHERDI_SEGMENT_FROZEN || f->program->plan->has_generations;
}

sherd_status sherdi_values_count(const sherdi_value_range *f)
{
    const sherdi_segment *segment = f->segment;
    sherdi_op             op      = sherdi_value_op(f, SHERDI_OP_FINGERPRINT, SHERDI_LANE_HOST);
    sherdi_value_range    own =
        segment->kind == SHERDI_SEGMENT_FROZEN
               ? sherdi_values_within(f, segment->slice_first, segment->slice_elems)
               : sherdi_values_within(f, segment->own_first, segment->own_elems);

    if (own.begin >= own.end) {
        return SHERD_OK;
    }
    elements_name(&own, &op);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, sherdi_values_at(&own));
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                  sherdi_fingerprint_at(f->program->plan, SHERDI_SPACE_HOST));
    return sherdi_program_emit(f->program, &op);
}

/* ------------------------------------------------------------------- spaces -- */

sherd_status sherdi_values_block_move(const sherdi_value_range *f, const sherdi_block *block,
                                      sherdi_range state, sherdi_range half)
{
    if (sherdi_segment_part_is_encoded(f->segment, f->part)) {
        return sherdi_modules_encoded_move(f, block, &state, &half);
    }
    state.offset +=
        sherdi_plan_part_offset(f->program->plan, block, f->part, sherdi_values_in_block(f, block));
    return sherdi_values_copy(f, block->space, state, sherdi_values_at(f));
}

sherd_status sherdi_values_state_move(const sherdi_value_range *f)
{
    const sherdi_plan  *plan = f->program->plan;
    sherdi_value_range  part = *f;
    const sherdi_block *block;

    for (part.end = f->begin; (block = sherdi_values_next_block(f, &part)) != NULL;) {
        SHERDI_TRY(
            block->space == SHERDI_SPACE_STORAGE
                ? sherdi_program_offload()->block_move(&part, block)
                : sherdi_values_block_move(&part, block, sherdi_state_at(plan, block),
                                           sherdi_program_param_at(plan, f->segment, block)));
    }
    return SHERD_OK;
}

sherd_status sherdi_values_param_move(const sherdi_value_range *f)
{
    const sherdi_segment *segment = f->segment;
    sherd_dtype           dtype   = segment->types.compute;
    size_t                elem    = sherd_dtype_bytes(dtype);
    size_t                first   = segment->is_resident ? 0 : segment->slice_first;

    if (segment->is_bound) {
        return sherdi_modules_bound_move(f);
    }
    if (!sherdi_is_on_device(segment->param_space)) {
        return sherdi_program_offload()->param_move(f);
    }
    return sherdi_values_cast(f, SHERDI_SPACE_DEVICE, dtype,
                              sherdi_range_of(SHERDI_BUFFER_PARAMS,
                                              segment->param_offset + (f->begin - first) * elem,
                                              0));
}

/* ------------------------------------------------------------------- parts -- */

sherd_status sherdi_values_call(const sherdi_value_range *f, sherdi_op_kind kind)
{
    sherdi_op op      = sherdi_value_op(f, kind, SHERDI_LANE_HOST);
    int       is_fill = kind == SHERDI_OP_FILL;

    elements_name(f, &op);
    sherdi_op_use(&op, is_fill ? SHERDI_USE_DST : SHERDI_USE_SRC,
                  is_fill ? SHERDI_WRITES : SHERDI_ADDS, sherdi_values_at(f));
    return sherdi_program_emit(f->program, &op);
}

/* The parameter comes first: for a split master, its half counts. */
sherd_status sherdi_weights_put(sherdi_value_range *f)
{
    sherdi_value_range master;

    f->is_put = 0;
    SHERDI_TRY(f->is_kept ? sherdi_values_param_move(f) : sherdi_values_call(f, SHERDI_OP_FILL));
    f->is_put   = 1;
    master      = *f;
    master.part = 0;
    SHERDI_TRY(f->is_kept ? SHERD_OK : sherdi_values_param_move(f));
    SHERDI_TRY(f->segment->has_master ? sherdi_values_state_move(&master) : SHERD_OK);
    return sherdi_values_are_counted(f) ? sherdi_values_count(f) : SHERD_OK;
}

/* ------------------------------------------------------------------- events -- */

sherdi_value_range sherdi_values_range(const sherdi_program *program, size_t param, size_t first,
                                       size_t count)
{
    size_t             start = program->plan->layout.params[param].offset_elems;
    sherdi_value_range f     = {.program = program,
                                .segment = sherdi_param_segment(program->plan, param),
                                .param   = param,
                                .is_last = 1};

    sherdi_plan_held(program->plan, param, program->model->params[param].elems, &f.begin, &f.end);
    f.param_end = start + f.end;
    f.begin     = start + sherdi_max_size(f.begin, first);
    f.end       = start + sherdi_min_size(f.end, first + count);
    return f;
}

sherd_status sherdi_program_fill(const sherdi_program *program, size_t param, int is_given)
{
    const sherdi_model_param *info   = &program->model->params[param];
    sherdi_value_range        all    = sherdi_values_range(program, param, 0, info->elems);
    sherdi_value_range        f      = all;
    uint32_t                  before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status              status = SHERD_OK;

    f.part    = info->is_frozen ? SHERDI_VALUE_COMPUTE : 0;
    f.is_kept = !is_given;
    for (f.end = f.begin; f.end < all.end && status == SHERD_OK;) {
        f.begin = f.buffered = f.end;
        f.end  = sherdi_min_size(all.end, f.begin + program->plan->packing.fill_elems);
        status = sherdi_weights_put(&f);
    }
    program->progress->flags = before;
    return status;
}
