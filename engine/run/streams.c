/* The stream of a trainer that works on a device, how many ranks share a device, for the plan, and
 * the memory of it that the world takes. */
#include "collectives/room.h"
#include "engine/engine.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/needs.h"
#include "kernels/lanes.h"

#include <string.h>

void *sherd_engine_stream(const sherd_engine *engine)
{
    return engine == NULL ? NULL : sherdi_lanes_of(engine->backend)->lane_stream(engine->backend);
}

sherd_status sherd_engine_set_stream(sherd_engine *engine, void *stream)
{
    void *default_stream;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_engine_set_stream", SHERDI_NEED_OPEN));
    default_stream = sherdi_lanes_of(engine->backend)->default_stream;
    if (default_stream == NULL) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_engine_set_stream: the engine computes on the CPU, "
                           "which has no streams");
    }
    return sherdi_engine_lane(engine, stream == NULL ? default_stream : stream);
}

/* Counts the ranks whose device is this rank's. Its number does not identify it: a launcher may
 * show each rank another device as number 0. */
static sherd_status device_sharers(sherd_world *world, const sherdi_backend *backend, int *out)
{
    uint64_t        identity;
    sherdi_messages messages;

    *out = 1;
    if (sherdi_lanes_of(backend)->lane_identity == NULL) {
        return SHERD_OK;
    }
    identity = sherdi_lanes_of(backend)->lane_identity(backend);
    SHERDI_TRY(
        sherdi_world_tell(world, &identity, sizeof(identity), "devices of ranks", &messages));
    *out = 0;
    for (int r = 0; r < sherd_world_size(world); r++) {
        *out += memcmp(sherdi_message_of(&messages, r), &identity, sizeof(identity)) == 0;
    }
    return SHERD_OK;
}

/* Each rank gets only its part of the free memory. */
static sherd_status device_measure(sherd_world *world, sherdi_machine *machine)
{
    const sherdi_backend *lane  = sherdi_world_backend(world);
    size_t                whole = (size_t)sherd_world_size(world) * SHERD_ALIGN_BYTES;
    int                   sharers;

    machine->taken_bytes  = sherdi_world_held_of(world)->taken_bytes;
    machine->has_receive  = sherdi_world_reserve_bytes(world, SHERD_ALIGN_BYTES) > 0;
    machine->receives_own = sherdi_world_reserve_bytes(world, whole) == whole;
    SHERDI_TRY(device_sharers(world, lane, &sharers));
    machine->device_ranks = sharers;
    machine->device_bytes =
        machine->has_device ? lane->device->free_bytes(lane, NULL) / (size_t)sharers : 0;
    return SHERD_OK;
}

static sherd_status device_warm(sherd_engine *engine)
{
    if (engine->group != NULL) {
        SHERDI_TRY(sherdi_world_warm(engine->group, 0));
    }
    return sherdi_world_warm(engine->shards, engine->settings.numerics.vendor_reduction);
}

static sherd_status room_reserve(sherd_engine *engine)
{
    if (engine->plan->packing.group_bytes > 0) {
        SHERDI_TRY(sherdi_world_reserve(engine->group, engine->plan->packing.group_bytes));
    }
    return engine->plan->packing.reduced_bytes > 0 && engine->plan->world_size > 1
               ? sherdi_world_reserve(engine->shards, engine->plan->packing.reduced_bytes)
               : SHERD_OK;
}

const sherdi_module sherdi_module_devices = {
    .sealing = device_warm, .machine = device_measure, .storage_open = room_reserve};
