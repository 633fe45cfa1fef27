/* The pass over the blocks: state comes from where it rests, the fused kernel updates it, it goes
 * back, and the new values of the parameters go to where those rest. While one block is computed the
 * next ones are read and the last ones are written (store.c); where all is in one memory the same code
 * moves nothing.
 *
 *     state in         updated on     parameters in    new values
 *     device           device         device           written by the kernel
 *     device           device         host, NVMe       staging, then down
 *     host, NVMe       host           device           bridge, then up
 *     host, NVMe       host           host             written by the kernel
 *     host, NVMe       host           NVMe             written by the kernel into the ring */
#include "engine/engine_impl.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------- the gradient -- */

const float *sherdi_update_fixed_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                          size_t first, size_t elems)
{
    float         *staging = (float *)(void *)engine->buffers[SHERDI_BUFFER_STAGING];
    const int64_t *sums    = (const int64_t *)(const void *)(engine->buffers[SHERDI_BUFFER_GRADS] +
                                                          segment->grad_offset);

    engine->backend->kernels->fixed_to_f32(engine->backend, staging, sums + first, elems);
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
    return engine->buffers[SHERDI_BUFFER_GRADS] + segment->grad_offset +
           (first + block->offset_elems) * elem;
}

/* The reduced gradient of a block in grad_dtype, beside its state. */
static sherd_status gradient_take(sherd_engine *engine, const sherdi_segment *segment,
                                  const sherdi_block *block, const void **out)
{
    const sherdi_plan *plan = engine->plan;

    if (plan->has_slices && !plan->is_fixed) {
        return sherdi_spill_take(engine, block, out);
    }
    *out = device_gradient(engine, segment, block);
    if (block->place != SHERDI_PLACE_DEVICE) {
        sherdi_link_down(engine, engine->buffers[SHERDI_BUFFER_BRIDGE], *out,
                         block->elems * sherd_dtype_bytes(plan->grad_dtype));
        *out = engine->buffers[SHERDI_BUFFER_BRIDGE];
    }
    return SHERD_OK;
}

