/* The pass over the blocks: state comes from where it rests, the fused kernel updates it, it goes
 * back, and the new values of the parameters go to where those rest. While one block is computed the
 * next ones are read and the last ones are written (store.c); where all is in one memory the same code
 * moves nothing.
 *
 * LAMB goes over the state twice: the first sweep only reads and gives the norms of all tensors.
 *
 *     state in         updated on     parameters in    new values
 *     device           device         device           written by the kernel
 *     device           device         host, NVMe       staging, then down
 *     host, NVMe       host           device           bridge, then up
 *     host, NVMe       host           host             written by the kernel
 *     host, NVMe       host           NVMe             written by the kernel into the ring
 *
 * On a device the gradients of the next blocks come down, and the last new values go up, while a block is
 * updated on the host: the bridge has room for several. */
#include "engine/engine_impl.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------- the gradient -- */

const float *sherdi_update_fixed_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                          size_t first, size_t elems)
{
    float         *staging = (float *)(void *)engine->buffers[SHERDI_BUFFER_STAGING];
    const int64_t *sums    = (const int64_t *)(const void *)(engine->buffers[SHERDI_BUFFER_GRADS] +
                                                          segment->grad_offset);

    engine->lanes.update->kernels->fixed_to_f32(engine->lanes.update, staging, sums + first, elems);
    return staging;
}

/* On the device, for what is reduced at the boundary and what is kept as integers. */
static const void *device_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                   const sherdi_block *block)
{
    const sherdi_plan *plan = engine->plan;
    size_t             elem = sherd_dtype_bytes(plan->grad_dtype);
    size_t             first;

    if (plan->is_fixed && plan->is_sliced) {
        return sherdi_update_fixed_gradient(engine, segment, block->offset_elems, block->elems);
    }
    if (plan->is_fixed) { /* collected whole before the segment's first block */
        return engine->buffers[SHERDI_BUFFER_STAGING] + block->offset_elems * elem;
    }
    (void)sherdi_plan_owned(plan, segment, &first);
    first = plan->has_slices ? 0 : first;
    return engine->buffers[SHERDI_BUFFER_GRADS] + segment->grad_offset +
           (first + block->offset_elems) * elem;
}

static sherdi_bridge *bridge_of(sherd_engine *engine, const sherdi_block *block)
{
    return &engine->bridges[(size_t)(block - engine->plan->blocks) %
                            (size_t)engine->plan->num_bridges];
}

/* Starts the way of a block's gradient down to its bridge, whose last gradient the host is done with. */
static void gradient_send(sherd_engine *engine, const sherdi_block *block)
{
    const sherdi_segment *segment = &engine->plan->segments[block->segment];
    const sherdi_backend *down    = engine->lanes.down;
    sherdi_bridge        *bridge  = bridge_of(engine, block);
    const void           *source  = device_gradient(engine, segment, block);

    sherdi_lane_follow(down, engine->lanes.update);
    sherdi_link_down(engine, bridge->memory, source,
                     block->elems * sherd_dtype_bytes(engine->plan->grad_dtype));
    down->device->event_record(bridge->down, down);
    if (engine->plan->is_fixed) { /* the staging is made anew for the next block */
        sherdi_lane_follow(engine->lanes.update, down);
    }
}

/* ... of this block and of those that the other bridges have room for. What was converted for an update
 * has room for one. */
static sherd_status gradient_receive(sherd_engine *engine, const sherdi_block *block,
                                     const void **out)
{
    const sherdi_plan *plan   = engine->plan;
    size_t             b      = (size_t)(block - plan->blocks);
    size_t             ahead  = plan->is_fixed ? 0 : (size_t)plan->num_bridges - 1;
    sherdi_bridge     *bridge = bridge_of(engine, block);

    if (engine->bridge_next < b) {
        engine->bridge_next = b;
    }
    for (; engine->bridge_next < plan->num_blocks && engine->bridge_next <= b + ahead;
         engine->bridge_next++) {
        if (plan->blocks[engine->bridge_next].place != SHERDI_PLACE_DEVICE) {
            gradient_send(engine, &plan->blocks[engine->bridge_next]);
        }
    }
    *out = bridge->memory;
    return engine->lanes.down->device->event_wait(bridge->down);
}

