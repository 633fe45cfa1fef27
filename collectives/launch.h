/* Ways to a world of processes, by where its ranks come from. */
#ifndef SHERDI_COLLECTIVES_LAUNCH_H
#define SHERDI_COLLECTIVES_LAUNCH_H

#include "collectives/procs.h"

/** The transport that `params` names (NULL: the first that can hold them) for ranks that meet at `address` and know `key`. */
sherd_status sherdi_world_at(int rank, int world_size, const char *address, const job_key *key,
                             const sherd_world_params *params, sherd_world **out);

/** Over MPI_COMM_WORLD; initialises MPI when the program has not. rank and world_size are what
 *  the launcher said, to be compared with what MPI says; -1: it said nothing. E_NOTSUP
 *  without MPI. mpi.c or mpi_none.c. */
sherd_status sherdi_world_mpi_create(int rank, int world_size, const sherd_world_params *params,
                                     sherd_world **out);

#endif
