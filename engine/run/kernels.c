/* The kernels of the executor (kernels.h): what an operation that is queued on a lane does to the
 * ranges that it names. */
#include "engine/run/kernels.h"

#include "base/checked.h"
#include "engine/run/optimizer.h"
#include "engine/run/scalars.h"

#include <assert.h>
#include <string.h>

void *sherdi_run_address(const sherd_engine *engine, const sherdi_op *op, int role)
{
    const sherdi_range *range = &op->uses[role];

    switch (range->where) {
    case SHERDI_AT_NOWHERE:
        return NULL;
    case SHERDI_AT_TRAINER_DATA:
        return (unsigned char *)engine->model.params[op->param].bound_data +
               (range->offset -
                sherdi_trainer_offset(engine->plan, &engine->model, (size_t)op->param));
    case SHERDI_AT_TRAINER_GRAD:
        return engine->model.params[op->param].bound_grad;
    default:
        assert(range->where < SHERDI_BUFFERS &&
               range->offset + range->bytes <= engine->plan->packing.buffers[range->where].bytes);
        return engine->memory.buffers[range->where] + range->offset;
    }
}

const char *sherdi_run_subject(const sherd_engine *engine, const sherdi_op *op)
{
    return op->unit < 0 ? NULL : engine->model.units[op->unit].name;
}

static void op_zero(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->zero(lane, sherdi_run_address(engine, op, SHERDI_USE_DST),
                        op->uses[SHERDI_USE_DST].bytes);
}

static void op_copy(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->copy(lane, sherdi_run_address(engine, op, SHERDI_USE_DST),
                        sherdi_run_address(engine, op, SHERDI_USE_SRC),
                        op->uses[SHERDI_USE_DST].bytes);
}

static void op_cast(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->cast(lane, sherdi_run_address(engine, op, SHERDI_USE_DST), op->to,
                        sherdi_run_address(engine, op, SHERDI_USE_SRC), op->from, op->elems);
}

static void op_accumulate(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->accumulate(lane, sherdi_run_address(engine, op, SHERDI_USE_DST), op->to,
                              sherdi_run_address(engine, op, SHERDI_USE_SRC), op->from, op->elems);
}

static void op_norm(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->sumsq(lane, sherdi_run_address(engine, op, SHERDI_USE_SRC), op->from, op->elems,
                         &sherdi_space_scalars(engine, op->space)->head->norm);
}

/* Sums the fingerprint of a block; of consecutive elements, if the operation has no block. */
static void op_fingerprint(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_scalars *scalars = sherdi_space_scalars(engine, op->space);
    const sherdi_span     run     = {.count_elems = op->elems, .first_index = op->index};

    lane->kernels->fingerprint(
        lane, op->block == NULL ? &run : scalars->spans + op->block->first_span,
        op->block == NULL ? 1 : op->block->num_spans,
        sherdi_run_address(engine, op, SHERDI_USE_SRC), &scalars->head->fingerprint);
}

/* The arguments of an update of a block. The master lies with the other parts of the state, or is
 * the parameter itself. */
static sherdi_update_args update_args(const sherd_engine *engine, const sherdi_op *op)
{
    const sherdi_scalars        *scalars = sherdi_space_scalars(engine, op->space);
    unsigned char               *state   = sherdi_run_address(engine, op, SHERDI_USE_STATE);
    unsigned char               *param   = sherdi_run_address(engine, op, SHERDI_USE_PARAM);
    const sherdi_segment        *segment = &engine->plan->layout.segments[op->segment];
    const sherdi_plan_optimizer *own  = sherdi_plan_optimizer_of(engine->plan, segment->optimizer);
    sherdi_update_args           args = {
                  .coeffs      = scalars->memory + own->coeffs,
                  .grad        = sherdi_run_address(engine, op, SHERDI_USE_SRC),
                  .grad_dtype  = segment->types.grad,
                  .parts       = {(void *)(segment->has_master ? state : param)},
                  .ties_part   = segment->ties_part,
                  .step        = (uint64_t)engine->run.coeffs.step,
                  .param       = segment->has_master ? param : NULL,
                  .param_dtype = segment->types.compute,
                  .fingerprint = &scalars->head->fingerprint,
    };

    if (sherdi_segment_is_measured(segment)) {
        args.norms  = (void *)(scalars->memory + own->norms);
        args.ratios = (void *)(scalars->memory + own->ratios);
    }
    memcpy(args.encodings, segment->encodings, sizeof(args.encodings));
    for (int i = 1; i < sherdi_segment_parts(segment); i++) {
        args.parts[i] = (void *)(state + sherdi_plan_part_offset(engine->plan, op->block, i, 0));
    }
    return args;
}

void sherdi_run_update(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                       const sherdi_span *spans, size_t num_spans)
{
    sherdi_update_args args = update_args(engine, op);

    args.spans     = spans;
    args.num_spans = num_spans;
    engine->plan->layout.segments[op->segment].optimizer->sweeps[op->sweep].run(
        lane, &args, sherdi_run_address(engine, op, SHERDI_USE_DST));
}

static void op_update(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_run_update(engine, lane, op,
                      sherdi_space_scalars(engine, op->space)->spans + op->block->first_span,
                      op->block->num_spans);
}

static void op_clear(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_range   *range = &op->uses[SHERDI_USE_DST];
    const sherdi_scalars *side  = range->where == SHERDI_BUFFER_SCALARS
                                      ? &engine->kernel_data.device
                                      : &engine->kernel_data.on_host;

    lane->device->fill(lane, side->memory + range->offset, 0, range->bytes);
}

static const sherdi_kernel_fn KERNELS[SHERDI_OP_KINDS] = {
    [SHERDI_OP_ZERO]        = op_zero,
    [SHERDI_OP_COPY]        = op_copy,
    [SHERDI_OP_CAST]        = op_cast,
    [SHERDI_OP_ACCUMULATE]  = op_accumulate,
    [SHERDI_OP_NORM]        = op_norm,
    [SHERDI_OP_UPDATE]      = op_update,
    [SHERDI_OP_FINGERPRINT] = op_fingerprint,
    [SHERDI_OP_CLEAR]       = op_clear,
    [SHERDI_OP_COEFFS]      = sherdi_kernel_coeffs,
    [SHERDI_OP_COLLECT]     = sherdi_kernel_collect,
#define SHERDI_KERNEL(kind, kernel) [SHERDI_OP_##kind] = (kernel),
#include "engine/run/kernel_list.h"
#undef SHERDI_KERNEL
};

void sherdi_run_kernel(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
#define SHERDI_INSTEAD(condition, kernel)                                                          \
    if (condition) {                                                                               \
        kernel(engine, lane, op);                                                                  \
        return;                                                                                    \
    }
#include "engine/run/instead_list.h"
#undef SHERDI_INSTEAD
    KERNELS[op->kind](engine, lane, op);
}
