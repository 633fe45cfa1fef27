/* The gradients of a window: where they are made, the operations when the gradient of a unit is
 * complete, and those at the end of the window.
 *
 *   stage 0, 1     made whole in the gradient arena, reduced at the end of the window; with several
 *                  micro-batches made in the transient pool and added to a whole accumulator
 *   stage 2, 3     made in the transient pool, reduced to the slice at the last planned use;
 *                  those of offloaded state by way of a staging buffer (program_staged.c)
 *   deterministic  as stages 2 and 3, at any stage, with slices of 64-bit integers
 *
 * An open-ended unit (SHERD_USES_ANY) has no last planned use. The end of the micro-batch completes
 * its gradient, after the ranks have agreed which of these units have one.
 *
 * `runs` of a unit counts the micro-batches of the window that brought a gradient. The first one
 * overwrites the old values, the later ones add to it. */
#include "engine/program/offload.h"
#include "engine/program/program_walk.h"

#include "engine/modules.h"

#include <stddef.h>

/* A segment's part of the gradient arena. */
static sherdi_range kept_gradient(const sherdi_plan *plan, const sherdi_segment *segment)
{
    size_t elems = plan->layout.has_slices ? segment->slice_elems : segment->padded_elems;

    return sherdi_range_of(SHERDI_BUFFER_GRADS, segment->grad_offset,
                           elems * sherdi_grad_bytes(plan, segment));
}

sherdi_range sherdi_program_micro_gradient(const sherdi_plan *plan, const sherdi_segment *segment)
{
    if (!plan->layout.has_transient) {
        return kept_gradient(plan, segment);
    }
    if (segment->padded_elems == 0) { /* the unit may have no offset in the pool */
        return sherdi_range_of(SHERDI_BUFFER_TRANSIENT, 0, 0);
    }
    return sherdi_range_of(SHERDI_BUFFER_TRANSIENT,
                           plan->layout.units[segment->unit].transient_pool_offset +
                               segment->transient_offset,
                           segment->padded_elems * sherdi_compute_bytes(segment));
}

sherdi_range sherdi_program_gradient(const sherdi_plan *plan, const sherdi_block *block)
{
    size_t bytes = block->elems * sherdi_grad_bytes(plan, sherdi_block_segment(plan, block));

    return sherdi_is_on_device(block->grad_space)
               ? sherdi_range_of(SHERDI_BUFFER_GRADS, block->grad_offset, bytes)
               : sherdi_program_offload()->gradient_at(plan, block, bytes);
}

/* ------------------------------------------------------------------- begin -- */

static int transients_overlap(const sherdi_plan_unit *a, const sherdi_plan_unit *b)
{
    return a->transient_pool_offset < b->transient_pool_offset + b->transient_bytes &&
           b->transient_pool_offset < a->transient_pool_offset + a->transient_bytes;
}

static sherd_status gradient_has_no_room(const sherdi_program *program, int unit, int holder)
{
    const char              *name  = sherdi_program_name(program, unit);
    const char              *other = sherdi_program_name(program, holder);
    const sherdi_unit_state *state = sherdi_program_unit(program, holder);

    if (state->held_backward > 0) {
        return sherdi_program_fail_held(program, unit, holder, "for its gradient");
    }
    if (program->plan->layout.units[holder].is_open_ended || state->is_complete) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "unit %s has no room for its gradient: the plan gives it the memory of "
                           "unit %s, whose gradient stays until sherd_step (%s); acquire units in "
                           "the declared order, or declare the order with sherd_pass_add",
                           name, other, state->is_complete ? "retain_grads" : "SHERD_USES_ANY");
    }
    return sherdi_fail(
        SHERD_E_NOMEM,
        "unit %s has no room for its gradient: the plan gives it the memory of unit %s, and unit "
        "%s still expects %d of its %d uses; acquire units in the declared order, or declare the "
        "order with sherd_pass_add and sherd_unit_reads",
        name, other, other, state->uses_left, program->plan->layout.units[holder].backward_uses);
}

int sherdi_program_has_gradient(const sherdi_program *program, int unit)
{
    const sherdi_unit_state *state = sherdi_program_unit(program, unit);

    return state->has_gradient ||
           (state->is_complete && program->plan->layout.units[unit].retains_grads);
}

