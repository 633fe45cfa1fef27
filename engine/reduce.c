/* Gradients: where they are made, when a unit's is complete, how it is reduced and kept.
 *
 *   stage 0, 1   made whole in the gradient arena, reduced at the boundary; with several
 *                micro-batches made in the transient pool and added to a whole accumulator
 *   stage 2, 3   made in the transient pool, reduced to the slice at the last planned use
 *   deterministic, any stage: as stages 2 and 3, the slice being 64-bit integers
 *
 * `runs` of a unit counts the micro-batches of the window that brought a gradient: the first
 * overwrites what the arena held, the others add. */
#include "engine/engine_impl.h"

#include <math.h>
#include <stdio.h>

static const sherdi_segment *gradient_segment(const sherd_engine *engine, int unit, int kind)
{
    int index = engine->plan->units[unit].segments[kind];

    if (index < 0 || !engine->plan->segments[index].has_gradient) {
        return NULL;
    }
    return &engine->plan->segments[index];
}

static int unit_has_gradient_segment(const sherd_engine *engine, int unit)
{
    for (int kind = 0; kind < SHERDI_SEGMENT_KINDS; kind++) {
        if (gradient_segment(engine, unit, kind) != NULL) {
            return 1;
        }
    }
    return 0;
}

static unsigned char *arena_gradient(const sherd_engine *engine, const sherdi_segment *segment)
{
    return engine->buffers[SHERDI_BUFFER_GRADS] + segment->grad_offset;
}

unsigned char *sherdi_reduce_micro_gradient(sherd_engine *engine, const sherdi_segment *segment)
{
    const sherdi_region *region = sherdi_pool_region(&engine->transient_pool, segment->unit);

    if (!segment->has_gradient) {
        return NULL;
    }
    if (!engine->plan->has_transient) {
        return arena_gradient(engine, segment);
    }
    return engine->transient_pool.base + region->offset + segment->transient_offset;
}

sherd_status sherdi_reduce_check_open(const sherd_engine *engine, int unit)
{
    if (!engine->units[unit].is_complete) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_STATE,
        "unit %s: its gradient was complete after the %d backward use(s) that the plan "
        "knows; list every use with sherd_pass_add or sherd_unit_reads",
        engine->model.units[unit].name, engine->plan->units[unit].backward_uses);
}

static void bound_gradients_zero(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    for (size_t i = 0; i < info->num_params; i++) {
        const sherdi_model_param *param = &engine->model.params[info->params[i]];

        if (param->bound_grad != NULL) {
            engine->backend->kernels->zero(engine->backend, param->bound_grad,
                                           param->elems *
                                               sherd_dtype_bytes(engine->settings.compute_dtype));
        }
    }
}

static sherd_status gradient_has_no_place(const sherd_engine *engine, int unit, int holder)
{
    const char              *name  = engine->model.units[unit].name;
    const char              *other = engine->model.units[holder].name;
    const sherdi_unit_state *state = &engine->units[holder];

    if (engine->lost != SHERD_OK) { /* and keeps its place until the window is dropped */
        return sherdi_fail_relay(engine->lost, engine->lost_text);
    }
    if (state->held_backward > 0) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "unit %s: the plan has its gradient where that of unit %s is, which is "
                           "held; release %s before this acquire, or declare that both are held "
                           "together with sherd_pass_add_held",
                           name, other, other);
    }
    return sherdi_fail(
        SHERD_E_NOMEM,
        "unit %s: the plan has its gradient where that of unit %s is: the gradient of unit %s is "
        "open until %d more of its %d planned uses; go on in the declared order, or list the order "
        "with sherd_pass_add and sherd_unit_reads",
        name, other, other, state->uses_left, engine->plan->units[holder].backward_uses);
}

