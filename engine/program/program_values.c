/* Values of a parameter and of its state, any range of them, in fp32: values of a caller are
 * written to the space where they rest, and values for a caller are read from it. Written master
 * weights are also written, in the compute type, to the space where the parameter rests. First
 * values are a whole parameter.
 *
 * A range passes through the fill buffer, a portion at a time. With several parts each portion lies
 * in one block, and all its parts are moved before the next portion comes: so the block's extent is
 * needed only once. Parameters come in any order. */
#include "engine/program/program_values.h"

#include "base/checked.h"
#include "engine/program/offload.h"
#include "engine/program/program_walk.h"

#include <stddef.h>

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
    size_t first;
    size_t owned = sherdi_plan_owned(plan, segment, &first);

    if (segment->num_blocks == 0) {
        return (sherdi_cuts){0};
    }
    return sherdi_cuts_of(first, owned, plan->layout.blocks[segment->first_block].elems, begin,
                          end);
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

/* The part that lies in the elements that this rank updates. */
static sherdi_value_range range_owned(const sherdi_value_range *s)
{
    size_t first;
    size_t owned = sherdi_plan_owned(s->program->plan, s->segment, &first);

    return range_within(s, first, owned);
}

/* The part that lies in this rank's slice. */
static sherdi_value_range range_slice(const sherdi_value_range *s)
{
    size_t slice = s->segment->slice_elems;

    return range_within(s, (size_t)s->program->plan->rank * slice, slice);
}

/* ------------------------------------------------------------------- values -- */

/* The number in the model of the element at `at` of the segment's whole. */
static uint64_t element_index(const sherdi_value_range *f, size_t at)
{
    return f->program->model->params[f->param].first_index +
           (at - f->program->plan->layout.params[f->param].offset_elems);
}

static sherdi_range values_at(const sherdi_value_range *f, size_t begin, size_t end)
{
    return sherdi_range_of(SHERDI_BUFFER_FILL, (begin - f->begin) * sizeof(float),
                           (end - begin) * sizeof(float));
}

static int space_is_apart(const sherdi_value_range *f, sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE && f->program->plan->machine.has_device;
}

/* The lane whose copies and kernels reach both the space and the fill buffer. */
static sherdi_lane_id lane_of_space(const sherdi_value_range *f, sherdi_space space)
{
    return space_is_apart(f, space) ? SHERDI_LANE_COMPUTE : SHERDI_LANE_HOST;
}

/* Copies to memory of a space, or from it. */
static sherd_status bytes_move(const sherdi_value_range *f, sherdi_space space, sherdi_range at,
                               sherdi_range buffer)
{
    sherdi_op op = sherdi_value_op(f, SHERDI_OP_COPY, lane_of_space(f, space));

    at.bytes = buffer.bytes;
    return f->is_put ? sherdi_program_move(f->program, op, at, buffer)
                     : sherdi_program_move(f->program, op, buffer, at);
}

