/* Creates a world of processes at an address. env.c reads the variables of launchers, and then
 * calls this file. */
#include "collectives/procs.h"
#include "collectives/transport.h"

static int can_hold(const sherdi_transport *transport, int world_size)
{
    return (transport->holds & SHERDI_TRANSPORT_PROCESSES) != 0 ||
           (world_size == 1 && (transport->holds & SHERDI_TRANSPORT_ALONE) != 0);
}

/* Chooses the named transport, or the first that can hold the ranks. */
static sherd_status transport_choose(const char *name, int rank, int world_size,
                                     const sherdi_transport **out)
{
    const sherdi_transport *transport = sherdi_transport_find(name);
    char                    names[160];

    if (name != NULL && transport == NULL) {
        sherdi_transport_names(names, sizeof(names));
        return sherdi_fail(SHERD_E_NOTSUP, "transport \"%s\" is not built in; there are %s", name,
                           names);
    }
    if (transport != NULL && !can_hold(transport, world_size)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "transport %s cannot be used for rank %d of %d processes; choose "
                           "another, or leave the choice to sherd",
                           name, rank, world_size);
    }
    for (size_t i = 0; transport == NULL; i++) {
        transport = can_hold(sherdi_transport_at(i), world_size) ? sherdi_transport_at(i) : NULL;
    }
    *out = transport;
    return SHERD_OK;
}

sherd_status sherdi_world_at(int rank, int world_size, const char *address, const job_key *key,
                             const sherd_world_params *params, sherd_world **out)
{
    const sherdi_transport *transport = NULL;
    procs_params            procs     = {.world      = params,
                                         .rank       = rank,
                                         .world_size = world_size,
                                         .address    = address,
                                         .listener   = -1,
                                         .key        = key,
                                         .mover_use  = sherdi_procs_mover_use(params)};

    SHERDI_TRY(sherdi_meeting_limit(params, &procs.limit_ns));
    SHERDI_TRY(transport_choose(params->transport, rank, world_size, &transport));
    procs.is_one_host_only = (transport->holds & SHERDI_TRANSPORT_HOSTS) == 0;
    return transport->create != NULL ? transport->create(&procs, out)
                                     : transport->create_alone(params, out);
}

sherd_status sherd_world_create(int rank, int world_size, const char *rendezvous,
                                const sherd_world_params *params, sherd_world **out)
{
    sherd_world_params here;
    job_key            key;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_create"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    SHERDI_TRY(sherdi_world_rank_check(rank, world_size));
    if (world_size > 1) {
        SHERDI_TRY(sherdi_api_need(rendezvous != NULL, "sherd_world_create", "rendezvous"));
        SHERDI_TRY(sherdi_net_address_check(rendezvous));
    }
    sherdi_job_key_read(NULL, NULL, &key);
    return sherdi_world_at(rank, world_size, rendezvous, &key, &here, out);
}
