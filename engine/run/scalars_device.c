/* The memory of a device whose memory is not the host's. */
#include "engine/run/scalars.h"

#include "collectives/host_memory.h"
#include "engine/engine.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "kernels/devices.h"

/* The world agrees on the memory, and the ranks on that all have locked theirs. */
static sherd_status shared_open(sherd_engine *engine, const sherdi_plan_buffer *buffer, void **out)
{
    sherd_status status;

    SHERDI_TRY(sherdi_world_alloc_host(engine->shards, buffer->bytes, out));
    sherdi_mem_note(&engine->mem, buffer->purpose, (int64_t)buffer->bytes);
    if (!buffer->is_pinned) {
        return SHERD_OK;
    }
    status = sherdi_pin(engine->backend, *out, buffer->bytes);
    if (status != SHERD_OK) {
        sherdi_world_free_host(engine->shards, *out);
        sherdi_mem_note(&engine->mem, buffer->purpose, -(int64_t)buffer->bytes);
        *out = NULL;
    }
    return sherdi_agree_status(engine, status);
}

static sherd_status buffer_open(sherd_engine *engine, const sherdi_plan_buffer *buffer, void **out)
{
    if (!buffer->is_host) {
        return engine->backend->device->alloc(engine->backend, &engine->mem, buffer->purpose,
                                              buffer->bytes, out);
    }
    if (buffer->is_shared) {
        return shared_open(engine, buffer, out);
    }
    return buffer->is_pinned ? sherdi_pinned_alloc(engine->host, engine->backend, &engine->mem,
                                                   buffer->purpose, buffer->bytes, out)
                             : sherdi_engine_buffer_open(engine, buffer, out);
}

static void buffer_close(sherd_engine *engine, const sherdi_plan_buffer *buffer, void *memory)
{
    if (buffer->is_host && buffer->is_shared) {
        sherdi_unpin(buffer->is_pinned ? engine->backend : NULL, memory);
        sherdi_world_free_host(engine->shards, memory);
        sherdi_mem_note(&engine->mem, buffer->purpose, -(int64_t)buffer->bytes);
    } else if (buffer->is_host) {
        sherdi_pinned_free(buffer->is_pinned ? engine->backend : NULL, memory);
    } else {
        engine->backend->device->free(engine->backend, memory);
    }
}

static sherd_status device_open(sherd_engine *engine)
{
    const sherdi_plan    *plan = engine->plan;
    const sherdi_backend *lane = engine->backend;
    sherdi_span          *spans =
        (sherdi_span *)(void *)(engine->kernel_data.device.memory + plan->scalars.spans);

    engine->kernel_data.on_host =
        sherdi_scalars_at(plan, engine->memory.buffers[SHERDI_BUFFER_HOST_SCALARS]);
    engine->kernel_data.device.spans = spans;
    lane->kernels->copy(lane, spans, plan->layout.spans,
                        plan->layout.num_spans * sizeof(*plan->layout.spans));
    return sherdi_lane_wait(lane);
}

/* The device's results, where they arrive in host memory. */
static sherdi_scalars arrived(const sherd_engine *engine)
{
    return sherdi_scalars_at(engine->plan, engine->memory.buffers[SHERDI_BUFFER_HOST_SCALARS] +
                                               engine->plan->scalars.shared_bytes);
}

static void device_add(sherd_engine *engine, sherdi_scalars_head *out)
{
    const sherdi_scalars down = arrived(engine);

    sherdi_norm_merge(&out->norm, &down.head->norm);
    out->counts.nonfinite += down.head->counts.nonfinite;
    out->counts.out_of_range += down.head->counts.out_of_range;
    out->fingerprint += down.head->fingerprint;
    for (size_t i = 0; i < sherdi_scalars_norms(engine->plan); i++) {
        sherdi_norm_merge(&engine->kernel_data.on_host.norms[i], &down.norms[i]);
    }
}

static uint64_t device_fingerprint(const sherd_engine *engine)
{
    return arrived(engine).head->fingerprint;
}

static const sherdi_scalars_ops APART = {buffer_open, buffer_close, device_open, device_add,
                                         device_fingerprint};

static sherd_status apart_open(sherd_engine *engine)
{
    engine->kernel_data.ops = engine->backend->device->is_async ? &APART : NULL;
    return SHERD_OK;
}

const sherdi_module sherdi_module_scalars = {.open = apart_open};
