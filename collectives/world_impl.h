/* What the transports share with world.c: the common part of a world, its failure state
 * and the makers of each kind. No other folder includes this. */
#ifndef SHERDI_COLLECTIVES_WORLD_IMPL_H
#define SHERDI_COLLECTIVES_WORLD_IMPL_H

#include "collectives/world.h"

#include <pthread.h>
#include <stdatomic.h>

/* Longest wait in one call when nothing else is said. */
#define WORLD_TIMEOUT_NS (30 * 60 * INT64_C(1000000000))
/* Calls that may wait in the queue; a further one makes its caller wait. */
#define WORLD_QUEUE_CALLS 64

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
} world_call_kind;

const char *sherdi_world_call_name(world_call_kind kind);

typedef struct world_call {
    world_call_kind kind;
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

enum { WORLD_IS_WHOLE = 0, WORLD_IS_FAILING = 1, WORLD_HAS_FAILED = 2 };

/* The beginning of every transport's object. */
struct sherd_world {
    const sherdi_world_ops *ops;
    int                     rank;
    int                     world_size;
    int                     local_rank; /* among the ranks of this host */
    int                     local_size;
    int              is_foreign_to_threads; /* the transport bears one thread only: no overlap */
    int64_t          timeout_ns;
    atomic_int       owners;
    sherdi_mem       mem;
    sherdi_backend  *host;    /* the CPU */
    sherdi_backend  *backend; /* the lane of collectives on a device; else `host` */
    size_t           overhead_bytes;
    double          *sum_scratch; /* [2 * world_size * SHERDI_SUM_PIECE]; NULL where not needed */
    _Atomic uint64_t sent_bytes;
    _Atomic uint64_t received_bytes;
    world_queue      queue;

    atomic_int   failure_state; /* WORLD_IS_WHOLE, ...; the other two are read after HAS_FAILED */
    sherd_status failure_status;
    char         failure_text[SHERDI_ERROR_BYTES];
};

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

/** Checks struct_size and ranges. Accepts NULL. */
sherd_status sherdi_world_params_check(const sherd_world_params *params);

/** Any thread: the world is unusable from now on; the first sentence stays. Does not tell
 *  the other ranks. */
void sherdi_world_set_failed(sherd_world *world, sherd_status status, const char *text);
/** The same, telling the others, from the thread that noticed; returns `status` with the sentence. */
sherd_status sherdi_world_fail(sherd_world *world, sherd_status status, const char *fmt, ...)
    SHERDI_PRINTF(3, 4);

static inline int sherdi_world_has_failed(const sherd_world *world)
{
    return atomic_load_explicit(&world->failure_state, memory_order_acquire) != WORLD_IS_WHOLE;
}

/** Bytes of one element of recv. */
static inline size_t sherdi_reduction_recv_bytes(const sherdi_reduction_args *args)
{
    return args->fixed != NULL ? sizeof(int64_t) : sherd_dtype_bytes(args->recv_dtype);
}

/** The local part of a reduction: count_elems of every rank's slice, srcs in the order of ranks, to
 *  dst and, the same result, to more_dsts. */
void sherdi_world_reduce_local(sherd_world *world, const sherdi_reduction_args *args,
                               const void *const *srcs, int num_srcs, void *dst, size_t count_elems,
                               void *const *more_dsts, int num_more_dsts);

/** Pages of zero that the kernel gives on first touch; NULL (E_NOMEM) when there are none. */
void *sherdi_pages_map(size_t len_bytes, int flags);

/** The world of one rank: self.c. */
sherd_status sherdi_world_self_create(const sherd_world_params *params, sherd_world **out);

#endif