static sherd_status gradient_give(sherd_engine *engine, const sherdi_block *block)
{
    return engine->plan->has_slices && !engine->plan->is_fixed ? sherdi_spill_give(engine, block)
                                                               : SHERD_OK;
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

    engine->backend->kernels->fixed_to_f32(engine->backend, own, sums, segment->slice_elems);
    return sherdi_world_all_gather(engine->world, &args, NULL);
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
    size_t elem = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t at   = 0;

    for (size_t i = 0; i <= block->num_spans; i++) {
        const sherdi_span *span =
            i < block->num_spans ? &engine->plan->spans[block->first_span + i] : NULL;
        size_t end = span == NULL ? block->elems : span->offset_elems;

        memset(target + at * elem, 0, (end - at) * elem);
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
    } else if (is_on_device(block->place) != is_on_device(segment->param_place)) {
        target = is_on_device(block->place)
                     ? engine->buffers[SHERDI_BUFFER_STAGING] + engine->plan->publish_offset
                     : engine->buffers[SHERDI_BUFFER_BRIDGE] + engine->plan->bridge_param_offset;
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
            sherdi_link_down(engine, memory, written, len);
        }
        sherdi_fetch_put(engine, block_piece(segment, engine->plan, block));
        return SHERD_OK;
    }
    if (is_on_device(block->place) && !is_on_device(segment->param_place)) {
        sherdi_link_down(engine, resting_place(engine, segment, block), written, len);
    } else if (!is_on_device(block->place) && is_on_device(segment->param_place)) {
        sherdi_link_up(engine, resting_place(engine, segment, block), written, len);
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

    if (engine->plan->is_sliced) {
        SHERDI_TRY(sherdi_world_all_gather(engine->world, &args, NULL));
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
    return SHERD_OK;
}

/* Slices of whole parameters go to all: without meeting, since the exchange of the fingerprint
 * has promised that they are written. The next acquire of the unit waits. */
static sherd_status resident_publish(sherd_engine *engine)
{
    size_t elem = sherd_dtype_bytes(engine->settings.compute_dtype);

    for (size_t s = 0; s < engine->plan->num_segments && engine->plan->is_sliced; s++) {
        const sherdi_segment  *segment = &engine->plan->segments[s];
        sherdi_all_gather_args args;
        unsigned char         *whole;

        if (segment->kind == SHERDI_SEGMENT_FROZEN || !segment->is_resident || segment->is_bound) {
            continue;
        }
        whole = engine->buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset;
        args  = (sherdi_all_gather_args){
             .send        = whole + (size_t)engine->rank * segment->slice_elems * elem,
             .recv        = whole,
             .slice_bytes = segment->slice_elems * elem,
             .flags       = SHERDI_COLL_STABLE,
        };
        SHERDI_TRY(sherdi_world_all_gather(engine->world, &args, &engine->publish_tickets[s]));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------- the pass -- */

static sherd_status block_update(sherd_engine *engine, const sherdi_segment *segment,
                                 const sherdi_block *block, uint64_t *fingerprint)
{
    sherdi_adam_args args;
    sherdi_parts     parts;
    const void      *gradient;
    float           *state;
    void            *param;
    int64_t          start;

    SHERDI_TRY(sherdi_store_take(engine, block, 1, &state));
    SHERDI_TRY(gradient_take(engine, segment, block, &gradient));
    SHERDI_TRY(param_open(engine, segment, block, &param));
    parts = sherdi_block_parts(engine, block, state);
    args  = (sherdi_adam_args){
         .spans       = &engine->plan->spans[block->first_span],
         .num_spans   = block->num_spans,
         .coeffs      = engine->coeffs,
         .grad        = gradient,
         .grad_dtype  = engine->plan->grad_dtype,
         .master      = parts.master,
         .m           = parts.m,
         .v           = parts.v,
         .param       = param,
         .param_dtype = engine->settings.compute_dtype,
         .fingerprint = fingerprint,
    };
    start = sherdi_now_ns();
    engine->backend->kernels->adam(engine->backend, &args);
    engine->store.times.update_ns += sherdi_now_ns() - start;
    SHERDI_TRY(param_close(engine, segment, block, param));
    return gradient_give(engine, block);
}

static sherd_status segment_update(sherd_engine *engine, size_t s, uint64_t *fingerprint)
{
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = &plan->segments[s];

    if (plan->is_fixed && !plan->is_sliced && segment->has_gradient) {
        SHERDI_TRY(fixed_collect(engine, segment));
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        SHERDI_TRY(
            block_update(engine, segment, &plan->blocks[segment->first_block + b], fingerprint));
    }
    return SHERD_OK;
}

/* New parameters from the master weights: after a state was put back. */
static sherd_status segment_republish(sherd_engine *engine, size_t s, uint64_t *fingerprint)
{
    const sherdi_kernel_ops *kernels = engine->backend->kernels;
    const sherdi_segment    *segment = &engine->plan->segments[s];

    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &engine->plan->blocks[segment->first_block + b];
        float              *state;
        void               *param;

        SHERDI_TRY(sherdi_store_take(engine, block, 0, &state));
        SHERDI_TRY(param_open(engine, segment, block, &param));
        kernels->fingerprint(engine->backend, &engine->plan->spans[block->first_span],
                             block->num_spans, sherdi_block_parts(engine, block, state).master,
                             fingerprint);
        if (param != NULL) { /* padding of the master is zero */
            kernels->cast(engine->backend, param, engine->settings.compute_dtype,
                          sherdi_block_parts(engine, block, state).master, SHERD_F32, block->elems);
        }
        SHERDI_TRY(param_close(engine, segment, block, param));
    }
    return SHERD_OK;
}

typedef sherd_status (*segment_fn)(sherd_engine *engine, size_t s, uint64_t *fingerprint);

static sherd_status segments_walk(sherd_engine *engine, segment_fn fn, uint64_t *fingerprint)
{
    const sherdi_plan *plan = engine->plan;

    for (size_t s = 0; s < plan->num_segments; s++) {
        const sherdi_segment *segment = &plan->segments[s];

        SHERDI_TRY(fn(engine, s, fingerprint));
        if (segment->is_bound && segment->kind != SHERDI_SEGMENT_FROZEN) {
            SHERDI_TRY(bound_publish(engine, s));
        }
    }
    return SHERD_OK;
}

/* Every transfer of the pass is over when this returns, however it went. */
static sherd_status pass_run(sherd_engine *engine, segment_fn fn, int is_written,
                             uint64_t *fingerprint)
{
    sherd_status status;
    char         text[SHERDI_ERROR_BYTES];
    sherd_status own;

    sherdi_store_read_ahead(engine);
    status = segments_walk(engine, fn, fingerprint);
    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    own = sherdi_store_pass_end(engine, is_written && status == SHERD_OK);
    if (status == SHERD_OK) {
        status = own;
        (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    }
    own = sherdi_fetch_put_end(engine);
    if (status == SHERD_OK) {
        status = own;
        (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    }
    (void)sherdi_spill_finish(engine);
    return status == SHERD_OK ? SHERD_OK : sherdi_fail_relay(status, text);
}

static sherd_status peers_check(const sherd_engine *engine)
{
    for (int r = 0; r < engine->world_size; r++) {
        if (engine->publish_all[r].status != SHERD_OK) {
            return sherdi_fail((sherd_status)engine->publish_all[r].status,
                               "rank %d failed in the middle of the update: %s; its own "
                               "sherd_last_error() says more",
                               r, sherd_status_text((sherd_status)engine->publish_all[r].status));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_update_agree(sherd_engine *engine, sherd_status status, uint64_t own,
                                 uint64_t decision, uint64_t *out)
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
    SHERDI_TRY(peers_check(engine));
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

sherd_status sherdi_update_run(sherd_engine *engine)
{
    uint64_t own = 0;
    uint64_t decision =
        sherdi_hash_bytes(1, engine->coeffs, engine->model.num_groups * sizeof(*engine->coeffs));
    sherdi_scaler scaler = engine->scaler; /* as the step that succeeds leaves it */
    sherd_status  status = sherdi_fetch_stop(engine);

    if (status == SHERD_OK && engine->plan->has_slices && !engine->plan->is_fixed) {
        status = sherdi_spill_start(engine);
    }
    if (status == SHERD_OK) {
        status = pass_run(engine, segment_update, 1, &own);
    }
    if (status == SHERD_OK) {
        status = sherdi_scaler_update(&scaler, 0);
    }
    if (status == SHERD_OK) {
        status = sherdi_store_commit(engine, engine->step + 1, own, &scaler);
    }
    SHERDI_TRY(sherdi_update_agree(engine, status, own, decision, &engine->report.fingerprint));
    engine->own_fingerprint     = own;
    engine->has_own_fingerprint = 1;
    return resident_publish(engine);
}

sherd_status sherdi_update_republish(sherd_engine *engine, uint64_t *own_out)
{
    uint64_t     own    = 0;
    uint64_t     all    = 0;
    sherd_status status = sherdi_fetch_stop(engine);

    if (status == SHERD_OK) {
        status = pass_run(engine, segment_republish, 0, &own);
    }
    SHERDI_TRY(sherdi_update_agree(engine, status, own, 0, &all));
    engine->own_fingerprint     = own;
    engine->has_own_fingerprint = 1;
    *own_out                    = own;
    return resident_publish(engine);
}
