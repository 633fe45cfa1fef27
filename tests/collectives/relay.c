/* All that the library has to know of another transport: its tables. more_transports/ has its line. Meeting, memory
 * and sums are those of processes; a gather is a broadcast from each rank in turn. */
#include "tests/collectives/relay.h"

#include "collectives/procs.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <string.h>

static int gathers;

int relay_gathers(void)
{
    return gathers;
}

static sherdi_peers *peers_of(sherd_world *world)
{
    return &((sherdi_procs *)world)->peers;
}

static void relay_close(sherd_world *world)
{
    sherdi_procs_close((sherdi_procs *)world);
    free(world);
}

static sherd_status relay_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    return sherdi_peers_alloc(peers_of(world), len_bytes, out);
}

static void relay_free(sherd_world *world, void *memory)
{
    sherdi_peers_free(peers_of(world), memory);
}

static sherd_status relay_barrier(sherd_world *world)
{
    return sherdi_peers_barrier(peers_of(world));
}

static sherd_status relay_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    unsigned char *recv = args->recv;

    gathers++;
    memmove(recv + (size_t)world->rank * args->slice_bytes, args->send, args->slice_bytes);
    for (int r = 0; r < world->world_size; r++) {
        SHERDI_TRY(sherdi_peers_broadcast(peers_of(world), recv + (size_t)r * args->slice_bytes,
                                          args->slice_bytes, r));
    }
    return SHERD_OK;
}

static sherd_status relay_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args)
{
    return sherdi_peers_reduce_scatter(peers_of(world), args, NULL);
}

static sherd_status relay_all_reduce(sherd_world *world, const sherdi_reduction_args *args)
{
    return sherdi_peers_all_reduce(peers_of(world), args);
}

static sherd_status relay_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    return sherdi_peers_all_to_all(peers_of(world), args);
}

static sherd_status relay_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    return sherdi_peers_broadcast(peers_of(world), data, len_bytes, root);
}

static const sherdi_world_ops RELAY_OPS = {
    .struct_size    = sizeof(RELAY_OPS),
    .name           = "relay",
    .close          = relay_close,
    .alloc          = relay_alloc,
    .free           = relay_free,
    .barrier        = relay_barrier,
    .all_gather     = relay_all_gather,
    .reduce_scatter = relay_reduce_scatter,
    .all_reduce     = relay_all_reduce,
    .all_to_all     = relay_all_to_all,
    .broadcast      = relay_broadcast,
    .abort          = sherdi_procs_abort,
};

static sherd_status relay_create(const procs_params *params, sherd_world **out)
{
    sherdi_procs *procs = calloc(1, sizeof(*procs));
    sherd_status  status;

    if (procs == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no room for the world");
    }
    status = sherdi_procs_open(procs, &RELAY_OPS, params);
    if (status != SHERD_OK) {
        relay_close(&procs->world);
        return status;
    }
    *out = &procs->world;
    return SHERD_OK;
}

const sherdi_transport test_transport_relay = {
    .name     = "relay",
    .holds    = SHERDI_TRANSPORT_PROCESSES,
    .is_built = 1,
    .create   = relay_create,
};
