/* The transport mpi in a build without MPI: the same functions return errors that say so. */
#include "collectives/procs.h"
#include "collectives/transport.h"

const char *sherdi_world_mpi_text(void)
{
    return "no: sherd was built without MPI";
}

sherd_status sherdi_world_mpi_create(const procs_params *params, sherd_world **out)
{
    (void)params;
    (void)out;
    return sherdi_fail(SHERD_E_NOTSUP,
                       "sherd was built without MPI: build with -Dmpi=enabled, or set SHERD_RANK, "
                       "SHERD_WORLD_SIZE and SHERD_RENDEZVOUS for ranks of one host");
}

sherd_status sherd_world_from_mpi_handle(const void *comm, size_t comm_bytes,
                                         const sherd_world_params *params, sherd_world **out)
{
    (void)comm;
    (void)comm_bytes;
    (void)params;
    return sherdi_world_mpi_create(NULL, out);
}

const sherdi_transport sherdi_transport_mpi = {
    .name   = "mpi",
    .holds  = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_HOSTS | SHERDI_TRANSPORT_MPI,
    .create = sherdi_world_mpi_create,
};