/* The reduced gradient of a block in grad_dtype, beside its state. */
static sherd_status gradient_take(sherd_engine *engine, const sherdi_segment *segment,
                                  const sherdi_block *block, const void **out)
{
    if (engine->plan->has_spill) {
        return sherdi_spill_take(engine, block, out);
    }
    if (block->place != SHERDI_PLACE_DEVICE) {
        return gradient_receive(engine, block, out);
    }
    *out = device_gradient(engine, segment, block);
    return SHERD_OK;
}

static sherd_status gradient_give(sherd_engine *engine, const sherdi_block *block)
{
    return engine->plan->has_spill ? sherdi_spill_give(engine, block) : SHERD_OK;
}

/* Stage 0, deterministic: every rank updates everything and needs the others' slices. */
static sherd_status fixed_collect(sherd_engine *engine, const sherdi_segment *segment)
{
    float         *whole = (float *)(void *)engine->buffers[SHERDI_BUFFER_STAGING];
    float         *own   = whole + (size_t)engine->rank * segment->slice_elems;
    const int64_t *sums  = (const int64_t *)(const void *)(engine->buffers[SHERDI_BUFFER_GRADS] +
                                                          segment->grad_offset);
    sherdi_all_gather_args args = {
        .send = own, .recv = whole, .slice_bytes = segment->slice_elems * sizeof(float)};
    sherdi_ticket ticket;

    /* the staging's last reader was the update, or the way down */
    sherdi_lane_follow(engine->lanes.update, engine->lanes.down);
    engine->lanes.update->kernels->fixed_to_f32(engine->lanes.update, own, sums,
                                                segment->slice_elems);
    sherdi_collective_follow(engine, engine->lanes.update);
    SHERDI_TRY(sherdi_world_all_gather(engine->world, &args, &ticket));
    return sherdi_world_follow(engine->world, engine->lanes.update, ticket);
}

/* ---------------------------------------------------- the new parameters -- */

/* Where the compute type of a block rests in memory, or passes on its way to the trainer's. */
static unsigned char *resting_place(sherd_engine *engine, const sherdi_segment *segment,
                                    const sherdi_block *block)
{
    size_t elem = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t first;

    (void)sherdi_plan_owned(engine->plan, segment, &first);
    if (segment->is_bound) {
        return engine->buffers[SHERDI_BUFFER_STAGING] + engine->plan->publish_offset +
               (first + block->offset_elems) * elem;
    }
    first = segment->is_resident ? first : 0;
    return engine->buffers[segment->param_place == SHERDI_PLACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                                     : SHERDI_BUFFER_PARAMS] +
           segment->param_offset + (first + block->offset_elems) * elem;
}

static size_t block_piece(const sherdi_segment *segment, const sherdi_plan *plan,
                          const sherdi_block *block)
{
    return segment->first_piece + (size_t)(block - plan->blocks) - segment->first_block;
}

static int is_on_device(sherdi_place place)
{
    return place == SHERDI_PLACE_DEVICE;
}

/* Padding between parameters is zero, also where the kernel does not write it. */
static void gaps_zero(const sherd_engine *engine, const sherdi_block *block, unsigned char *target)
{
    const sherdi_backend *lane = sherdi_place_lane(engine, block->place);
    size_t                elem = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t                at   = 0;

    for (size_t i = 0; i <= block->num_spans; i++) {
        const sherdi_span *span =
            i < block->num_spans ? &engine->plan->spans[block->first_span + i] : NULL;
        size_t end = span == NULL ? block->elems : span->offset_elems;

        lane->kernels->zero(lane, target + at * elem, (end - at) * elem);
        at = span == NULL ? end : span->offset_elems + span->count_elems;
    }
}