sherd_status sherdi_program_gradient_check(const sherdi_program *program, int unit)
{
    const sherdi_plan_unit *info = &program->plan->layout.units[unit];

    if (sherdi_program_unit(program, unit)->has_gradient || info->transient_bytes == 0) {
        return SHERD_OK;
    }
    for (size_t u = 0; u < program->plan->layout.num_units; u++) {
        if ((int)u != unit && sherdi_program_has_gradient(program, (int)u) &&
            program->plan->layout.units[u].transient_bytes > 0 &&
            transients_overlap(info, &program->plan->layout.units[u])) {
            return gradient_has_no_room(program, unit, (int)u);
        }
    }
    return SHERD_OK;
}

static sherd_status zero_emit(const sherdi_program *program, const sherdi_segment *segment,
                              sherdi_range range)
{
    return sherdi_program_make(
        program, sherdi_op_of_segment(program->plan, SHERDI_OP_ZERO, SHERDI_LANE_COMPUTE, segment),
        range);
}

sherd_status sherdi_program_gradient_begin(const sherdi_program *program, int unit)
{
    const sherdi_plan *plan    = program->plan;
    int                has_any = 0;

    if (sherdi_program_unit(program, unit)->has_gradient) {
        return SHERD_OK;
    }
    SHERDI_TRY(SHERDI_IF_OFFLOAD(await(program, SHERDI_POST_WALK, -1))); /* it reads gradients */
    for (size_t s = 0; s < plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(plan, unit, s);

        if (segment->has_gradient) {
            has_any = 1;
            SHERDI_TRY(zero_emit(program, segment, sherdi_program_micro_gradient(plan, segment)));
        }
    }
    SHERDI_TRY(sherdi_modules_gradient_begun(program, unit));
    sherdi_program_unit(program, unit)->has_gradient = has_any;
    return SHERD_OK;
}

/* ----------------------------------------------------------------- complete -- */

sherd_status sherdi_program_add(const sherdi_program *program, sherdi_op op, int is_first,
                                sherdi_range sum, sherd_dtype sum_dtype, sherdi_range addend,
                                sherd_dtype addend_dtype)
{
    op.kind  = is_first ? SHERDI_OP_CAST : SHERDI_OP_ACCUMULATE;
    op.from  = addend_dtype;
    op.to    = sum_dtype;
    op.elems = addend.bytes / sherd_dtype_bytes(addend_dtype);
    sherdi_op_use(&op, SHERDI_USE_DST, is_first ? SHERDI_WRITES : SHERDI_ADDS, sum);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, addend);
    return sherdi_program_emit(program, &op);
}

/* Gives the gradient in the type that is sent: where it is, or cast into the staging buffer. */
static sherd_status wire_gradient(const sherdi_program *program, const sherdi_segment *segment,
                                  sherdi_range gradient, sherd_dtype made_in, sherdi_range *out)
{
    sherd_dtype wire = segment->types.wire;
    sherdi_op   op =
        sherdi_op_of_segment(program->plan, SHERDI_OP_CAST, SHERDI_LANE_COMPUTE, segment);

    *out = gradient;
    if (wire == made_in) {
        return SHERD_OK;
    }
    *out =
        sherdi_range_of(SHERDI_BUFFER_STAGING, 0, segment->padded_elems * sherd_dtype_bytes(wire));
    return sherdi_program_add(program, op, 1, *out, wire, gradient, made_in);
}

static sherdi_op reduce_of(const sherdi_plan *plan, const sherdi_segment *segment)
{
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_REDUCE, SHERDI_LANE_WIRE, segment);

    op.from  = segment->types.wire;
    op.to    = segment->types.grad;
    op.flags = SHERDI_OP_MEETS;
    return op;
}

