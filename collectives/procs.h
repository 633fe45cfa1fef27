/* Ranks that are processes: what shm and mpi have in common. Opening meets the others, starts
 * the monitor, and sets up the memory that the ranks of this host share (memfd segments whose
 * descriptors travel over unix sockets: no files, and nothing is left behind by a crash). */
#ifndef SHERDI_COLLECTIVES_PROCS_H
#define SHERDI_COLLECTIVES_PROCS_H

#include "collectives/monitor.h"
#include "collectives/peers.h"

typedef struct sherdi_procs {
    sherd_world         world; /* first: a transport's object starts with a sherdi_procs */
    sherdi_peers        peers;
    rendezvous          meeting;
    sherdi_monitor     *monitor;
    int                 num_hosts;
    int                *host_ranks;   /* [local_size] ranks of this host, ascending */
    int                 channel_desk; /* listens for the others of this host, while opening */
    int                *channels; /* index 0: [local_size] by index, -1 for itself; others: [1] */
    int                 num_channels;
    int                 pending;       /* descriptor between make and take */
    void               *shared;        /* control and bounce */
    atomic_int          opened;        /* peers is ready for other threads */
    atomic_int          is_closing;    /* who leaves now leaves a world that was whole */
    _Atomic int64_t     first_left_ns; /* when the first rank left; 0: none did */
    atomic_int          first_left;
    atomic_int          has_dead; /* a process ended without a goodbye */
    struct sherdi_nccl *nccl;     /* nccl.c; NULL: the ranks share host memory in place of it */
} sherdi_procs;

/* Whether device memory goes over NCCL. */
typedef enum procs_nccl {
    PROCS_NCCL_NEVER = 0,
    PROCS_NCCL_IF_POSSIBLE, /* else the transport that is being opened */
    PROCS_NCCL_ALWAYS,
} procs_nccl;

typedef struct procs_params {
    const sherd_world_params *world;
    int                       rank;
    int                       world_size;
    const char               *address;  /* list, see rendezvous_params */
    int                       listener; /* rank 0: listens already, or -1; taken */
    const job_key            *key;
    int64_t                   limit_ns;         /* for the meeting */
    int                       is_one_host_only; /* refuse ranks on several, without NCCL */
    procs_nccl                nccl;
    void                *comm;  /* with PROCS_NCCL_ALWAYS: the trainer's ncclComm_t; else NULL */
    struct sherdi_split *split; /* that makes the world; NULL: none does */
} procs_params;

/** What `params` ask for: their transport, or, where that is open, a GPU. */
procs_nccl sherdi_procs_nccl_of(const sherd_world_params *params);

/** Fills the common part of `procs` (zeroed by the caller) and opens it up to where the ranks of
 *  this host can use `peers`; what a transport adds comes after. Where NCCL is asked for and chosen the world is
 *  whole, and its table another one (sherdi_nccl_ops). On failure the caller closes. */
sherd_status sherdi_procs_open(sherdi_procs *procs, const sherdi_world_ops *ops,
                               const procs_params *params);
/** Half-built worlds too. Does not free `procs`. */
void sherdi_procs_close(sherdi_procs *procs);
/** For the ops table: tells this host's ranks and all others. */
void sherdi_procs_abort(sherd_world *world, const char *why);
void sherdi_procs_tell_ending(sherd_world *world, uint64_t key, int is_agreed);

/** The world of processes of one host: shm.c. */
sherd_status sherdi_world_shm_create(const procs_params *params, sherd_world **out);
/** Over MPI_COMM_WORLD; initialises MPI when the program has not. rank and world_size are what
 *  the launcher said, to be compared with what MPI says; nothing else but `world` is looked at. E_NOTSUP
 *  without MPI. mpi.c or mpi_none.c. */
sherd_status sherdi_world_mpi_create(const procs_params *params, sherd_world **out);

/** The transport that `params` names (NULL: the first that can hold them) for ranks that meet at `address` and know
 *  `key`: create.c. */
sherd_status sherdi_world_at(int rank, int world_size, const char *address, const job_key *key,
                             const sherd_world_params *params, sherd_world **out);

#endif