/* Where the kernel writes the compute type of a block: beside its state. NULL: the master is it. */
static sherd_status param_open(sherd_engine *engine, const sherdi_segment *segment,
                               const sherdi_block *block, void **out)
{
    void *target = NULL;

    *out = NULL;
    if (!segment->has_master) {
        return SHERD_OK;
    }
    if (segment->param_place == SHERDI_PLACE_NVME && !is_on_device(block->place)) {
        SHERDI_TRY(sherdi_fetch_put_begin(engine, &target));
    } else if (is_on_device(block->place) && !is_on_device(segment->param_place)) {
        target = engine->buffers[SHERDI_BUFFER_STAGING] + engine->plan->publish_offset;
        sherdi_lane_follow(engine->lanes.update, engine->lanes.down); /* the block before */
    } else if (!is_on_device(block->place) && is_on_device(segment->param_place)) {
        sherdi_bridge *bridge = bridge_of(engine, block);

        SHERDI_TRY(engine->lanes.up->device->event_wait(bridge->up));
        target = bridge->memory + engine->plan->bridge_param_offset;
    } else {
        *out = resting_place(engine, segment, block);
        return SHERD_OK;
    }
    gaps_zero(engine, block, target);
    *out = target;
    return SHERD_OK;
}

/* From there to where they rest. */
static sherd_status param_close(sherd_engine *engine, const sherdi_segment *segment,
                                const sherdi_block *block, void *written)
{
    size_t len = block->elems * sherd_dtype_bytes(engine->settings.compute_dtype);
    void  *memory;

    if (written == NULL) {
        return SHERD_OK;
    }
    if (segment->param_place == SHERDI_PLACE_NVME) {
        if (is_on_device(block->place)) {
            SHERDI_TRY(sherdi_fetch_put_begin(engine, &memory));
            sherdi_lane_follow(engine->lanes.down, engine->lanes.update);
            sherdi_link_down(engine, memory, written, len);
            SHERDI_TRY(sherdi_lane_wait(engine->lanes.down));
        }
        sherdi_fetch_put(engine, block_piece(segment, engine->plan, block));
        return SHERD_OK;
    }
    if (is_on_device(block->place) && !is_on_device(segment->param_place)) {
        sherdi_lane_follow(engine->lanes.down, engine->lanes.update);
        sherdi_link_down(engine, resting_place(engine, segment, block), written, len);
    } else if (!is_on_device(block->place) && is_on_device(segment->param_place)) {
        sherdi_link_up(engine, resting_place(engine, segment, block), written, len);
        engine->lanes.up->device->event_record(bridge_of(engine, block)->up, engine->lanes.up);
    }
    return SHERD_OK;
}

/* New values of bound parameters: gathered in the staging buffer, then copied to the trainer. */
static sherd_status bound_publish(sherd_engine *engine, size_t s)
{
    const sherdi_segment    *segment = &engine->plan->segments[s];
    const sherdi_model_unit *unit    = &engine->model.units[segment->unit];
    size_t                   elem    = sherd_dtype_bytes(engine->settings.compute_dtype);
    unsigned char *staging = engine->buffers[SHERDI_BUFFER_STAGING] + engine->plan->publish_offset;
    sherdi_all_gather_args args = {
        .send        = staging + (size_t)engine->rank * segment->slice_elems * elem,
        .recv        = staging,
        .slice_bytes = segment->slice_elems * elem,
    };
    sherdi_ticket ticket;

    sherdi_lane_follow(engine->backend, engine->lanes.update);
    sherdi_lane_follow(engine->backend, engine->lanes.up);
    if (engine->plan->is_sliced) {
        sherdi_collective_follow(engine, engine->backend);
        SHERDI_TRY(sherdi_world_all_gather(engine->world, &args, &ticket));
        SHERDI_TRY(sherdi_world_follow(engine->world, engine->backend, ticket));
    }
    for (size_t i = 0; i < unit->num_params; i++) {
        const sherdi_plan_param  *place = &engine->plan->params[unit->params[i]];
        const sherdi_model_param *param = &engine->model.params[unit->params[i]];

        if (place->segment == (int)s) {
            engine->backend->kernels->copy(engine->backend, param->bound_data,
                                           staging + place->offset_elems * elem,
                                           param->elems * elem);
        }
    }
    sherdi_lane_follow(engine->lanes.update, engine->backend); /* the staging is free again */
    sherdi_lane_follow(engine->lanes.up, engine->backend);
    return SHERD_OK;
}