sherd_status sherdi_reduce_check_place(const sherd_engine *engine, int unit)
{
    const sherdi_plan_unit *info = &engine->plan->units[unit];
    int                     holder;

    if (engine->units[unit].has_gradient || info->transient_bytes == 0) {
        return SHERD_OK;
    }
    holder = sherdi_pool_holder(&engine->transient_pool, unit, info->transient_place,
                                info->transient_bytes);
    return holder < 0 ? SHERD_OK : gradient_has_no_place(engine, unit, holder);
}

sherd_status sherdi_reduce_begin(sherd_engine *engine, int unit)
{
    sherdi_unit_state      *state = &engine->units[unit];
    const sherdi_plan_unit *info  = &engine->plan->units[unit];
    size_t                  elem  = sherd_dtype_bytes(engine->settings.compute_dtype);

    if (state->has_gradient || !unit_has_gradient_segment(engine, unit)) {
        return SHERD_OK;
    }
    if (info->transient_bytes > 0) {
        sherdi_mark  wait = sherdi_mark_begin(&engine->marks, SHERDI_MARK_WAIT_REDUCE,
                                              engine->backend, engine->model.units[unit].name, 0);
        sherd_status status =
            sherdi_pool_place(&engine->transient_pool, engine->world, engine->backend, unit,
                              info->transient_place, info->transient_bytes);

        sherdi_mark_end(&engine->marks, engine->backend, &wait);
        SHERDI_TRY(status);
    }
    for (int kind = 0; kind < SHERDI_SEGMENT_KINDS; kind++) {
        const sherdi_segment *segment = gradient_segment(engine, unit, kind);

        if (segment != NULL) {
            engine->backend->kernels->zero(engine->backend,
                                           sherdi_reduce_micro_gradient(engine, segment),
                                           segment->padded_elems * elem);
        }
    }
    bound_gradients_zero(engine, unit);
    state->has_gradient = 1;
    return SHERD_OK;
}

void sherdi_reduce_cancel(sherd_engine *engine, int unit)
{
    sherdi_region *region = sherdi_pool_region(&engine->transient_pool, unit);

    region->is_used                  = 0;
    region->is_pinned                = 0;
    engine->units[unit].has_gradient = 0;
}

/* What the trainer left in its own memory, to the layout of the segment. */
static void bound_gradients_take(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];
    size_t                   elem = sherd_dtype_bytes(engine->settings.compute_dtype);

    for (size_t i = 0; i < info->num_params; i++) {
        const sherdi_model_param *param = &engine->model.params[info->params[i]];
        const sherdi_plan_param  *place = &engine->plan->params[info->params[i]];

        if (param->bound_grad != NULL) {
            engine->backend->kernels->copy(
                engine->backend,
                sherdi_reduce_micro_gradient(engine, &engine->plan->segments[place->segment]) +
                    place->offset_elems * elem,
                param->bound_grad, param->elems * elem);
        }
    }
}

/* The gradient in the type that travels: where it is, or cast into the staging buffer, which
 * the reduction before this one must have left. */
static const void *wire_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                 const void *gradient, sherd_dtype made_in)
{
    sherd_dtype wire = engine->plan->wire_dtype;

    if (wire == made_in) {
        return gradient;
    }
    engine->backend->kernels->cast(engine->backend, engine->buffers[SHERDI_BUFFER_STAGING], wire,
                                   gradient, made_in, segment->padded_elems);
    return engine->buffers[SHERDI_BUFFER_STAGING];
}

/* The transport's own sum: asked for by name, and there is one. */
static int is_vendors(const sherd_engine *engine)
{
    return engine->settings.vendor_reduction && engine->world_size > 1 &&
           (sherdi_world_caps(engine->world) & SHERDI_WORLD_VENDOR_SUMS) != 0;
}