sherd_status sherdi_program_scatter(const sherdi_program *program, const sherdi_segment *segment,
                                    sherdi_range dst, sherd_dtype dst_dtype, int adds)
{
    const sherdi_plan *plan = program->plan;
    sherdi_op          op   = reduce_of(plan, segment);
    sherdi_range       send;

    SHERDI_TRY(wire_gradient(program, segment, sherdi_program_micro_gradient(plan, segment),
                             segment->types.compute, &send));
    send.is_all_ranks = 1;
    op.to             = dst_dtype;
    op.flags |= adds ? SHERDI_OP_ADDS : 0;
    sherdi_op_use(&op, SHERDI_USE_DST, adds ? SHERDI_ADDS : SHERDI_WRITES, dst);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, send);
    if (plan->layout.is_deterministic) {
        sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                      sherdi_range_of(SHERDI_BUFFER_SCALARS, offsetof(sherdi_scalars_head, counts),
                                      sizeof(sherdi_fixed_counts)));
    }
    return sherdi_program_emit(program, &op);
}

/* ------------------------------------------------------------ of a micro-batch -- */

static sherd_status segment_complete(const sherdi_program *program, const sherdi_segment *segment)
{
    const sherdi_plan *plan     = program->plan;
    int                is_first = sherdi_program_unit(program, segment->unit)->uses.runs == 0;
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_CAST, SHERDI_LANE_COMPUTE, segment);

    if (segment->is_staged) {
        return sherdi_program_offload()->slice_reduce(program, segment, is_first);
    }
    if (plan->layout.has_slices) {
        return sherdi_program_scatter(program, segment, kept_gradient(plan, segment),
                                      segment->types.grad, !is_first);
    }
    if (plan->layout.has_accumulator) { /* the window's end reduces the sum */
        return sherdi_program_add(program, op, is_first, kept_gradient(plan, segment),
                                  segment->types.grad, sherdi_program_micro_gradient(plan, segment),
                                  segment->types.compute);
    }
    return SHERD_OK;
}

/* Nobody writes or reads a transient gradient any more. */
static sherd_status gradient_end(const sherdi_program *program, int unit)
{
    const sherdi_plan_unit *info = &program->plan->layout.units[unit];

    return sherdi_modules_range_left(program, unit,
                                     &(sherdi_range){.where  = SHERDI_BUFFER_TRANSIENT,
                                                     .offset = info->transient_pool_offset,
                                                     .bytes  = info->transient_bytes});
}

sherd_status sherdi_program_gradient_complete(const sherdi_program *program, int unit)
{
    const sherdi_plan *plan  = program->plan;
    sherdi_unit_state *state = sherdi_program_unit(program, unit);

    SHERDI_TRY(sherdi_modules_gradient_completing(program, unit));
    for (size_t s = 0; s < plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(plan, unit, s);

        if (segment->has_gradient) {
            SHERDI_TRY(segment_complete(program, segment));
        }
    }
    if (!plan->layout.units[unit].retains_grads) {
        SHERDI_TRY(gradient_end(program, unit));
    }
    state->is_measured  = program->progress->is_last;
    state->has_gradient = 0;
    state->is_complete  = 1;
    state->uses.runs++;
    return sherdi_modules_gradient_completed(program, unit);
}

sherd_status sherdi_program_micro_batch_end(const sherdi_program *program)
{
    const sherdi_sequence *train = &program->plan->schedule.train;

    sherdi_modules_micro_batch_over(program);
    for (size_t p = 0; p < train->num_steps; p++) {
        if (train->steps[p].pass == SHERD_BACKWARD &&
            sherdi_program_unit(program, train->steps[p].unit)->has_gradient) {
            SHERDI_TRY(sherdi_program_gradient_complete(program, train->steps[p].unit));
        }
    }
    for (size_t u = 0; u < program->plan->layout.num_units;
         u++) { /* also units that no pass lists */
        sherdi_unit_state *state = sherdi_program_unit(program, (int)u);

        if (state->has_gradient) {
            SHERDI_TRY(sherdi_program_gradient_complete(program, (int)u));
        }
        if (sherdi_program_has_gradient(program, (int)u)) { /* it was retained */
            SHERDI_TRY(gradient_end(program, (int)u));
        }
        state->is_complete = 0;
        state->uses_left   = program->plan->layout.units[u].backward_uses;
    }
    program->progress->train.next = 0;
    return SHERD_OK;
}

/* ---------------------------------------------------------------- of a window -- */

/* Whether the gradient is the sum already: one rank, the same type, no weights. A reduction could only
 * change which NaN a NaN is, and neither the norm nor the update depends on that. */
