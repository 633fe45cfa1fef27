/* A build without NCCL. */
#include "collectives/nccl.h"

sherd_status sherdi_world_nccl_create(const procs_params *params, sherd_world **out)
{
    (void)params;
    (void)out;
    return sherdi_fail(SHERD_E_NOTSUP, "transport nccl: sherd was built without NCCL; meson "
                                       "-Dnccl=enabled says what is missing");
}

sherd_status sherd_world_from_nccl_handle(void *comm, const sherd_world_params *params,
                                          sherd_world **out)
{
    (void)comm;
    (void)params;
    (void)out;
    return sherdi_fail(SHERD_E_NOTSUP, "a world from a NCCL communicator: sherd was built without "
                                       "NCCL");
}
