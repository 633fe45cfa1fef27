/* What the transports share with world.c: the common part of a world, its failure state
 * and the makers of each kind. No other folder includes this. */
#ifndef SHERDI_COLLECTIVES_WORLD_IMPL_H
#define SHERDI_COLLECTIVES_WORLD_IMPL_H

#include "collectives/world.h"

#include "base/api.h"

#include <pthread.h>
#include <stdatomic.h>

/* Longest wait in one call when nothing else is said. */
#define WORLD_TIMEOUT_NS (30 * 60 * INT64_C(1000000000))
/* Calls that may wait in the queue; a further one makes its caller wait. */
#define WORLD_QUEUE_CALLS 64
/* Tickets of a lane that have an event of their own: device.c. */
#define WORLD_EVENTS 64

typedef struct world_broadcast_args {
    void  *data;
    size_t len_bytes;
    int    root;
} world_broadcast_args;

typedef enum world_call_kind {
    CALL_BARRIER,
    CALL_ALL_GATHER,
    CALL_REDUCE_SCATTER,
    CALL_ALL_REDUCE,
    CALL_ALL_TO_ALL,
    CALL_BROADCAST,
    CALL_ALLOC,
    CALL_REGROUP,
} world_call_kind;

const char *sherdi_world_call_name(world_call_kind kind);
/** "all-gather of 8 bytes of layer 3": what another rank says that it calls; `kind` and the name are as they came,
 *  but for the end of the name. Returns `text`. */
const char *sherdi_world_call_describe(uint32_t kind, uint64_t len_bytes, const char *name,
                                       char *text, size_t text_bytes);

typedef struct world_call {
    world_call_kind kind;
    uint32_t        flags;       /* those of the arguments; SHERDI_COLL_HOST where there are none */
    size_t          slice_bytes; /* that travel between two ranks; of a broadcast and a barrier 0 */
    const char     *what;        /* as in the arguments */
    union {
        sherdi_all_gather_args all_gather;
        sherdi_reduction_args  reduction;
        sherdi_all_to_all_args all_to_all;
        world_broadcast_args   broadcast;
    } args;
} world_call;

/* Calls in their order, run by one thread. Ticket t sits in ring[(t - 1) % WORLD_QUEUE_CALLS]. */
typedef struct world_queue {
    pthread_t        thread;
    pthread_mutex_t  lock; /* guards all below */
    pthread_cond_t   has_work;
    pthread_cond_t   has_progress;
    int              is_running;
    int              is_stopping;
    sherdi_ticket    issued;        /* ticket of the last call that was put in */
    _Atomic uint64_t done;          /* ticket of the last call that ended; read without the lock */
    _Atomic uint64_t failed_ticket; /* first call that failed; 0: none */
    sherd_status     failed_status;
    char             failed_text[SHERDI_ERROR_BYTES];
    world_call       ring[WORLD_QUEUE_CALLS];
} world_queue;

/* Of sherdi_world_ending_open. */
typedef struct world_endings {
    pthread_mutex_t lock;     /* guards the list and what is in it */
    pthread_cond_t  has_news; /* a rank has come, or the world has failed */
    sherdi_ending  *first;
} world_endings;

/* Device memory that sherdi_world_alloc gave out. */
typedef struct world_block {
    void  *memory;     /* NULL: free entry */
    void  *handle;     /* of memory_enter */
    size_t made_bytes; /* of memory_make; 0: the device's */
} world_block;

/* What a world has on a device; all zero where it has none. */
typedef struct world_device {
    int                   index;     /* of the device, in this process */
    int                   is_direct; /* device calls only queue: they need no thread to overlap */
    sherdi_event         *events[WORLD_EVENTS]; /* of ticket t: [(t - 1) % WORLD_EVENTS] */
    sherdi_mem            given;                /* what sherdi_world_alloc gave out */
    world_block          *blocks;               /* the same, to be freed */
    size_t                block_capacity;
    void                 *receive; /* sherdi_world_reserve */
    size_t                receive_bytes;
    int                   is_warm; /* sherdi_world_warm: 1, or 2 with the transport's own sums */
    size_t                taken_bytes; /* ... and what the transport took then */
    struct sherdi_staged *staged;      /* where the transport moves host memory only */
} world_device;

enum { WORLD_IS_WHOLE = 0, WORLD_IS_FAILING = 1, WORLD_HAS_FAILED = 2 };

