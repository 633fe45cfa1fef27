/* A world of processes at an explicit place. See env.c for what launchers set. */
#include "collectives/launch.h"

#include <string.h>

sherd_status sherdi_world_at(int rank, int world_size, const char *address, const job_key *key,
                             const sherd_world_params *params, sherd_world **out)
{
    const char  *transport = params->transport;
    procs_params procs     = {.world            = params,
                              .rank             = rank,
                              .world_size       = world_size,
                              .address          = address,
                              .listener         = -1,
                              .key              = key,
                              .is_one_host_only = 1,
                              .nccl             = sherdi_procs_nccl_of(params)};

    SHERDI_TRY(sherdi_meeting_limit(params, &procs.limit_ns));
    if (world_size == 1 && (transport == NULL || strcmp(transport, "self") == 0)) {
        return sherdi_world_self_create(params, out);
    }
    if (transport == NULL || strcmp(transport, "shm") == 0 || strcmp(transport, "nccl") == 0) {
        return sherdi_world_shm_create(&procs, out);
    }
    if (strcmp(transport, "mpi") == 0) {
        return sherdi_world_mpi_create(rank, world_size, params, out);
    }
    if (strcmp(transport, "self") == 0 || strcmp(transport, "threads") == 0) {
        return sherdi_fail(SHERD_E_INVAL, "transport %s cannot hold rank %d of %d processes",
                           transport, rank, world_size);
    }
    return sherdi_fail(SHERD_E_NOTSUP,
                       "transport \"%s\" is not built in; there are self, threads, "
                       "shm, mpi and nccl",
                       transport);
}

sherd_status sherd_world_create(int rank, int world_size, const char *rendezvous,
                                const sherd_world_params *params, sherd_world **out)
{
    sherd_world_params here;
    job_key            key;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_create"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    if (world_size < 1 || rank < 0 || rank >= world_size) {
        return sherdi_fail(SHERD_E_INVAL, "rank %d of %d is not a rank of a world", rank,
                           world_size);
    }
    if (world_size > 1) {
        SHERDI_TRY(sherdi_net_address_check(rendezvous));
    }
    sherdi_job_key_read(NULL, NULL, &key);
    return sherdi_world_at(rank, world_size, rendezvous, &key, &here, out);
}