static sherdi_reduction_args reduction_of(const sherd_engine *engine, const sherdi_segment *segment,
                                          const void *send, void *recv)
{
    return (sherdi_reduction_args){
        .send        = send,
        .recv        = recv,
        .slice_elems = segment->slice_elems,
        .send_dtype  = engine->plan->wire_dtype,
        .comm_dtype  = engine->settings.comm_dtype,
        .recv_dtype  = engine->plan->grad_dtype,
        .scale       = (float)(1.0 / engine->world_size),
        .flags       = is_vendors(engine) ? SHERDI_COLL_VENDOR_SUM : 0,
        .what        = engine->model.units[segment->unit].name,
    };
}

/* Where integers go. The loss scale is constant inside a window, so nothing is written while the
 * world's thread may read it. */
static const sherdi_fixed_sink *fixed_sink(sherd_engine *engine)
{
    double multiplier = ldexp(1, engine->plan->fixed_shift) / engine->scaler.scale;

    if (engine->fixed_sink.multiplier != multiplier) {
        engine->fixed_sink = (sherdi_fixed_sink){
            .multiplier = multiplier,
            .limit      = ldexp(SHERDI_FIXED_RANGE, engine->plan->fixed_shift),
            .counts     = &engine->device.head->counts,
        };
    }
    return &engine->fixed_sink;
}

/* Stages 2 and 3: the slice of the sum over the ranks, added to what the window has. */
static sherd_status segment_scatter(sherd_engine *engine, const sherdi_segment *segment)
{
    sherdi_region *region  = sherdi_pool_region(&engine->transient_pool, segment->unit);
    sherd_dtype    made_in = engine->settings.compute_dtype;
    const void    *send =
        wire_gradient(engine, segment, sherdi_reduce_micro_gradient(engine, segment), made_in);
    int                   is_first = engine->units[segment->unit].uses.runs == 0;
    sherdi_landing       *landing  = NULL;
    sherdi_reduction_args args     = reduction_of(engine, segment, send, NULL);
    sherdi_mark           wait;
    sherdi_mark           reduce;
    sherd_status          status;

    if (segment->has_landing) {
        unsigned char *slice;

        SHERDI_TRY(sherdi_landing_open(engine, segment, is_first, &slice, &landing));
        args.recv       = slice;
        args.recv_dtype = engine->settings.comm_dtype;
    } else {
        args.recv       = arena_gradient(engine, segment);
        args.accumulate = !is_first;
    }
    if (engine->plan->is_fixed) {
        args.fixed = fixed_sink(engine);
    }
    sherdi_collective_follow(engine, engine->backend);
    wait   = sherdi_mark_begin(&engine->marks, SHERDI_MARK_WAIT_REDUCE, NULL, args.what, 0);
    reduce = sherdi_collective_mark(engine, SHERDI_MARK_REDUCE, args.what,
                                    args.slice_elems * sherd_dtype_bytes(args.send_dtype));
    status = sherdi_world_reduce_scatter(engine->world, &args, &region->ticket);
    sherdi_collective_mark_end(engine, &reduce);
    sherdi_mark_end(&engine->marks, NULL, &wait);
    SHERDI_TRY(status);
    if (engine->plan->wire_dtype != made_in) { /* the staging is free after it */
        SHERDI_TRY(sherdi_world_follow(engine->world, engine->backend, region->ticket));
    }
    if (landing != NULL) {
        landing->ticket = region->ticket;
        return sherdi_landing_leave(engine, landing);
    }
    return SHERD_OK;
}

/* Stages 0 and 1 with an accumulator: local, the wire comes at the boundary. */
static void segment_accumulate(sherd_engine *engine, const sherdi_segment *segment)
{
    const sherdi_kernel_ops *kernels  = engine->backend->kernels;
    void                    *sum      = arena_gradient(engine, segment);
    const void              *gradient = sherdi_reduce_micro_gradient(engine, segment);

    if (engine->units[segment->unit].uses.runs == 0) {
        kernels->cast(engine->backend, sum, engine->plan->grad_dtype, gradient,
                      engine->settings.compute_dtype, segment->padded_elems);
    } else {
        kernels->accumulate(engine->backend, sum, engine->plan->grad_dtype, gradient,
                            engine->settings.compute_dtype, segment->padded_elems);
    }
}