/* The beginning of every transport's object. */
struct sherd_world {
    const sherdi_world_ops *ops;
    int                     rank;
    int                     world_size;
    int                     local_rank; /* among the ranks of this host */
    int                     local_size;
    int     share, shares; /* of the cores that this process may run on: which of how many */
    int     cpu_threads;
    int     crowd; /* ranks that share the host with this one beyond its world; 0: none are known */
    int     is_single_threaded; /* the transport bears one thread only: no overlap */
    int64_t timeout_ns;
    atomic_int           owners;
    pid_t                process; /* whose it is: a forked child has a copy that means nothing */
    sherdi_mem           mem;
    struct sherdi_peers *peers;   /* of this host, where they share memory; else NULL */
    sherdi_backend      *host;    /* the CPU */
    sherdi_backend      *backend; /* the lane of collectives on a device; else `host` */
    world_device         device;
    size_t               overhead_bytes;
    double          *sum_scratch; /* [2 * world_size * SHERDI_SUM_PORTION]; NULL where not needed */
    _Atomic uint64_t sent_bytes;
    _Atomic uint64_t received_bytes;
    uint64_t         calls; /* that the transport was asked for; written by one thread at a time */
    world_queue      queue;
    world_endings    endings;
    /* family.c */
    struct world_family *_Atomic family; /* of the worlds split from this one; NULL: none was */
    struct world_family         *kin;    /* the family of the parent, NULL: there is none */
    struct sherd_world          *next_of_kin; /* under its lock, as is_made */
    int                          is_made;     /* as a child: the split is over */
    sherdi_world_observe_fn      observe;     /* changed while the queue is empty */
    void                        *observe_ctx;

    atomic_int   failure_state; /* WORLD_IS_WHOLE, ...; the other two are read after HAS_FAILED */
    sherd_status failure_status;
    char         failure_text[SHERDI_ERROR_BYTES];
};

/** E_STATE in a child that the program has forked: what it says there would reach the parent's peers, if anybody. */
sherd_status sherdi_world_check_process(const sherd_world *world);
/** E_INVAL. */
sherd_status sherdi_world_rank_check(int rank, int world_size);
/** Fills the common part: counts, locks, time limit. Nothing to undo but sherdi_world_fini.
 *  Local rank and size are those of a world on one host until the transport says otherwise. */
void sherdi_world_init(sherd_world *world, const sherdi_world_ops *ops, int rank, int world_size,
                       const sherd_world_params *params);
/** Makes the backend and the scratch once local_size is known. `shares` ranks use the cores that
 *  this process may run on; this is number `share` of them. */
sherd_status sherdi_world_equip(sherd_world *world, const sherd_world_params *params, int share,
                                int shares);
/** The reverse of both. */
void sherdi_world_fini(sherd_world *world);

/** Checks struct_size and ranges of what a caller gave (NULL: nothing) and fills in the rest: *out is whole,
 *  and what the functions below take. */
sherd_status sherdi_world_params_read(const sherd_world_params *given, sherd_world_params *out);
/** "cpu" or the kind of device that is asked for, by `backend`, SHERD_BACKEND, `device` and transport; static
 *  storage. E_INVAL. */
sherd_status sherdi_world_backend_kind(const sherd_world_params *params, const char **out);

/** tickets.c: runs a checked call, or puts it in the queue: sherdi_ticket in world.h. */
sherd_status sherdi_world_queue_call(sherd_world *world, const world_call *call,
                                     sherdi_ticket *ticket_out);
/** Everything that was queued has ended: what follows runs on the caller's thread and is still in the order of the
 *  calls. */
void sherdi_world_queue_drain(sherd_world *world);
/** The same, and ends the queue's thread. */
void sherdi_world_queue_stop(sherd_world *world);

/** Any thread: the world is unusable from now on; the first sentence stays. Does not tell
 *  the other ranks. */
void sherdi_world_set_failed(sherd_world *world, sherd_status status, const char *text);
/** The same, telling the others, from the thread that noticed; returns `status` with the sentence. */
sherd_status sherdi_world_fail(sherd_world *world, sherd_status status, const char *fmt, ...)
    SHERDI_PRINTF(3, 4);

/** ... because a rank left that this one waits for. */
sherd_status sherdi_world_fail_left(sherd_world *world, int rank);
/** ... because the time limit passed: "rank 1 waited 2.0 s (the time limit) for " and what for. */
sherd_status sherdi_world_fail_late(sherd_world *world, const char *fmt, ...) SHERDI_PRINTF(2, 3);
/** Closes a world that could not be made whole. Returns `status` with the sentence of the last error. */
sherd_status sherdi_world_drop(sherd_world *world, sherd_status status);
/** Adds a rank to a list "1, 3" in `text`; " ..." at its end when it is full. */
void sherdi_ranks_add(char *text, size_t text_bytes, int rank);
/** Turn `turn` (from 0) of waiting for something that wakes nobody. */
void sherdi_nap(int turn);

/* ---- worlds split from this one: family.c, for split.c and the end of a world */

/** Before a split and after it, with the world that it made; NULL: none. `key` is the split's and the same on all
 *  ranks. E_NOMEM. */