/* The slices of a segment that is whole on every rank go to all. The next acquire of the unit waits. */
static sherd_status resident_publish(sherd_engine *engine, size_t s)
{
    const sherdi_segment  *segment = &engine->plan->segments[s];
    size_t                 elem    = sherd_dtype_bytes(engine->settings.compute_dtype);
    unsigned char         *whole;
    sherdi_all_gather_args args;

    if (!engine->plan->is_sliced || segment->kind == SHERDI_SEGMENT_FROZEN ||
        !segment->is_resident || segment->is_bound) {
        return SHERD_OK;
    }
    whole = engine->buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset;
    args  = (sherdi_all_gather_args){
         .send        = whole + (size_t)engine->rank * segment->slice_elems * elem,
         .recv        = whole,
         .slice_bytes = segment->slice_elems * elem,
         .flags       = engine->plan->publishes_early ? 0 : SHERDI_COLL_STABLE,
    };
    sherdi_collective_follow(engine, engine->lanes.update);
    sherdi_collective_follow(engine, engine->lanes.up);
    return sherdi_world_all_gather(engine->world, &args, &engine->publish_tickets[s]);
}

/* Without meeting: the exchange of the fingerprint has promised that all slices are written. */
static sherd_status residents_publish(sherd_engine *engine)
{
    for (size_t s = 0; s < engine->plan->num_segments && !engine->plan->publishes_early; s++) {
        SHERDI_TRY(resident_publish(engine, s));
    }
    sherdi_lanes_join(engine);
    return SHERD_OK;
}

/* ------------------------------------------------------------- the pass -- */

static void adam_run(sherd_engine *engine, const sherdi_block *block, sherdi_parts parts,
                     const void *gradient, void *param)
{
    const sherdi_backend *lane    = sherdi_place_lane(engine, block->place);
    const sherdi_numbers *numbers = sherdi_place_numbers(engine, block->place);
    sherdi_adam_args      args    = {
                .spans       = numbers->spans + block->first_span,
                .num_spans   = block->num_spans,
                .coeffs      = numbers->coeffs,
                .grad        = gradient,
                .grad_dtype  = engine->plan->grad_dtype,
                .master      = parts.master,
                .m           = parts.m,
                .v           = parts.v,
                .param       = param,
                .param_dtype = engine->settings.compute_dtype,
                .fingerprint = &numbers->head->fingerprint,
    };

    lane->kernels->adam(lane, &args);
}

/* Either sweep; the first has no `param`. */
static void lamb_run(sherd_engine *engine, const sherdi_block *block, sherdi_parts parts,
                     const void *gradient, void *param, int is_first)
{
    const sherdi_backend *lane    = sherdi_place_lane(engine, block->place);
    const sherdi_numbers *numbers = sherdi_place_numbers(engine, block->place);
    sherdi_lamb_args      args    = {
                .spans       = numbers->spans + block->first_span,
                .num_spans   = block->num_spans,
                .coeffs      = numbers->coeffs,
                .grad        = gradient,
                .grad_dtype  = engine->plan->grad_dtype,
                .master      = parts.master,
                .m           = parts.m,
                .v           = parts.v,
                .param       = param,
                .param_dtype = engine->settings.compute_dtype,
                .fingerprint = &numbers->head->fingerprint,
                .norms       = numbers->norms,
                .ratios      = numbers->ratios,
    };

    if (is_first) {
        lane->kernels->lamb_norms(lane, &args);
    } else {
        lane->kernels->lamb(lane, &args);
    }
}