static sherd_status gradient_reduce(sherd_engine *engine, int unit)
{
    bound_gradients_take(engine, unit);
    for (int kind = 0; kind < SHERDI_SEGMENT_KINDS; kind++) {
        const sherdi_segment *segment = gradient_segment(engine, unit, kind);

        if (segment == NULL) {
            continue;
        }
        if (engine->plan->has_slices) {
            SHERDI_TRY(segment_scatter(engine, segment));
        } else if (engine->plan->has_accumulator) {
            segment_accumulate(engine, segment);
        }
    }
    return SHERD_OK;
}

/* What one rank cannot keep is lost for the window; the others, who would wait for it at the boundary,
 * are told now. The first failure is what the step says. */
static sherd_status gradient_lose(sherd_engine *engine, sherd_status status)
{
    if (engine->lost == SHERD_OK) {
        engine->lost = status;
        (void)snprintf(engine->lost_text, sizeof(engine->lost_text), "%s", sherd_last_error());
    }
    if (status == SHERD_E_IO && engine->world_size > 1) {
        sherd_world_abort(engine->world, engine->lost_text);
    }
    return sherdi_fail_relay(engine->lost, engine->lost_text);
}

/* In debug nobody writes to the gradient any more when it is poisoned. */
static sherd_status gradient_reduce_and_leave(sherd_engine *engine, int unit)
{
    SHERDI_TRY(gradient_reduce(engine, unit));
    if (engine->plan->has_transient && engine->settings.is_debug) {
        SHERDI_TRY(sherdi_world_wait(engine->world,
                                     sherdi_pool_region(&engine->transient_pool, unit)->ticket));
        sherdi_pool_poison(&engine->transient_pool, engine->backend, unit, 1);
    }
    return SHERD_OK;
}

sherd_status sherdi_reduce_complete(sherd_engine *engine, int unit)
{
    sherdi_unit_state *state  = &engine->units[unit];
    sherd_status       status = gradient_reduce_and_leave(engine, unit);

    if (status != SHERD_OK) {
        return gradient_lose(engine, status);
    }
    if (engine->plan->has_transient) { /* free once its reduction is over; placing waits for that */
        sherdi_pool_region(&engine->transient_pool, unit)->is_pinned = 0;
    }
    state->has_gradient = 0;
    state->is_complete  = 1;
    state->uses.runs++;
    return SHERD_OK;
}

sherd_status sherdi_reduce_end_micro_batch(sherd_engine *engine)
{
    const sherdi_sequence *train = &engine->plan->train;

    for (size_t p = 0; p < train->num_steps; p++) {
        if (train->steps[p].pass == SHERD_BACKWARD &&
            engine->units[train->steps[p].unit].has_gradient) {
            SHERDI_TRY(sherdi_reduce_complete(engine, train->steps[p].unit));
        }
    }
    for (size_t u = 0; u < engine->plan->num_units; u++) { /* units that no pass lists */
        if (engine->units[u].has_gradient) {
            SHERDI_TRY(sherdi_reduce_complete(engine, (int)u));
        }
        engine->units[u].is_complete = 0;
        engine->units[u].uses_left   = engine->plan->units[u].backward_uses;
    }
    return SHERD_OK;
}

/* The sum over one rank, in the type and at the place that it has: which NaN a NaN is does not matter for norm and
 * update. */
static int is_reduced(const sherd_engine *engine)
{
    return engine->world_size == 1 && engine->plan->wire_dtype == engine->plan->grad_dtype &&
           engine->settings.comm_dtype == engine->plan->grad_dtype;
}

