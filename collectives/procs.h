/* Ranks that are processes: what shm, mpi and nccl have in common. Opening meets the other ranks,
 * starts the monitor, and sets up the memory that the ranks of this host share. That memory is
 * memfd segments whose descriptors travel over unix sockets, so there are no files, and a crash
 * leaves nothing behind. Read rendezvous.h, monitor.h and peers.h next. */
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
    int                 channel_desk; /* while opening: listens for the other ranks of this host */
    int                *channels; /* index 0: [local_size] by index, -1 for itself; others: [1] */
    int                 num_channels;
    int                 pending;       /* descriptor between make and take */
    void               *shared;        /* control block and bounce buffers */
    atomic_int          opened;        /* other threads may use peers */
    atomic_int          is_closing;    /* a rank that leaves from now on leaves a complete world */
    _Atomic int64_t     first_left_ns; /* when the first rank left; 0: none has */
    atomic_int          first_left;
    atomic_int          has_dead;      /* a process ended without a goodbye */
    int64_t             call_limit_ns; /* what world.timeout_ns becomes when all is open */
    struct sherdi_nccl *nccl;          /* nccl.c; NULL: the ranks share host memory instead */
} sherdi_procs;

/* Whether device memory goes over NCCL. */
typedef enum procs_nccl {
    PROCS_NCCL_NEVER = 0,
    PROCS_NCCL_IF_POSSIBLE, /* otherwise the transport that is being opened */
    PROCS_NCCL_ALWAYS,
} procs_nccl;

typedef struct procs_params {
    const sherd_world_params *world;
    int                       rank;
    int                       world_size;
    const char               *address;  /* a list; see rendezvous_params */
    int                       listener; /* rank 0: a listening socket, which is taken; or -1 */
    const job_key            *key;
    int64_t                   limit_ns; /* for the meeting */
    /* refuse ranks on several hosts, unless NCCL is chosen */
    int                  is_one_host_only;
    procs_nccl           nccl;
    void                *comm;  /* with PROCS_NCCL_ALWAYS: the trainer's ncclComm_t, or NULL */
    struct sherdi_split *split; /* the split that makes this world; NULL: none */
} procs_params;

/** Returns what `params` ask for: by their transport, or if that is not set, by whether they ask
 *  for a GPU. */
procs_nccl sherdi_procs_nccl_of(const sherd_world_params *params);

/** Initialises `procs` (zeroed by the caller) and opens it so far that the ranks of this host can
 *  use `peers`; the transport then adds its own part. If NCCL is asked for and chosen, the world is
 *  complete and has another table (sherdi_nccl_ops). Collective, blocking. After a failure the
 *  caller closes. */
sherd_status sherdi_procs_open(sherdi_procs *procs, const sherdi_world_ops *ops,
                               const procs_params *params);
/** Ends the opening, after the transport has added its part: the ranks meet once more, since some
 *  of them may have been slow to begin on their device. Until then calls have the meeting's limit,
 *  from then on that of calls. Collective, blocking. */
sherd_status sherdi_procs_opened(sherdi_procs *procs);
/** Closes a world, also one that is not complete. Does not free `procs`. */
void sherdi_procs_close(sherdi_procs *procs);
/** Slots of the ops table: tell the ranks of this host and all others. */
void sherdi_procs_abort(sherd_world *world, const char *why);
void sherdi_procs_tell_ending(sherd_world *world, uint64_t key, int is_agreed);

/** Creates a world of processes of one host: shm.c. */
sherd_status sherdi_world_shm_create(const procs_params *params, sherd_world **out);
/** Creates a world over MPI_COMM_WORLD; initialises MPI if the program has not. rank and world_size
 *  come from the launcher and are compared with MPI's; of the other members only `world` is used.
 *  Errors: E_NOTSUP without MPI. mpi.c or mpi_none.c. */
sherd_status sherdi_world_mpi_create(const procs_params *params, sherd_world **out);

/** Creates a world over the transport that `params` names (NULL: the first that can hold the
 *  ranks). The ranks meet at `address` and know `key`. create.c. */
sherd_status sherdi_world_at(int rank, int world_size, const char *address, const job_key *key,
                             const sherd_world_params *params, sherd_world **out);

#endif
