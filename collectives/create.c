/* Worlds of several processes. Their transports are not in yet: what is asked for is refused
 * by name, and a program that no launcher started is alone. */
#include "collectives/world_impl.h"

sherd_status sherd_world_from_env(const sherd_world_params *params, sherd_world **out)
{
    return sherdi_world_self_create(params, out);
}

sherd_status sherd_world_create(int rank, int world_size, const char *rendezvous,
                                const sherd_world_params *params, sherd_world **out)
{
    (void)rendezvous;
    if (rank == 0 && world_size == 1) {
        return sherdi_world_self_create(params, out);
    }
    return sherdi_fail(SHERD_E_NOTSUP, "worlds of several processes are not in this build");
}

sherd_status sherd_world_from_mpi_handle(const void *comm, size_t comm_bytes,
                                         const sherd_world_params *params, sherd_world **out)
{
    (void)comm;
    (void)comm_bytes;
    (void)params;
    (void)out;
    return sherdi_fail(SHERD_E_NOTSUP, "sherd was built without MPI");
}
