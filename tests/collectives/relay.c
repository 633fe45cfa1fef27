/* All that the library has to know of another transport: its tables. more_transports/ has its line.
 * Meeting, memory and sums are those of processes; a gather is a broadcast from each rank in
 * turn. */
#include "tests/collectives/relay.h"

#include "collectives/bounce.h"
#include "collectives/meeting_point.h"
#include "collectives/split.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <string.h>

static int gathers;

int relay_gathers(void)
{
    return gathers;
}

static void relay_close(sherd_world *world)
{
    sherdi_procs_close((sherdi_procs *)world);
    free(world);
}

static sherd_status relay_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    unsigned char *recv = args->recv;

    gathers++;
    memmove(recv + (size_t)world->rank * args->slice_bytes, args->send, args->slice_bytes);
    for (int r = 0; r < world->world_size; r++) {
        SHERDI_TRY(sherdi_peers_broadcast(world, recv + (size_t)r * args->slice_bytes,
                                          args->slice_bytes, r));
    }
    return SHERD_OK;
}

static sherd_status relay_split(sherdi_split *split, sherd_world **out);

static const sherdi_world_ops RELAY_OPS = {
    .struct_size    = sizeof(RELAY_OPS),
    .name           = "relay",
    .close          = relay_close,
    .alloc          = sherdi_peers_alloc,
    .free           = sherdi_peers_free,
    .barrier        = sherdi_peers_barrier,
    .all_gather     = relay_all_gather,
    .reduce_scatter = sherdi_peers_reduce_scatter,
    .all_reduce     = sherdi_peers_all_reduce,
    .broadcast      = sherdi_peers_broadcast,
    .abort          = sherdi_procs_abort,
    .tell_ending    = sherdi_procs_tell_ending,
    .split          = relay_split,
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

static sherd_status relay_split(sherdi_split *split, sherd_world **out)
{
    procs_params  procs;
    meeting_point point;

    SHERDI_TRY(sherdi_meeting_point_split(split, SHERD_OK, &procs, &point));
    return split->world_size > 0 ? relay_create(&procs, out) : SHERD_OK;
}

const sherdi_transport test_transport_relay = {
    .name     = "relay",
    .holds    = SHERDI_TRANSPORT_PROCESSES,
    .is_built = 1,
    .create   = relay_create,
};
