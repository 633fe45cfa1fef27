/* Processes of one host that share memory. procs.c does the meeting, the watching and the memory,
 * peers.c moves the data; this file has the table. */
#include "collectives/bounce.h"
#include "collectives/meeting_point.h"
#include "collectives/split.h"
#include "collectives/transport.h"

#include <stdlib.h>

static void shm_close(sherd_world *world)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    sherdi_procs_close(procs);
    free(procs);
}

static sherd_status shm_split(sherdi_split *split, sherd_world **out)
{
    procs_params  procs;
    meeting_point point;

    SHERDI_TRY(sherdi_meeting_point_split(split, SHERD_OK, &procs, &point));
    return split->world_size > 0 ? sherdi_world_shm_create(&procs, out) : SHERD_OK;
}

static const sherdi_world_ops SHM_OPS = {
    .struct_size    = sizeof(SHM_OPS),
    .name           = "shm",
    .caps           = SHERDI_WORLD_TAKES_BACK | SHERDI_WORLD_SHARES_MEMORY,
    .close          = shm_close,
    .alloc          = sherdi_peers_alloc,
    .free           = sherdi_peers_free,
    .barrier        = sherdi_peers_barrier,
    .all_gather     = sherdi_peers_all_gather,
    .reduce_scatter = sherdi_peers_reduce_scatter,
    .all_reduce     = sherdi_peers_all_reduce,
    .broadcast      = sherdi_peers_broadcast,
    .abort          = sherdi_procs_abort,
    .tell_ending    = sherdi_procs_tell_ending,
    .split          = shm_split,
};

sherd_status sherdi_world_shm_create(const procs_params *params, sherd_world **out)
{
    sherdi_procs *procs = calloc(1, sizeof(*procs));
    sherd_status  status;

    if (procs == NULL) {
        int listener = params->listener;

        sherdi_net_close(&listener);
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world");
    }
    status = sherdi_procs_open(procs, &SHM_OPS, params);
    if (status == SHERD_OK) {
        status = sherdi_procs_opened(procs);
    }
    if (status != SHERD_OK) {
        return sherdi_world_drop(&procs->world, status);
    }
    *out = &procs->world;
    return SHERD_OK;
}

const sherdi_transport sherdi_transport_shm = {
    .name        = "shm",
    .holds       = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_MPI,
    .is_built    = 1,
    .create      = sherdi_world_shm_create,
    .params_read = sherdi_host_limit, /* for all worlds of processes */
};
