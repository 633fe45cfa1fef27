/* Processes of one host over memory that they share. All is in procs.c (meeting, watching,
 * memory) and peers.c (moving); this file is the table. */
#include "collectives/procs.h"
#include "collectives/transport.h"

#include <stdio.h>
#include <stdlib.h>

static sherdi_peers *shm_peers(sherd_world *world)
{
    return &((sherdi_procs *)world)->peers;
}

static void shm_close(sherd_world *world)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    sherdi_procs_close(procs);
    free(procs);
}

static sherd_status shm_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    return sherdi_peers_alloc(shm_peers(world), len_bytes, out);
}

static void shm_free(sherd_world *world, void *memory)
{
    sherdi_peers_free(shm_peers(world), memory);
}

static sherd_status shm_barrier(sherd_world *world)
{
    return sherdi_peers_barrier(shm_peers(world));
}

static sherd_status shm_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    return sherdi_peers_all_gather(shm_peers(world), args);
}

static sherd_status shm_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args)
{
    return sherdi_peers_reduce_scatter(shm_peers(world), args, NULL);
}

static sherd_status shm_all_reduce(sherd_world *world, const sherdi_reduction_args *args)
{
    return sherdi_peers_all_reduce(shm_peers(world), args);
}

static sherd_status shm_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    return sherdi_peers_all_to_all(shm_peers(world), args);
}

static sherd_status shm_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    return sherdi_peers_broadcast(shm_peers(world), data, len_bytes, root);
}

static const sherdi_world_ops SHM_OPS = {
    .struct_size    = sizeof(SHM_OPS),
    .name           = "shm",
    .caps           = SHERDI_WORLD_SHARES_MEMORY,
    .close          = shm_close,
    .alloc          = shm_alloc,
    .free           = shm_free,
    .barrier        = shm_barrier,
    .all_gather     = shm_all_gather,
    .reduce_scatter = shm_reduce_scatter,
    .all_reduce     = shm_all_reduce,
    .all_to_all     = shm_all_to_all,
    .broadcast      = shm_broadcast,
    .abort          = sherdi_procs_abort,
    .tell_ending    = sherdi_procs_tell_ending,
};

sherd_status sherdi_world_shm_create(const procs_params *params, sherd_world **out)
{
    sherdi_procs *procs = calloc(1, sizeof(*procs));
    sherd_status  status;

    if (procs == NULL) {
        int listener = params->listener;

        sherdi_net_close(&listener);
        return sherdi_fail(SHERD_E_NOMEM, "no room for the world");
    }
    status = sherdi_procs_open(procs, &SHM_OPS, params);
    if (status == SHERD_OK && params->world_size > 1) {
        status = procs->world.ops->barrier(&procs->world);
    }
    if (status != SHERD_OK) {
        char text[SHERDI_ERROR_BYTES];

        (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
        procs->world.ops->close(&procs->world);
        return sherdi_fail_relay(status, text);
    }
    *out = &procs->world;
    return SHERD_OK;
}

const sherdi_transport sherdi_transport_shm = {
    .name     = "shm",
    .holds    = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_MPI,
    .is_built = 1,
    .create   = sherdi_world_shm_create,
};
