/* First values of parameters, in fp32: they are written to the space where they rest, the master
 * weights and the parameter in its own type. A parameter passes through the fill buffer, a portion
 * at a time. Parameters come in any order. program_values.c uses the same ranges for values of any
 * part, which it also reads. */
#include "engine/program/program_values.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/program/offload.h"
#include "engine/program/program_walk.h"

/* -------------------------------------------------------------------- cuts -- */

sherdi_cuts sherdi_cuts_of(size_t first, size_t count, size_t grain, size_t begin, size_t end)
{
    return (sherdi_cuts){.first = first,
                         .limit = first + count,
                         .grain = grain,
                         .last  = sherdi_min_size(end, first + count),
                         .end   = sherdi_max_size(begin, first)};
}

sherdi_cuts sherdi_cuts_of_blocks(const sherdi_plan *plan, const sherdi_segment *segment,
                                  size_t begin, size_t end)
{
    if (segment->num_blocks == 0) {
        return (sherdi_cuts){0};
    }
    return sherdi_cuts_of(segment->own_first, segment->own_elems,
                          plan->layout.blocks[segment->first_block].elems, begin, end);
}

int sherdi_cuts_next(sherdi_cuts *c)
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

/* --------------------------------------------------------------- ranges -- */

sherdi_op sherdi_value_op(const sherdi_value_range *s, sherdi_op_kind kind, sherdi_lane_id lane)
{
    sherdi_op op = sherdi_op_of_segment(s->program->plan, kind, lane, s->segment);

    op.param = (int)s->param;
    op.part  = s->part;
    op.space = SHERDI_SPACE_HOST;
    return op;
}

/* The part of the range that lies in [first, first + count). */
static sherdi_value_range range_within(const sherdi_value_range *s, size_t first, size_t count)
{
    sherdi_value_range within = *s;

    within.begin = sherdi_max_size(s->begin, first);
    within.end   = sherdi_max_size(within.begin, sherdi_min_size(s->end, first + count));
    return within;
}

sherdi_value_range sherdi_values_owned_range(const sherdi_value_range *s)
{
    return range_within(s, s->segment->own_first, s->segment->own_elems);
}

sherdi_value_range sherdi_values_slice_range(const sherdi_value_range *s)
{
    return range_within(s, s->segment->slice_first, s->segment->slice_elems);
}

/* ------------------------------------------------------------------- values -- */

/* The number in the model of the element at `at` of the segment's whole. */
static uint64_t element_index(const sherdi_value_range *f, size_t at)
{
    return f->program->model->params[f->param].first_index +
           (at - f->program->plan->layout.params[f->param].offset_elems);
}

sherdi_range sherdi_values_at(const sherdi_value_range *f, size_t begin, size_t end)
{
    return sherdi_range_of(SHERDI_BUFFER_FILL, (begin - f->begin) * sizeof(float),
                           (end - begin) * sizeof(float));
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

sherd_status sherdi_values_cast(const sherdi_value_range *f, size_t begin, size_t end,
                                sherdi_space space, sherd_dtype dtype, sherdi_range at)
{
    const sherdi_plan *plan     = f->program->plan;
    int                is_apart = space_is_apart(f, space);
    sherdi_op          op       = sherdi_value_op(f, SHERDI_OP_CAST, SHERDI_LANE_HOST);
    sherdi_range       values   = sherdi_values_at(f, begin, end);
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
        SHERDI_TRY(sherdi_values_copy(f, space, at, near));
    }
    SHERDI_TRY(f->is_put ? sherdi_program_move(f->program, op, near, values)
                         : sherdi_program_move(f->program, op, values, near));
    return is_apart && f->is_put ? sherdi_values_copy(f, space, at, near) : SHERD_OK;
}

int sherdi_values_are_counted(const sherdi_value_range *f)
{
    return f->segment->kind == SHERDI_SEGMENT_FROZEN || f->program->plan->has_generations;
}

sherd_status sherdi_values_count(const sherdi_value_range *f)
{
    const sherdi_plan *plan = f->program->plan;
    sherdi_value_range own  = f->segment->kind == SHERDI_SEGMENT_FROZEN
                                  ? sherdi_values_slice_range(f)
                                  : sherdi_values_owned_range(f);
    sherdi_op          op   = sherdi_value_op(f, SHERDI_OP_FINGERPRINT, SHERDI_LANE_HOST);

    if (own.begin >= own.end) {
        return SHERD_OK;
    }
    op.elems = own.end - own.begin;
    op.index = element_index(f, own.begin);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, sherdi_values_at(f, own.begin, own.end));
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                  sherdi_fingerprint_at(plan, SHERDI_SPACE_HOST));
    return sherdi_program_emit(f->program, &op);
}

/* ------------------------------------------------------------------- spaces -- */

