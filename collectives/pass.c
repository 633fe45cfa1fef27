/* See pass.h. A room is host memory of the world, which peers read in place. */
#include "collectives/pass.h"

#include "collectives/host_memory.h"
#include "collectives/world_impl.h"
#include "kernels/lanes.h"

#include <string.h>

sherd_status sherdi_pass_check(const sherd_world *world, const char *call)
{
    if (world->world_size > 1 &&
        (world->peers == NULL || world->local_size != world->world_size ||
         (world->ops->caps & SHERDI_WORLD_SHARES_MEMORY) == 0 ||
         strcmp(world->ops->name, "mpi") == 0)) { /* MPI's own worlds do not change their size */
        return sherdi_fail(SHERD_E_NOTSUP,
                           "%s: not over transport %s yet; ranks have to be threads, or processes "
                           "of one host (shm)",
                           call, world->ops->name);
    }
    return SHERD_OK;
}

sherd_status sherdi_pass_open(sherdi_pass *pass, sherd_world *world, size_t room_bytes)
{
    void *room;

    *pass = (sherdi_pass){.world = world, .room_bytes = room_bytes};
    SHERDI_TRY(sherdi_world_alloc_host(world, room_bytes, &room));
    pass->own = room;
    return SHERD_OK;
}

void sherdi_pass_close(sherdi_pass *pass)
{
    if (pass->pins != NULL) {
        sherdi_lanes_of(pass->pins)->unpin(pass->pins, pass->own);
    }
    if (pass->own != NULL) {
        sherdi_world_free_host(pass->world, pass->own);
    }
    *pass = (sherdi_pass){0};
}

sherd_status sherdi_pass_pin(sherdi_pass *pass, sherdi_backend *lane)
{
    if (sherdi_lanes_of(lane)->pin == NULL) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_lanes_of(lane)->pin(lane, pass->own, pass->room_bytes));
    pass->pins = lane;
    return SHERD_OK;
}

const unsigned char *sherdi_pass_room(const sherdi_pass *pass, int rank)
{
    return sherdi_world_host_of(pass->world, rank, pass->own, pass->room_bytes);
}

void sherdi_pass_count(sherd_world *world, uint64_t sent_bytes, uint64_t got_bytes)
{
    sherdi_world_traffic_add(world, sent_bytes, got_bytes);
}

sherd_status sherdi_pass_settle(const sherdi_pass *pass, const sherdi_backend *lane)
{
    sherd_status status = lane == NULL ? SHERD_OK : sherdi_lane_wait(lane);

    return status == SHERD_OK ? SHERD_OK
                              : sherdi_world_fail(pass->world, status, "rank %d: %s",
                                                  pass->world->rank, sherd_last_error());
}

sherd_status sherdi_pass_meet(const sherdi_pass *pass, uint64_t sent_bytes, uint64_t got_bytes)
{
    SHERDI_TRY(sherd_world_barrier(pass->world));
    sherdi_world_traffic_add(pass->world, sent_bytes, got_bytes);
    return SHERD_OK;
}