static int is_reduced(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return sherdi_plan_all_ranks(plan) == 1 && segment->types.wire == segment->types.grad &&
           segment->types.comm == segment->types.grad && plan->settings.batch.most_weight == 0;
}

/* Stage 1: reduces to this rank's slice. If it is done in place, only the other ranks' slices are
 * sent. */
static sherd_status late_scatter(const sherdi_program *program, const sherdi_segment *segment,
                                 sherdi_range kept, sherdi_range send)
{
    const sherdi_plan *plan  = program->plan;
    sherdi_op          op    = reduce_of(plan, segment);
    size_t             slice = kept.bytes / (size_t)plan->world_size;
    sherdi_range own = sherdi_range_of(kept.where, kept.offset + (size_t)plan->rank * slice, slice);
    sherdi_range behind = send;

    if (send.where == kept.where) {
        send.bytes          = (size_t)plan->rank * slice;
        behind.offset       = own.offset + slice;
        behind.bytes        = kept.offset + kept.bytes - behind.offset;
        behind.is_all_ranks = 1;
        sherdi_op_use(&op, SHERDI_USE_BEHIND, SHERDI_READS, behind);
    }
    send.is_all_ranks = 1;
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_ADDS, own);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, send);
    return sherdi_program_emit(program, &op);
}

/* Stages 0 and 1: reduces the whole gradient, or the sum of the window, over the ranks. */
static sherd_status segment_reduce_late(const sherdi_program *program,
                                        const sherdi_segment *segment)
{
    const sherdi_plan *plan = program->plan;
    sherdi_range       kept = kept_gradient(plan, segment);
    sherdi_op          op   = reduce_of(plan, segment);
    sherdi_op    cast = sherdi_op_of_segment(plan, SHERDI_OP_CAST, SHERDI_LANE_COMPUTE, segment);
    sherdi_range send;

    SHERDI_TRY(wire_gradient(program, segment, kept, segment->types.grad, &send));
    if (plan->layout.is_sliced) {
        return late_scatter(program, segment, kept, send);
    }
    op.kind = SHERDI_OP_ALL_REDUCE;
    op.to   = segment->types.wire;
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_ADDS, send);
    SHERDI_TRY(sherdi_program_emit(program, &op));
    if (send.where == kept.where) {
        return SHERD_OK;
    }
    return sherdi_program_add(program, cast, 1, kept, segment->types.grad, send,
                              segment->types.wire);
}

static sherd_status segment_zero(const sherdi_program *program, const sherdi_segment *segment)
{
    return segment->is_staged ? sherdi_program_offload()->slice_zero(program, segment)
                              : zero_emit(program, segment, kept_gradient(program->plan, segment));
}

sherd_status sherdi_program_window_end(const sherdi_program *program)
{
    const sherdi_plan *plan = program->plan;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        if (!segment->has_gradient) {
            continue;
        }
        if (sherdi_program_unit(program, segment->unit)->uses.runs == 0) { /* on no rank */
            SHERDI_TRY(segment_zero(program, segment));
        } else if (!plan->layout.has_slices && !is_reduced(plan, segment)) {
            SHERDI_TRY(segment_reduce_late(program, segment));
        }
    }
    SHERDI_TRY(SHERDI_IF_OFFLOAD(window_end(program)));
    return sherdi_modules_window_reduced(program);
}

sherd_status sherdi_program_window_begin(const sherdi_program *program)
{
    sherdi_progress *progress = program->progress;

    sherdi_modules_micro_batch_over(program);
    for (size_t u = 0; u < program->plan->layout.num_units; u++) {
        sherdi_unit_state *state = &progress->units[u];

        state->has_gradient = 0;
        state->is_complete  = 0;
        state->is_measured  = 0;
        state->is_across    = 0;
        state->uses_left    = program->plan->layout.units[u].backward_uses;
        state->uses         = (sherdi_unit_uses){0};
    }
    progress->train.next = 0;
    SHERDI_TELL_OFFLOAD(window_begin(progress));
    return sherdi_program_clear(program, SHERDI_LANE_COMPUTE, offsetof(sherdi_scalars_head, norm),
                                sizeof(sherdi_norm_acc) + sizeof(sherdi_fixed_counts));
}