sherd_status sherdi_values_block_move(const sherdi_value_range *f, const sherdi_block *block,
                                      const sherdi_cuts *c, sherdi_range state, sherdi_range half)
{
    if (sherdi_segment_part_is_encoded(f->segment, f->part)) {
        return sherdi_modules_encoded_move(f, block, c, &state, &half);
    }
    state.offset +=
        sherdi_plan_part_offset(f->program->plan, block, f->part, (c->begin - c->first) % c->grain);
    return sherdi_values_copy(f, block->space, state, sherdi_values_at(f, c->begin, c->end));
}

sherd_status sherdi_values_state_move(const sherdi_value_range *f)
{
    const sherdi_plan *plan = f->program->plan;

    for (sherdi_cuts c = sherdi_cuts_of_blocks(plan, f->segment, f->begin, f->end);
         sherdi_cuts_next(&c);) {
        const sherdi_block *block = &plan->layout.blocks[f->segment->first_block + c.index];

        SHERDI_TRY(
            block->space == SHERDI_SPACE_STORAGE
                ? sherdi_program_offload()->block_move(f, block, &c)
                : sherdi_values_block_move(f, block, &c, sherdi_state_at(plan, block),
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
    return sherdi_values_cast(f, f->begin, f->end, SHERDI_SPACE_DEVICE, dtype,
                              sherdi_range_of(SHERDI_BUFFER_PARAMS,
                                              segment->param_offset + (f->begin - first) * elem,
                                              0));
}

/* ------------------------------------------------------------------- parts -- */

sherd_status sherdi_values_call(const sherdi_value_range *f, sherdi_op_kind kind)
{
    sherdi_op op      = sherdi_value_op(f, kind, SHERDI_LANE_HOST);
    int       is_fill = kind == SHERDI_OP_FILL;

    op.elems = f->end - f->begin;
    op.index = element_index(f, f->begin);
    sherdi_op_use(&op, is_fill ? SHERDI_USE_DST : SHERDI_USE_SRC,
                  is_fill ? SHERDI_WRITES : SHERDI_ADDS, sherdi_values_at(f, f->begin, f->end));
    return sherdi_program_emit(f->program, &op);
}

/* The parameter comes first: for a split master, its half counts. */
sherd_status sherdi_weights_put(sherdi_value_range *f)
{
    sherdi_value_range master;
    sherdi_value_range copies;

    f->is_put = 0;
    SHERDI_TRY(f->is_kept ? sherdi_values_param_move(f) : sherdi_values_call(f, SHERDI_OP_FILL));
    f->is_put      = 1;
    master         = *f;
    master.part    = 0;
    copies         = *f;
    copies.is_last = 1; /* it is the only part there */
    SHERDI_TRY(f->is_kept ? SHERD_OK : sherdi_values_param_move(&copies));
    SHERDI_TRY(f->segment->has_master ? sherdi_values_state_move(&master) : SHERD_OK);
    return sherdi_values_are_counted(f) ? sherdi_values_count(f) : SHERD_OK;
}

static sherd_status weights_fill(sherdi_value_range *f, unsigned parts)
{
    f->part = parts == SHERDI_VALUES_COMPUTE ? SHERDI_VALUE_COMPUTE : 0;
    return sherdi_weights_put(f);
}

/* ------------------------------------------------------------------- events -- */

/* Walks over this rank's part of a range, in portions of the fill buffer. */
static sherd_status portions_run(const sherdi_program *program, const sherdi_values *values,
                                 sherdi_border_fn border, sherdi_values_fn run)
{
    const sherdi_plan *plan  = program->plan;
    size_t             start = plan->layout.params[values->param].offset_elems;
    sherdi_value_range f     = {.program = program,
                                .segment = sherdi_param_segment(plan, values->param),
                                .param   = values->param,
                                .is_kept = values->is_kept,
                                .is_last = 1};
    size_t             at;
    size_t             end;

    sherdi_plan_held(plan, values->param, program->model->params[values->param].elems, &at, &end);
    f.param_end = start + end;
    at          = start + sherdi_max_size(at, values->first);
    end         = start + sherdi_min_size(end, values->first + values->count);
    for (; at < end; at = f.end) {
        f.begin = at;
        f.end   = sherdi_min_size(end, at + plan->packing.fill_elems);
        f.end   = border == NULL ? f.end : border(&f, values->parts, end);
        SHERDI_TRY(run(&f, values->parts));
    }
    return SHERD_OK;
}

sherd_status sherdi_values_run(const sherdi_program *program, const sherdi_values *values,
                               sherdi_border_fn border, sherdi_values_fn run)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status status = portions_run(program, values, border, run);

    program->progress->flags = before;
    return status;
}

sherd_status sherdi_program_fill(const sherdi_program *program, size_t param, int is_given)
{
    const sherdi_model_param *info = &program->model->params[param];

    return sherdi_values_run(
        program,
        &(sherdi_values){.param   = param,
                         .count   = info->elems,
                         .parts   = info->is_frozen ? SHERDI_VALUES_COMPUTE : SHERDI_VALUES_MASTER,
                         .is_kept = !is_given},
        NULL, weights_fill);
}
