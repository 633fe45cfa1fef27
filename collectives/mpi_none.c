/* The transport mpi in a build without MPI: the same functions return errors that say so. */
#include "collectives/transport.h"

#include "base/status.h"

static const char *none_text(void)
{
    return "no: sherd was built without MPI";
}

static sherd_status none_create(const struct procs_params *params, sherd_world **out)
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
    return none_create(NULL, out);
}

const sherdi_transport sherdi_transport_mpi = {
    .name  = "mpi",
    .holds = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_HOSTS | SHERDI_TRANSPORT_MPI |
             SHERDI_TRANSPORT_MEETS,
    .create  = none_create,
    .library = none_text,
};
