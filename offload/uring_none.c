/* Takes the place of uring.c in a build without liburing. */
#include "offload/io_impl.h"

sherd_status sherdi_ioq_uring_create(const sherdi_ioq_params *params, sherdi_mem *mem,
                                     sherdi_ioq **out)
{
    (void)params;
    (void)mem;
    (void)out;
    return sherdi_fail(SHERD_E_NOTSUP, "io_uring is not built in (liburing was not found)");
}
