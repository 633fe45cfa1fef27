/* Ranks that are processes: what shm, mpi and nccl have in common. Opening meets the other ranks,
 * starts the monitor, and sets up the memory that the ranks of this host share. Shared memory is
 * memfd segments whose descriptors are sent over unix sockets, so no files exist, and none remain
 * after a crash. Read rendezvous.h, monitor.h and peers.h next. */
#ifndef SHERDI_COLLECTIVES_PROCS_H
#define SHERDI_COLLECTIVES_PROCS_H

#include "collectives/monitor.h"
#include "collectives/peers.h"
#include "collectives/roster.h"

typedef struct sherdi_procs {
    sherd_world     world; /* first: a transport's object starts with a sherdi_procs */
    sherdi_peers    peers;
    rendezvous      meeting;
    sherdi_monitor *monitor;
    int             num_hosts;
    int            *host_ranks;   /* [local_size] ranks of this host, ascending */
    int             channel_desk; /* while opening: listens for the other ranks of this host */
    int            *channels;     /* index 0: [local_size] by index, -1 for itself; others: [1] */
    int             num_channels;
    int             pending;           /* descriptor between make and take */
    void           *shared;            /* control block and bounce buffers, then the roster */
    sherdi_roster *_Atomic roster;     /* NULL: there is none yet */
    atomic_int             is_entered; /* this rank is in the roster */
    atomic_int             opened;     /* other threads may use peers */
    atomic_int             is_closing; /* a rank that leaves from now on leaves a complete world */
    _Atomic int64_t        first_left_ns; /* when the first rank disconnected; 0: none has */
    atomic_int             first_left;
    atomic_int             has_dead;      /* a process ended without a goodbye */
    int64_t                call_limit_ns; /* what world.timeout_ns becomes when all is open */
    const struct procs_mover *mover;      /* NULL: the ranks share host memory instead */
    void                     *moving;     /* the mover's own */
} sherdi_procs;

/* A library that moves device memory between the ranks of a world (nccl_choice.c). The ranks meet
 * as processes do; if all of them can use it, it takes the place of the transport that was being
 * opened. The transport with SHERDI_TRANSPORT_DEVICES names it. */
typedef struct procs_mover {
    const sherdi_world_ops *ops;
    /* Fills in the fields of a card about this rank's devices and its library. */
    void (*card_fill)(rendezvous_card *card, const char *backend);
    /* Returns 1 if the ranks that have met can be a world over it, else 0 with the reason. The
     * result is the same on all ranks. */
    int (*is_possible)(const rendezvous *meeting, char *why, size_t why_bytes);
    /* Completes a world for ranks that have met and have opened their devices: opens its control
     * lines and its communicator. A `comm` that is not NULL is the trainer's, which is used instead
     * of a new one. Collective. After a failure the caller closes. */
    sherd_status (*open)(sherdi_procs *procs, void *comm);
    /* Ends what `open` made, also if that failed midway or was not called. */
    void (*close)(sherdi_procs *procs);
} procs_mover;

/* Whether device memory goes over the mover. */
typedef enum procs_mover_use {
    PROCS_MOVER_NEVER = 0,
    PROCS_MOVER_IF_POSSIBLE, /* otherwise the transport that is being opened */
    PROCS_MOVER_ALWAYS,
} procs_mover_use;

typedef struct procs_params {
    const sherd_world_params *world;
    int                       rank;
    int                       world_size;
    const char               *address;  /* a list; see rendezvous_params */
    int                       listener; /* rank 0: a listening socket, which is taken; or -1 */
    const job_key            *key;
    int64_t                   limit_ns; /* for the meeting */
    /* refuse ranks on several hosts, unless the mover is chosen */
    int                  is_one_host_only;
    procs_mover_use      mover_use;
    void                *comm;  /* with PROCS_MOVER_ALWAYS: the trainer's communicator, or NULL */
    struct sherdi_split *split; /* the split that makes this world; NULL: none */
    /* Optional. Called for the world before anything can wait on it. */
    void (*begun)(void *ctx, sherd_world *world);
    void *begun_ctx;
} procs_params;

/** Returns what `params` ask for: by their transport, or if that is not set, by whether they ask
 *  for a GPU. */
procs_mover_use sherdi_procs_mover_use(const sherd_world_params *params);

/** Makes all ranks of the host fail. Any thread may call it. */
void sherdi_procs_host_abort(sherdi_peers *peers, sherd_status status, const char *text);
/** Initialises `procs` (zeroed by the caller) and opens it so far that the ranks of this host can
 *  use `peers`; the transport then adds its own part. If the mover is asked for and chosen, the
 *  world is complete and has its table. Collective, blocking. After a failure the caller closes. */
sherd_status sherdi_procs_open(sherdi_procs *procs, const sherdi_world_ops *ops,
                               const procs_params *params);
/** Ends the opening, after the transport has added its part: the ranks meet once more, since some
 *  of them may have been slow to begin on their device. Until then calls have the meeting's limit,
 *  from then on that of calls. Collective, blocking. */
sherd_status sherdi_procs_opened(sherdi_procs *procs);
/** Closes a world, also one that is not complete. Does not free `procs`. */
void sherdi_procs_close(sherdi_procs *procs);
/** Functions of the ops table: notify the ranks of this host and all others. */
void sherdi_procs_abort(sherd_world *world, const char *why);
void sherdi_procs_tell_ending(sherd_world *world, uint64_t key, int is_agreed);

/** Creates a world of processes of one host: shm.c. */
sherd_status sherdi_world_shm_create(const procs_params *params, sherd_world **out);

/** Creates a world over the transport that `params` names (NULL: the first that can hold the
 *  ranks). The ranks meet at `address` and know `key`. create.c. */
sherd_status sherdi_world_at(int rank, int world_size, const char *address, const job_key *key,
                             const sherd_world_params *params, sherd_world **out);

#endif
