/* See seat.h. Pointers into the engine's object stay right, since a seat is used only while it is
 * there. */
#include "engine/elastic/seat.h"

#include "engine/engine.h"
#include "kernels/lanes.h"

#include <string.h>

void sherdi_seat_take(sherd_engine *engine, sherdi_seat *out)
{
#define X(member)                                                                                  \
    memcpy(&out->member, &engine->member, sizeof(out->member));                                    \
    memset(&engine->member, 0, sizeof(engine->member));
    SHERDI_SEAT_MEMBERS(X)
#undef X
    out->batch = engine->settings.batch;
}

void sherdi_seat_put(sherd_engine *engine, const sherdi_seat *seat)
{
#define X(member) memcpy(&engine->member, &seat->member, sizeof(seat->member));
    SHERDI_SEAT_MEMBERS(X)
#undef X
    engine->settings.batch = seat->batch;
}

/* Returns the stream that the trainer gave a lane; NULL: none. */
static void *given_stream(const sherdi_backend *lane)
{
    return lane == NULL || sherdi_lanes_of(lane)->lane_given == NULL
               ? NULL
               : sherdi_lanes_of(lane)->lane_given(lane);
}

static int is_same_device(const sherdi_backend *a, const sherdi_backend *b)
{
    return sherdi_lanes_of(a)->lane_identity != NULL &&
           sherdi_lanes_of(a)->lane_identity == sherdi_lanes_of(b)->lane_identity &&
           sherdi_lanes_of(a)->lane_identity(a) == sherdi_lanes_of(b)->lane_identity(b);
}

sherd_status sherdi_seat_open(sherd_engine *engine, sherd_world *world,
                              const sherdi_batch_settings *batch, const sherdi_seat *before)
{
    void *stream = given_stream(before->backend);

    engine->world          = sherdi_world_retain(world);
    engine->shards         = sherdi_world_retain(world);
    engine->host           = sherdi_world_host(world);
    engine->rank           = sherd_world_rank(world);
    engine->world_size     = sherd_world_size(world);
    engine->settings.batch = *batch;
    if (stream != NULL && !is_same_device(before->backend, sherdi_world_backend(world))) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "sherd_engine_move: rank %d computes on another device in the new world, "
            "and the stream that sherd_engine_set_stream gave is not of that one",
            engine->rank);
    }
    return sherdi_engine_lane(engine, stream);
}

void sherdi_seat_close(sherd_engine *engine)
{
    sherdi_seat closed;

    sherdi_engine_parts_close(engine);
    sherdi_backend_destroy(engine->backend);
    sherd_world_destroy(engine->group);
    sherd_world_destroy(engine->shards);
    sherd_world_destroy(engine->world);
    sherdi_seat_take(engine, &closed);
}