static int is_lamb(const sherd_engine *engine)
{
    return engine->settings.optimizer == SHERDI_OPTIMIZER_LAMB;
}

static sherdi_mark update_mark(sherd_engine *engine, const sherdi_block *block)
{
    return sherdi_mark_begin(
        &engine->marks, SHERDI_MARK_UPDATE, sherdi_place_lane(engine, block->place),
        engine->model.units[engine->plan->segments[block->segment].unit].name, 0);
}

/* What LAMB's first sweep reads of a block. */
static sherd_status block_measure(sherd_engine *engine, const sherdi_segment *segment,
                                  const sherdi_block *block)
{
    const void *gradient;
    float      *state;
    sherdi_mark mark;

    SHERDI_TRY(sherdi_store_take(engine, block, 0, &state));
    SHERDI_TRY(gradient_take(engine, segment, block, &gradient));
    mark = update_mark(engine, block);
    lamb_run(engine, block, sherdi_block_parts(engine, block, state), gradient, NULL, 1);
    sherdi_mark_end(&engine->marks, sherdi_place_lane(engine, block->place), &mark);
    return gradient_give(engine, block);
}

static sherd_status block_update(sherd_engine *engine, const sherdi_segment *segment,
                                 const sherdi_block *block)
{
    sherdi_parts parts;
    const void  *gradient;
    float       *state;
    void        *param;
    sherdi_mark  mark;

    SHERDI_TRY(sherdi_store_take(engine, block, 1, &state));
    SHERDI_TRY(gradient_take(engine, segment, block, &gradient));
    SHERDI_TRY(param_open(engine, segment, block, &param));
    parts = sherdi_block_parts(engine, block, state);
    mark  = update_mark(engine, block);
    if (is_lamb(engine)) {
        lamb_run(engine, block, parts, gradient, param, 0);
    } else {
        adam_run(engine, block, parts, gradient, param);
    }
    sherdi_mark_end(&engine->marks, sherdi_place_lane(engine, block->place), &mark);
    SHERDI_TRY(param_close(engine, segment, block, param));
    return gradient_give(engine, block);
}

typedef sherd_status (*block_fn)(sherd_engine *engine, const sherdi_segment *segment,
                                 const sherdi_block *block);

/* Blocks that need their gradient. */
static sherd_status segment_walk(sherd_engine *engine, size_t s, block_fn fn)
{
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = &plan->segments[s];

    if (plan->is_fixed && !plan->is_sliced && segment->has_gradient) {
        SHERDI_TRY(fixed_collect(engine, segment));
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        SHERDI_TRY(fn(engine, segment, &plan->blocks[segment->first_block + b]));
    }
    return SHERD_OK;
}

static sherd_status segment_measure(sherd_engine *engine, size_t s)
{
    return segment_walk(engine, s, block_measure);
}

/* A bound segment's new values are in the staging, which the next segment needs. */
static sherd_status segment_close(sherd_engine *engine, size_t s)
{
    const sherdi_segment *segment = &engine->plan->segments[s];

    if (segment->is_bound && segment->kind != SHERDI_SEGMENT_FROZEN) {
        SHERDI_TRY(bound_publish(engine, s));
    }
    return engine->plan->publishes_early ? resident_publish(engine, s) : SHERD_OK;
}

static sherd_status segment_update(sherd_engine *engine, size_t s)
{
    SHERDI_TRY(segment_walk(engine, s, block_update));
    return segment_close(engine, s);
}

