/* The lanes of an engine: compute (the trainer's), update, up and down the link. Collectives use
 * the world's lane. The dependencies of each operation are derived from the bytes that it accesses
 * (order.h); run.c makes the lanes follow each other. On the CPU all of them are one lane, and
 * nothing waits. */
#include "engine/run/lanes.h"

#include "engine/run/engine_impl.h"

sherd_status sherdi_lanes_open(sherd_engine *engine)
{
    sherdi_backend          *compute = engine->backend;
    const sherdi_device_ops *device  = compute->device;

    SHERDI_TRY(sherdi_times_open(engine));
    SHERDI_TRY(device->lane_create(compute, "update", NULL, &engine->lanes.update));
    SHERDI_TRY(device->lane_create(compute, "up", NULL, &engine->lanes.up));
    SHERDI_TRY(device->lane_create(compute, "down", NULL, &engine->lanes.down));
    return SHERD_OK;
}

void sherdi_lanes_close(sherd_engine *engine)
{
    if (engine->backend == NULL) {
        return;
    }
    sherdi_world_drain(engine->world); /* the observer and the marks end */
    engine->times.ops->close(engine);
    sherdi_backend_destroy(engine->lanes.update);
    sherdi_backend_destroy(engine->lanes.up);
    sherdi_backend_destroy(engine->lanes.down);
    engine->lanes = (sherdi_lanes){0};
}

/* At stage 3 an acquire follows only the operations that gather its unit, so the updates of later
 * units overlap with the forward of the first ones. */
void sherdi_lanes_join(sherd_engine *engine)
{
    if (engine->settings.sharding.stage == 3) {
        return;
    }
    sherdi_lane_follow(engine->backend, engine->lanes.update);
    sherdi_lane_follow(engine->backend, engine->lanes.up);
}

void sherdi_lanes_drain(sherd_engine *engine)
{
    if (engine->lanes.update == NULL) {
        return;
    }
    (void)sherdi_lane_wait(engine->backend);
    (void)sherdi_lane_wait(engine->lanes.update);
    (void)sherdi_lane_wait(engine->lanes.up);
    (void)sherdi_lane_wait(engine->lanes.down);
}

void sherdi_space_put(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                      size_t len_bytes)
{
    if (space != SHERDI_SPACE_DEVICE || !sherdi_has_device(engine)) {
        engine->host->kernels->copy(engine->host, dst, src, len_bytes);
        return;
    }
    engine->backend->kernels->copy(engine->backend, dst, src, len_bytes);
}

sherd_status sherdi_space_get(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                              size_t len_bytes)
{
    if (space != SHERDI_SPACE_DEVICE || !sherdi_has_device(engine)) {
        engine->host->kernels->copy(engine->host, dst, src, len_bytes);
        return SHERD_OK;
    }
    engine->backend->kernels->copy(engine->backend, dst, src, len_bytes);
    return sherdi_lane_wait(engine->backend);
}
