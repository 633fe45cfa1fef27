/* Broadcasts. See broadcast.h. */
#include "collectives/broadcast.h"

#include "collectives/world_impl.h"

sherd_status sherdi_world_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    const world_call call = {
        .kind           = CALL_BROADCAST,
        .flags          = SHERDI_COLL_HOST,
        .args.broadcast = {.data = data, .len_bytes = len_bytes, .root = root}};

    SHERDI_TRY(sherdi_world_call_queue(world, &call, NULL));
    if (world->rank == root) {
        sherdi_world_traffic_add(world, sherdi_wire_all_gather(world->world_size, len_bytes), 0);
    } else {
        sherdi_world_traffic_add(world, 0, len_bytes);
    }
    return SHERD_OK;
}

sherd_status sherd_world_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_broadcast"));
    if (root < 0 || root >= world->world_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_world_broadcast: root is %d, but ranks are 0 to %d", root,
                           world->world_size - 1);
    }
    if (data == NULL && len_bytes > 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_world_broadcast: data is NULL, but len_bytes is %zu", len_bytes);
    }
    return sherdi_world_broadcast(world, data, len_bytes, root);
}
