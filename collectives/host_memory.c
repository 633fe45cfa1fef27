/* See host_memory.h. The transport's own memory is host memory, whatever the world computes on. */
#include "collectives/host_memory.h"

#include "base/checked.h"
#include "collectives/peers.h"

sherd_status sherdi_world_alloc_host(sherd_world *world, size_t len_bytes, void **out)
{
    size_t whole_bytes;

    if (world->ops->alloc == NULL) {
        return sherdi_fail(SHERD_E_NOTSUP, "transport %s has no host memory that its ranks share",
                           world->ops->name);
    }
    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(sherdi_world_status(world));
    if (!sherdi_mul_fits(len_bytes, (size_t)world->world_size, &whole_bytes) ||
        whole_bytes > SIZE_MAX / 4) { /* as in sherdi_world_alloc */
        return sherdi_fail(SHERD_E_NOMEM,
                           "%d times %zu bytes of host memory: more than an address holds",
                           world->world_size, len_bytes);
    }
    sherdi_world_drain(world);
    return world->ops->alloc(world, sherdi_max_size(len_bytes, 1), out);
}

void sherdi_world_free_host(sherd_world *world, void *memory)
{
    if (memory != NULL) {
        sherdi_world_drain(world);
        world->ops->free(world, memory);
    }
}

void *sherdi_world_host_of(const sherd_world *world, int rank, void *memory, size_t len_bytes)
{
    const sherdi_peers *peers = world->peers;

    if (rank == world->rank) {
        return memory;
    }
    for (int i = 0; peers != NULL && i < peers->count; i++) {
        if (peers->ranks[i] == rank) {
            return sherdi_peers_at(peers, i, sherdi_peers_find_address(peers, memory, len_bytes));
        }
    }
    return NULL;
}