/* The same with a cast. The host's kernels reach everything except a device's memory. */
sherd_status sherdi_values_cast(const sherdi_value_range *f, size_t begin, size_t end,
                                sherdi_space space, sherd_dtype dtype, sherdi_range at)
{
    const sherdi_plan *plan     = f->program->plan;
    int                is_apart = space_is_apart(f, space);
    sherdi_op          op       = sherdi_value_op(f, SHERDI_OP_CAST, SHERDI_LANE_HOST);
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
static int is_counted(const sherdi_value_range *f)
{
    return f->segment->kind == SHERDI_SEGMENT_FROZEN ||
           sherdi_plan_has_generations(f->program->plan);
}

/* Adds the values to this rank's share of the fingerprint: of a frozen parameter those in its
 * slice, else those that it updates. */
static sherd_status values_count(const sherdi_value_range *f)
{
    const sherdi_plan *plan = f->program->plan;
    sherdi_value_range own =
        f->segment->kind == SHERDI_SEGMENT_FROZEN ? range_slice(f) : range_owned(f);
    sherdi_op op = sherdi_value_op(f, SHERDI_OP_FINGERPRINT, SHERDI_LANE_HOST);

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

int sherdi_values_are_all(const sherdi_value_range *f, const sherdi_cuts *c)
{
    return f->is_last && (c->end == f->param_end || c->end == c->border);
}

/* Moves a part that is not stored as fp32. Putting a split master sets the parameter too. */
static sherd_status encoded_move(const sherdi_value_range *f, const sherdi_block *block,
                                 const sherdi_cuts *c, sherdi_range state, sherdi_range half)
{
    sherdi_op     op     = sherdi_value_op(f, f->is_put ? SHERDI_OP_ENCODE : SHERDI_OP_DECODE,
                                           lane_of_space(f, block->space));
    sherdi_access access = f->is_put ? SHERDI_ADDS : SHERDI_READS;

    op.block = block;
    op.elems = c->end - c->begin;
    op.index = (c->begin - c->first) % c->grain;
    sherdi_op_use(&op, SHERDI_USE_STATE, access, state);
    if (f->part == 0 && sherdi_segment_is_beside(f->segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM, access, half);
    }
    sherdi_op_use(&op, f->is_put ? SHERDI_USE_SRC : SHERDI_USE_DST,
                  f->is_put ? SHERDI_READS : SHERDI_WRITES, values_at(f, c->begin, c->end));
    return sherdi_program_emit(f->program, &op);
}

sherd_status sherdi_values_block_move(const sherdi_value_range *f, const sherdi_block *block,
                                      const sherdi_cuts *c, sherdi_range state, sherdi_range half)
{
    size_t             first = (c->begin - c->first) % c->grain;
    sherdi_value_range rests = *f;

    if (!sherdi_segment_part_is_encoded(f->segment, f->part)) {
        state.offset += sherdi_plan_part_offset(f->program->plan, block, f->part, first);
        return bytes_move(f, block->space, state, values_at(f, c->begin, c->end));
    }
    SHERDI_TRY(encoded_move(f, block, c, state, half));
    if (!f->is_put || f->part != 0 || !is_counted(f)) {
        return SHERD_OK;
    }
    rests.is_put = 0; /* an encoding may have rounded the values, and what rests is what counts */
    return encoded_move(&rests, block, c, state, half);
}

/* Moves a part of the state; of master weights those that are separate from the parameter. */
static sherd_status state_move(const sherdi_value_range *f)
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

/* Moves the parameter where it rests. */
static sherd_status param_move(const sherdi_value_range *f)
{
    const sherdi_plan    *plan    = f->program->plan;
    const sherdi_segment *segment = f->segment;
    sherd_dtype           dtype   = segment->types.compute;
    size_t                elem    = sherd_dtype_bytes(dtype);
    size_t first = segment->is_resident ? 0 : (size_t)plan->rank * segment->slice_elems;

    if (segment->is_bound) {
        size_t at = sherdi_trainer_offset(plan, f->program->model, f->param) +
                    (f->begin - plan->layout.params[f->param].offset_elems) * elem;

        return sherdi_values_cast(f, f->begin, f->end, SHERDI_SPACE_DEVICE, dtype,
                                  sherdi_range_of(SHERDI_AT_TRAINER_DATA, at, 0));
    }
    if (!sherdi_is_on_device(segment->param_space)) {
        return sherdi_program_offload()->param_move(f);
    }
    return sherdi_values_cast(f, f->begin, f->end, SHERDI_SPACE_DEVICE, dtype,
                              sherdi_range_of(SHERDI_BUFFER_PARAMS,
                                              segment->param_offset + (f->begin - first) * elem,
                                              0));
}

/* Moves integers, which always lie on the device: widened as for the norm, as many at a time as the
 * staging buffer has room for. */
static sherd_status fixed_gradient_move(const sherdi_value_range *f)
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
static sherd_status gradient_move(const sherdi_value_range *f)
{
    const sherdi_plan *plan  = f->program->plan;
    sherd_dtype        dtype = f->segment->types.grad;

    if (plan->layout.is_deterministic) {
        return fixed_gradient_move(f);
    }
    for (sherdi_cuts c = sherdi_cuts_of_blocks(plan, f->segment, f->begin, f->end);
         sherdi_cuts_next(&c);) {
        const sherdi_block *block = &plan->layout.blocks[f->segment->first_block + c.index];
        sherdi_range        at    = sherdi_program_gradient(plan, block);

        at.offset += (c.begin - c.first) % c.grain * sherd_dtype_bytes(dtype);
        SHERDI_TRY(SHERDI_IF_OFFLOAD(gradient_read(f->program, block)));
        SHERDI_TRY(dtype == SHERD_F32
                       ? bytes_move(f, block->grad_space, at, values_at(f, c.begin, c.end))
                       : sherdi_values_cast(f, c.begin, c.end, block->grad_space, dtype, at));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- parts -- */

/* Lets the trainer, or another caller, give the values or receive them. */
static sherd_status values_call(const sherdi_value_range *f, sherdi_op_kind kind)
{
    sherdi_op op      = sherdi_value_op(f, kind, SHERDI_LANE_HOST);
    int       is_fill = kind == SHERDI_OP_FILL;

    op.elems = f->end - f->begin;
    op.index = element_index(f, f->begin);
    sherdi_op_use(&op, is_fill ? SHERDI_USE_DST : SHERDI_USE_SRC,
                  is_fill ? SHERDI_WRITES : SHERDI_ADDS, values_at(f, f->begin, f->end));
    return sherdi_program_emit(f->program, &op);
}

/* Puts weights that a caller gives, or that are in the trainer's own memory, to where they rest.
 * The parameter comes first: for a split master, its half counts. */
static sherd_status weights_put(sherdi_value_range *f, int is_given)
{
    sherdi_value_range master;
    sherdi_value_range copies;

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

static sherd_status part_put(sherdi_value_range *f)
{
    sherdi_value_range own = range_owned(f);

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

static sherd_status weights_fill(sherdi_value_range *f)
{
    return weights_put(f, 1);
}

static sherd_status weights_keep(sherdi_value_range *f)
{
    return weights_put(f, 0);
}

static sherd_status weights_look(sherdi_value_range *f)
{
    SHERDI_TRY(f->segment->has_master ? state_move(f) : param_move(f));
    return values_count(f);
}

/* This rank's range of a part: of the compute type all elements that rest on this rank, else the
 * elements that it updates. */
static sherdi_value_range range_had(const sherdi_value_range *f)
{
    if (f->part == SHERDI_VALUE_COMPUTE) {
        return *f;
    }
    return f->part == SHERDI_VALUE_GRADIENT && f->program->plan->layout.is_deterministic
               ? range_slice(f)
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
        SHERDI_TRY(param_move(&had));
    } else {
        SHERDI_TRY(state_move(&had));
    }
    return values_call(&had, SHERDI_OP_TAKE);
}

/* ------------------------------------------------------------------- events -- */

typedef sherd_status (*part_fn)(sherdi_value_range *f);

static sherd_status parts_run(const sherdi_value_range *f, unsigned parts, part_fn run)
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

/* With several parts, a portion ends where a block ends or begins. */
static size_t block_border(const sherdi_value_range *f)
{
    sherdi_cuts c = sherdi_cuts_of_blocks(f->program->plan, f->segment, f->begin, f->end);

    if (!sherdi_cuts_next(&c)) {
        return f->end;
    }
    return c.begin > f->begin ? c.begin : c.end;
}

/* A portion does not end inside a chunk of a parameter: a chunk may be encoded as a whole. */
static size_t chunk_border(const sherdi_value_range *f, size_t start, size_t end)
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
    sherdi_value_range f          = {.program = program,
                                     .segment =
                                         &plan->layout.segments[plan->layout.params[values->param].segment],
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
