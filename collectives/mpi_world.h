/* A world over MPI. mpi.c makes worlds, mpi_messages.c sends messages between hosts, and
 * mpi_calls.c and mpi_sums.c have the calls. */
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

/* Another host. */
typedef struct mpi_host {
    int leader; /* its first rank */
    int num_ranks;
    /* The rank there that handles this rank's slice for its host: it receives the slice in a
     * gather, and sends the host's sum for it in a reduction of integers. */
    int partner;
} mpi_host;

typedef struct mpi_world {
    sherdi_procs   procs;
    mpi_channel   *channel; /* NULL on one host */
    int            tag;
    int           *channel_ranks; /* [world_size] ranks in the communicator; NULL: the world's */
    int            num_remote;
    int           *remote;  /* ranks of other hosts, ascending */
    int           *host_of; /* [num_remote] their hosts */
    int            num_hosts;
    mpi_host      *hosts; /* the other hosts, by their first ranks */
    mpi_requests   receives, sends;
    size_t         portion_bytes; /* of a reduction: most bytes of a message */
    unsigned char *staging;       /* [num_remote * portion_bytes] received */
    unsigned char *sums;          /* [portion_bytes] for each slice that this rank adds up */
    const void   **parts;         /* [world_size] scratch of a reduction */
    double        *weights;       /* [world_size] of parts, where they have weights */
    int           *slices;        /* [ranks of this host] */
    int            own_host;      /* other hosts whose first rank comes before this host's */
    const void   **host_sums;     /* [num_hosts + 1] scratch: sums of hosts, and ... */
    float         *partials;      /* ... room for them */
} mpi_world;

/* ---- mpi_messages.c */

/** Start to send to a rank of another host, or to receive from it; at most world_size messages each
 *  are under way. Nobody waits in them. */
sherd_status sherdi_mpi_send(mpi_world *mpi, int rank, const void *data, size_t len_bytes);
sherd_status sherdi_mpi_receive(mpi_world *mpi, int rank, void *data, size_t len_bytes);
/** Waits for all messages of a kind; for those of both. E_PEER_LOST: the world has failed. */
sherd_status sherdi_mpi_wait(mpi_world *mpi, mpi_requests *requests);
sherd_status sherdi_mpi_wait_all(mpi_world *mpi);
/** Drops all messages after a failure. Returns `status`. */
sherd_status sherdi_mpi_failed(mpi_world *mpi, sherd_status status);
/** Makes room for the requests of a world on several hosts. E_NOMEM. */
sherd_status sherdi_mpi_messages_open(mpi_world *mpi);
void         sherdi_mpi_messages_close(mpi_world *mpi);

/* ---- mpi_calls.c, mpi_sums.c: functions of sherdi_world_ops, which also work on one host */

sherd_status sherdi_mpi_barrier(sherd_world *world);
sherd_status sherdi_mpi_all_gather(sherd_world *world, const sherdi_all_gather_args *args);
sherd_status sherdi_mpi_broadcast(sherd_world *world, void *data, size_t len_bytes, int root);
sherd_status sherdi_mpi_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args);
sherd_status sherdi_mpi_all_reduce(sherd_world *world, const sherdi_reduction_args *args);
/** Makes room for the reductions of a world on several hosts. E_NOMEM. */
sherd_status sherdi_mpi_sums_open(mpi_world *mpi);
void         sherdi_mpi_sums_close(mpi_world *mpi);

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