/* New parameters from the master weights: after a state was put back. */
static sherd_status segment_republish(sherd_engine *engine, size_t s)
{
    const sherdi_segment *segment = &engine->plan->segments[s];

    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block   *block   = &engine->plan->blocks[segment->first_block + b];
        const sherdi_backend *lane    = sherdi_place_lane(engine, block->place);
        const sherdi_numbers *numbers = sherdi_place_numbers(engine, block->place);
        const float          *master;
        float                *state;
        void                 *param;

        SHERDI_TRY(sherdi_store_take(engine, block, 0, &state));
        SHERDI_TRY(param_open(engine, segment, block, &param));
        master = sherdi_block_parts(engine, block, state).master;
        lane->kernels->fingerprint(lane, numbers->spans + block->first_span, block->num_spans,
                                   master, &numbers->head->fingerprint);
        if (param != NULL) { /* padding of the master is zero */
            lane->kernels->cast(lane, param, engine->settings.compute_dtype, master, SHERD_F32,
                                block->elems);
        }
        SHERDI_TRY(param_close(engine, segment, block, param));
    }
    return segment_close(engine, s);
}

typedef sherd_status (*segment_fn)(sherd_engine *engine, size_t s);

static sherd_status segments_walk(sherd_engine *engine, segment_fn fn)
{
    for (size_t s = 0; s < engine->plan->num_segments; s++) {
        SHERDI_TRY(fn(engine, s));
    }
    return SHERD_OK;
}

/* The first failure of several; its sentence stays. */
typedef struct outcome {
    sherd_status status;
    char         text[SHERDI_ERROR_BYTES];
} outcome;

static void outcome_add(outcome *all, sherd_status status)
{
    if (all->status == SHERD_OK && status != SHERD_OK) {
        all->status = status;
        (void)snprintf(all->text, sizeof(all->text), "%s", sherd_last_error());
    }
}

/* Every transfer of the pass is over when this returns, however it went, and the results are in `head`. */
static sherd_status pass_run(sherd_engine *engine, segment_fn fn, int is_written,
                             sherdi_numbers_head *head)
{
    outcome all = {.status = SHERD_OK};

    engine->bridge_next = 0;
    sherdi_numbers_zero_update(engine);
    sherdi_store_read_ahead(engine);
    outcome_add(&all, segments_walk(engine, fn));
    outcome_add(&all, sherdi_store_pass_end(engine, is_written && all.status == SHERD_OK));
    outcome_add(&all, sherdi_fetch_put_end(engine));
    (void)sherdi_spill_finish(engine);
    sherdi_lane_follow(engine->lanes.update, engine->lanes.down);
    sherdi_lane_follow(engine->lanes.update, engine->lanes.up);
    outcome_add(&all, sherdi_numbers_read(engine, head));
    return all.status == SHERD_OK ? SHERD_OK : sherdi_fail_relay(all.status, all.text);
}

/* Before a pass that needs gradients. */
static sherd_status pass_prepare(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_fetch_stop(engine));
    return engine->plan->has_spill ? sherdi_spill_start(engine) : SHERD_OK;
}

