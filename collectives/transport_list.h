/* The transports, one per line, in the order of preference when a program names none. transport.h
 * declares them from this list. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

SHERDI_TRANSPORT(sherdi_transport_self)
SHERDI_TRANSPORT(sherdi_transport_threads)
#ifdef SHERDI_MODULE_PROCESSES
SHERDI_TRANSPORT(sherdi_transport_shm)
#endif
#ifdef SHERDI_MODULE_MPI
SHERDI_TRANSPORT(sherdi_transport_mpi)
#endif
#ifdef SHERDI_MODULE_NCCL
SHERDI_TRANSPORT(sherdi_transport_nccl)
#endif
#ifdef SHERDI_MODULE_SIMULATED
SHERDI_TRANSPORT(sherdi_transport_sim)
#endif