sherd_status sherdi_family_begin(sherd_world *parent, uint64_t key);
void         sherdi_family_end(sherd_world *parent, sherd_world *child);
/** A failure of the parent is one of the child from now on, until one of the two leaves. */
void sherdi_family_join(sherd_world *parent, sherd_world *child);
/** Before the world is closed; nothing where it was not split from another or has left. */
void sherdi_family_leave(sherd_world *world);
/** The same, and of its own children: of fini. */
void sherdi_family_fini(sherd_world *world);
/** Any thread: the world has failed. */
void sherdi_family_failed(sherd_world *parent);
/** Any thread: another rank cannot go on with the split of that key. */
void sherdi_family_refused(sherd_world *parent, uint64_t key);

/** Any thread, from a transport: another rank said so. One that nobody waits for (any more) is dropped. */
void sherdi_world_ending_note(sherd_world *world, uint64_t key, int is_agreed);
/** ending.c: of init, of a failure, of fini. */
void sherdi_world_endings_init(world_endings *endings);
void sherdi_world_endings_wake(world_endings *endings);
void sherdi_world_endings_fini(world_endings *endings);

static inline int sherdi_world_has_failed(const sherd_world *world)
{
    return atomic_load_explicit(&world->failure_state, memory_order_acquire) != WORLD_IS_WHOLE;
}

/** Bytes of one element of recv. */
static inline size_t sherdi_reduction_recv_bytes(const sherdi_reduction_args *args)
{
    return args->fixed != NULL ? sizeof(int64_t) : sherd_dtype_bytes(args->recv_dtype);
}

/** The local part of a reduction, on `lane`: count_elems of every rank's slice, srcs in the order of ranks, to
 *  dst and, the same result, to more_dsts. */
void sherdi_world_reduce_local(const sherdi_backend *lane, const sherdi_reduction_args *args,
                               const void *const *srcs, int num_srcs, void *dst, size_t count_elems,
                               void *const *more_dsts, int num_more_dsts);

/** What an allocation that went like this `here` came to on all ranks: E_NOMEM, ... when it failed on one, E_INVAL
 *  when they asked for different lengths. Collective. `what`: "device memory". */
sherd_status sherdi_world_alloc_agree(sherd_world *world, sherd_status here, size_t len_bytes,
                                      const char *what);
/** An all-reduce by the world's reduce-scatter and all-gather. */
sherd_status sherdi_world_all_reduce_in_two(sherd_world *world, const sherdi_reduction_args *args);

/* ---- the device of a world: device.c */

static inline int sherdi_world_has_device(const sherd_world *world)
{
    return world->backend != world->host;
}

/** Device calls of this world are ordered on its lane: their tickets are events. */
static inline int sherdi_world_is_on_lane(const sherd_world *world)
{
    return sherdi_world_has_device(world) &&
           (world->world_size == 1 || (world->ops->caps & SHERDI_WORLD_ON_LANE) != 0);
}

/** The device of a rank: `wanted`, or -1 for the one of its number among the ranks of the host. */
int sherdi_world_device_index(int wanted, int local_rank, int count);
/** Opens the device that `params` ask for, once local_rank is known; nothing to do for the CPU. */
sherd_status sherdi_world_device_open(sherd_world *world, const sherd_world_params *params);
void         sherdi_world_device_close(sherd_world *world);
/** Collective. Zeroed memory of the device on every rank, or on none; freed with the world at the latest. */
sherd_status sherdi_world_device_alloc(sherd_world *world, size_t len_bytes, void **out);
void         sherdi_world_device_free(sherd_world *world, void *memory);

/** The call with this ticket has been queued on the lane. */
void sherdi_world_lane_record(sherd_world *world, sherdi_ticket ticket);
/** A thread of the world's own begins, before it asks anything of the device. */
void sherdi_world_thread_begin(const sherd_world *world);
/** Blocks until the lane has passed it, or the world has failed. */
sherd_status sherdi_world_lane_wait(sherd_world *world, sherdi_ticket ticket);
void sherdi_world_lane_follow(sherd_world *world, const sherdi_backend *lane, sherdi_ticket ticket);
int  sherdi_world_lane_is_done(sherd_world *world, sherdi_ticket ticket);

/* ---- device memory over a transport of host memory: staged.c */

struct sherdi_staged;
sherd_status sherdi_staged_create(sherd_world *world, struct sherdi_staged **out);
/** Accepts NULL. */
void sherdi_staged_destroy(struct sherdi_staged *staged);
/** Runs a call on device memory; returns when the results are queued up to the device on the lane. */
sherd_status sherdi_staged_run(struct sherdi_staged *staged, const world_call *call);

/** Pages of zero that the kernel gives on first touch; NULL (E_NOMEM) when there are none. */
void *sherdi_pages_map(size_t len_bytes, int flags);

#endif