/* Stages 0 and 1 at the boundary: the whole gradient, or the sum of a window, over the ranks. */
static sherd_status segment_reduce_late(sherd_engine *engine, const sherdi_segment *segment)
{
    const sherdi_plan    *plan     = engine->plan;
    unsigned char        *gradient = arena_gradient(engine, segment);
    const void           *send     = wire_gradient(engine, segment, gradient, plan->grad_dtype);
    size_t                own      = (size_t)engine->rank * segment->slice_elems;
    sherdi_reduction_args args;
    sherdi_ticket         ticket;

    sherdi_collective_follow(engine, engine->backend);
    if (engine->settings.stage == 1) {
        args = reduction_of(engine, segment, send,
                            gradient + own * sherd_dtype_bytes(plan->grad_dtype));
        SHERDI_TRY(sherdi_world_reduce_scatter(engine->world, &args, &ticket));
        return sherdi_world_follow(engine->world, engine->backend, ticket);
    }
    args            = reduction_of(engine, segment, send, (void *)(uintptr_t)send);
    args.recv_dtype = plan->wire_dtype;
    SHERDI_TRY(sherdi_world_all_reduce(engine->world, &args, &ticket));
    SHERDI_TRY(sherdi_world_follow(engine->world, engine->backend, ticket));
    if (send != gradient) {
        engine->backend->kernels->cast(engine->backend, gradient, plan->grad_dtype, send,
                                       plan->wire_dtype, segment->padded_elems);
    }
    return SHERD_OK;
}

sherd_status sherdi_reduce_end_window(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    for (size_t s = 0; s < plan->num_segments; s++) {
        const sherdi_segment *segment = &plan->segments[s];
        size_t elems = plan->has_slices ? segment->slice_elems : segment->padded_elems;

        if (!segment->has_gradient) {
            continue;
        }
        if (engine->units[segment->unit].uses.runs == 0 && segment->has_landing) {
            SHERDI_TRY(sherdi_spill_zero(engine, segment));
        } else if (engine->units[segment->unit].uses.runs == 0) { /* the ranks agree: agree.c */
            engine->backend->kernels->zero(engine->backend, arena_gradient(engine, segment),
                                           elems * sherdi_plan_grad_bytes(plan));
        } else if (!plan->has_slices && !is_reduced(engine)) {
            SHERDI_TRY(segment_reduce_late(engine, segment));
        }
    }
    SHERDI_TRY(sherdi_reduce_settle(engine, engine->lanes.update));
    sherdi_lane_follow(engine->lanes.update, engine->backend);
    return SHERD_OK;
}

sherd_status sherdi_reduce_settle(sherd_engine *engine, const sherdi_backend *lane)
{
    sherd_status status = SHERD_OK;

    for (size_t u = 0; u < engine->plan->num_units; u++) {
        const sherdi_region *region = sherdi_pool_region(&engine->transient_pool, (int)u);
        sherd_status         own    = sherdi_world_follow(engine->world, lane, region->ticket);

        status = status == SHERD_OK ? own : status;
    }
    return status;
}

void sherdi_reduce_drop(sherd_engine *engine)
{
    (void)sherdi_landings_drain(engine); /* to where the next window overwrites it */
    for (size_t u = 0; u < engine->plan->num_units; u++) {
        if (engine->units[u].has_gradient) {
            sherdi_reduce_cancel(engine, (int)u);
        }
        engine->units[u].is_complete = 0;
        engine->units[u].uses_left   = engine->plan->units[u].backward_uses;
    }
    sherdi_reduce_reset_window(engine);
}

void sherdi_reduce_reset_window(sherd_engine *engine)
{
    /* A reduction of this window that ran later would add to the next one's counts. What it says of a
     * window that is over does not matter. */
    (void)sherdi_reduce_settle(engine, engine->backend);
    engine->lost = SHERD_OK;
    for (size_t u = 0; u < engine->plan->num_units; u++) {
        engine->units[u].uses = (sherdi_unit_uses){0};
    }
    engine->micro_seen     = 0;
    engine->micro_backward = 0;
    engine->is_closing     = 0;
    sherdi_numbers_zero_counts(engine);
}
