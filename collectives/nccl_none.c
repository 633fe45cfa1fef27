/* The transport nccl in a build without NCCL. */
#include "collectives/nccl.h"
#include "collectives/transport.h"

#include <stdio.h>

int sherdi_nccl_version(char *why, size_t why_bytes)
{
    (void)snprintf(why, why_bytes,
                   "sherd was built without NCCL; meson -Dnccl=enabled says what is missing");
    return 0;
}

/* Never called: no rank's card has a version of NCCL. */
sherd_status sherdi_nccl_open(sherdi_procs *procs, void *comm)
{
    (void)procs;
    (void)comm;
    return sherdi_fail(SHERD_E_NOTSUP, "transport nccl: sherd was built without NCCL");
}

void sherdi_nccl_close(sherdi_procs *procs)
{
    (void)procs;
}

const sherdi_world_ops sherdi_nccl_ops = {.struct_size = sizeof(sherdi_nccl_ops), .name = "nccl"};

sherd_status sherd_world_from_nccl_handle(void *comm, const sherd_world_params *params,
                                          sherd_world **out)
{
    (void)comm;
    (void)params;
    (void)out;
    return sherdi_fail(SHERD_E_NOTSUP, "a world from a NCCL communicator: sherd was built without "
                                       "NCCL");
}

const sherdi_transport sherdi_transport_nccl = {
    .name  = "nccl",
    .holds = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_HOSTS | SHERDI_TRANSPORT_MPI |
             SHERDI_TRANSPORT_DEVICES,
    .create  = sherdi_world_shm_create, /* the ranks meet as in shm; choosing NCCL fails */
    .library = sherdi_nccl_text,
    .mover   = &sherdi_nccl_mover,
};
