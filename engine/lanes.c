/* The lanes of an engine: compute (the trainer's), update, up and down the link; the collectives have the
 * world's. What follows what:
 *
 *   gather       after compute up to now (the place is free), and up where slices rest on the host
 *   compute      after the gather's ticket; after update and up when a step ends
 *   reduction    after compute up to now (the gradient is made), and down where its landing is used again
 *   down         after the reduction's ticket
 *   update       after compute and all reductions; a block's gradient comes down in events
 *
 * On the CPU all of it is one lane, and nothing waits. */
#include "engine/engine_impl.h"

#include <string.h>

static sherd_status bridges_open(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    for (int i = 0; i < plan->num_bridges; i++) {
        sherdi_bridge *bridge = &engine->bridges[i];

        SHERDI_TRY(engine->backend->device->event_create(engine->backend, &bridge->down));
        SHERDI_TRY(engine->backend->device->event_create(engine->backend, &bridge->up));
    }
    for (int i = 0; i < plan->num_landings; i++) {
        SHERDI_TRY(engine->backend->device->event_create(engine->backend,
                                                         &engine->store.landings[i].drained));
    }
    return SHERD_OK;
}

sherd_status sherdi_lanes_open(sherd_engine *engine)
{
    sherdi_backend          *compute = engine->backend;
    const sherdi_device_ops *device  = compute->device;

    SHERDI_TRY(device->lane_create(compute, "update", NULL, &engine->lanes.update));
    SHERDI_TRY(device->lane_create(compute, "up", NULL, &engine->lanes.up));
    SHERDI_TRY(device->lane_create(compute, "down", NULL, &engine->lanes.down));
    return bridges_open(engine);
}

void sherdi_lanes_close(sherd_engine *engine)
{
    if (engine->backend == NULL) {
        return;
    }
    for (int i = 0; i < SHERDI_MOST_BRIDGES; i++) {
        engine->backend->device->event_destroy(engine->bridges[i].down);
        engine->backend->device->event_destroy(engine->bridges[i].up);
        engine->bridges[i] = (sherdi_bridge){0};
    }
    for (int i = 0; i < 2; i++) {
        engine->backend->device->event_destroy(engine->store.landings[i].drained);
        engine->store.landings[i].drained = NULL;
    }
    sherdi_backend_destroy(engine->lanes.update);
    sherdi_backend_destroy(engine->lanes.up);
    sherdi_backend_destroy(engine->lanes.down);
    engine->lanes = (sherdi_lanes){0};
}

void sherdi_lanes_join(sherd_engine *engine)
{
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

void sherdi_place_put(sherd_engine *engine, sherdi_place place, void *dst, const void *src,
                      size_t len_bytes)
{
    if (place != SHERDI_PLACE_DEVICE || !sherdi_has_device(engine)) {
        memcpy(dst, src, len_bytes);
        return;
    }
    engine->backend->kernels->copy(engine->backend, dst, src, len_bytes);
}

sherd_status sherdi_place_get(sherd_engine *engine, sherdi_place place, void *dst, const void *src,
                              size_t len_bytes)
{
    if (place != SHERDI_PLACE_DEVICE || !sherdi_has_device(engine)) {
        memcpy(dst, src, len_bytes);
        return SHERD_OK;
    }
    engine->backend->kernels->copy(engine->backend, dst, src, len_bytes);
    return sherdi_lane_wait(engine->backend);
}
