/* A world over MPI: its parts, and the messages between its hosts. mpi.c makes worlds, mpi_calls.c
 * has their calls. */
#ifndef SHERDI_COLLECTIVES_MPI_WORLD_H
#define SHERDI_COLLECTIVES_MPI_WORLD_H

#include "collectives/mpi_library.h"
#include "collectives/procs.h"

/* A communicator of sherd's own, and the worlds of this process that send over it: the world for
 * which it was made, and worlds split from that one. The worlds' messages have different tags.
 * mpi_lock guards it. */
typedef struct mpi_channel {
    MPI_Comm comm;
    int      owners;
    int      last_tag; /* highest tag of this process's worlds */
    int      is_lost;  /* a world failed: not all ranks will come to free the communicator */
} mpi_channel;

/* Messages under way. */
typedef struct mpi_requests {
    int          count;
    MPI_Request *list; /* [world_size], as `ranks` */
    int         *ranks;
} mpi_requests;

typedef struct mpi_world {
    sherdi_procs   procs;
    mpi_channel   *channel; /* NULL on one host */
    int            tag;
    int           *channel_ranks; /* [world_size] ranks in the communicator; NULL: the world's */
    int            num_remote;
    int           *remote; /* ranks of other hosts, ascending */
    int            num_leaders;
    int           *leaders;   /* first rank of each other host */
    int           *gatherers; /* [num_leaders] the rank of that host which receives this rank's
                                * slice in an all-gather */
    mpi_requests   receives, sends;
    peers_wire     wire;
    unsigned char *staging; /* [num_remote * wire.portion_bytes] */
} mpi_world;

/** Allocates what the calls of a world on several hosts need; `cards` are of the world's ranks, and
 *  mpi->remote is filled. E_NOMEM. */
sherd_status sherdi_mpi_calls_open(mpi_world *mpi, const rendezvous_card *cards);
void         sherdi_mpi_calls_close(mpi_world *mpi);

/* Functions of sherdi_world_ops; they also work on one host. */
sherd_status sherdi_mpi_barrier(sherd_world *world);
sherd_status sherdi_mpi_all_gather(sherd_world *world, const sherdi_all_gather_args *args);
sherd_status sherdi_mpi_broadcast(sherd_world *world, void *data, size_t len_bytes, int root);

static inline int sherdi_mpi_has_one_host(const mpi_world *mpi)
{
    return mpi->num_remote == 0;
}

/** Returns a rank's number in the communicator. */
static inline int sherdi_mpi_channel_rank(const mpi_world *mpi, int rank)
{
    return mpi->channel_ranks == NULL ? rank : mpi->channel_ranks[rank];
}

#endif