static sherd_status peers_check(const sherd_engine *engine, const char *when)
{
    for (int r = 0; r < engine->world_size; r++) {
        if (engine->publish_all[r].status != SHERD_OK) {
            return sherdi_fail((sherd_status)engine->publish_all[r].status,
                               "rank %d failed %s: %s; its own sherd_last_error() says more", r,
                               when,
                               sherd_status_text((sherd_status)engine->publish_all[r].status));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_update_agree(sherd_engine *engine, sherd_status status, uint64_t own,
                                 uint64_t decision, const char *when, uint64_t *out)
{
    sherdi_publish_message mine = {
        .fingerprint = own, .status = (uint64_t)status, .decision = decision};
    char text[SHERDI_ERROR_BYTES];

    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    if (status == SHERD_E_PEER_LOST) {
        return status;
    }
    SHERDI_TRY(sherdi_world_exchange(engine->world, &mine, engine->publish_all, sizeof(mine)));
    if (status != SHERD_OK) {
        return sherdi_fail_relay(status, text);
    }
    SHERDI_TRY(peers_check(engine, when));
    for (int r = 1; r < engine->world_size; r++) {
        if (engine->publish_all[r].decision != engine->publish_all[0].decision) {
            return sherdi_fail(SHERD_E_INVAL,
                               "rank %d was given other sherd_step_params than rank 0 (norm, "
                               "coefficient, overflow or rates); all ranks must apply the same",
                               r);
        }
    }
    *out = engine->frozen_fingerprint;
    if (!engine->plan->is_sliced) {
        *out += own;
        return SHERD_OK;
    }
    for (int r = 0; r < engine->world_size; r++) {
        *out += engine->publish_all[r].fingerprint;
    }
    return SHERD_OK;
}

/* Of every tensor; what this rank holds, or all. */
static sherd_status norms_sum(sherd_engine *engine)
{
    sherdi_lamb_norms *norms = engine->on_host.norms;
    size_t             count = engine->plan->num_params;

    for (size_t p = 0; p < count; p++) {
        sherdi_norm_normalise(
            &norms[p].param); /* digits below 2^32: no sum over ranks is too large */
        sherdi_norm_normalise(&norms[p].update);
    }
    if (!engine->plan->is_sliced) {
        return SHERD_OK;
    }
    return sherdi_world_sum_u64(engine->world, (uint64_t *)(void *)norms,
                                count * sizeof(*norms) / sizeof(uint64_t));
}

sherd_status sherdi_update_measure(sherd_engine *engine)
{
    sherdi_numbers_head unused;
    sherd_status        status;

    if (!is_lamb(engine)) {
        return SHERD_OK;
    }
    status = pass_prepare(engine);
    if (status == SHERD_OK) {
        status = pass_run(engine, segment_measure, 0, &unused);
    }
    if (status == SHERD_E_PEER_LOST) {
        return status;
    }
    SHERDI_TRY(sherdi_agree_status(engine->world, status));
    SHERDI_TRY(norms_sum(engine));
    engine->host->kernels->lamb_ratios(engine->host, &(sherdi_lamb_ratio_args){
                                                         .norms      = engine->on_host.norms,
                                                         .groups     = engine->on_host.groups,
                                                         .coeffs     = engine->on_host.coeffs,
                                                         .ratios     = engine->on_host.ratios,
                                                         .num_params = engine->plan->num_params,
                                                     });
    sherdi_numbers_tell(engine);
    return SHERD_OK;
}

sherd_status sherdi_update_run(sherd_engine *engine, uint64_t decision)
{
    sherdi_numbers_head head   = {0};
    sherdi_scaler       scaler = engine->scaler; /* as the step that succeeds leaves it */
    sherd_status        status = pass_prepare(engine);

    if (status == SHERD_OK) {
        status = pass_run(engine, segment_update, 1, &head);
    }
    if (status == SHERD_OK) {
        status = sherdi_scaler_update(&scaler, 0);
    }
    if (status == SHERD_OK) {
        status = sherdi_store_commit(engine, engine->step + 1, head.fingerprint, &scaler);
    }
    SHERDI_TRY(sherdi_update_agree(engine, status, head.fingerprint, decision,
                                   "in the middle of the update", &engine->report.fingerprint));
    sherdi_store_verify(engine, engine->settings.verify_reads); /* what was filled is read */
    engine->own_fingerprint     = head.fingerprint;
    engine->has_own_fingerprint = 1;
    return residents_publish(engine);
}

sherd_status sherdi_update_republish(sherd_engine *engine, uint64_t *own_out)
{
    sherdi_numbers_head head   = {0};
    uint64_t            all    = 0;
    sherd_status        status = sherdi_fetch_stop(engine);

    if (status == SHERD_OK) {
        status = pass_run(engine, segment_republish, 0, &head);
    }
    SHERDI_TRY(sherdi_update_agree(engine, status, head.fingerprint, 0,
                                   "while it read its state back", &all));
    engine->own_fingerprint     = head.fingerprint;
    engine->has_own_fingerprint = 1;
    *own_out                    = head.fingerprint;
    return residents_publish(engine);
}
