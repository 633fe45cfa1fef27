/* Creates a world from an MPI communicator. This is the only public header that includes mpi.h. The
 * caller initialises MPI, with at least MPI_THREAD_SERIALIZED when the configuration asks for
 * overlapped communication. The communicator is duplicated and remains the property of the
 * caller. */
#ifndef SHERD_MPI_H
#define SHERD_MPI_H

#include "sherd.h"

#include <mpi.h>

/** Creates a world over `comm`, a communicator of the MPI that the program links. Collective over
 *  `comm`. Errors: E_NOTSUP when sherd was built without MPI, or when the program's MPI is not Open
 *  MPI 3 to 5; E_STATE when MPI is not initialised. */
static inline sherd_status sherd_world_from_mpi(MPI_Comm comm, const sherd_world_params *params,
                                                sherd_world **out)
{
    return sherd_world_from_mpi_handle(&comm, sizeof(comm), params, out);
}

#endif
