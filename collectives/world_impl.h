/* Shared by world.c, calls.c and the transports: the common part of a world (struct
 * sherd_world), its failure state, and the functions with which a transport builds a world. No
 * other folder includes this file. world.h has the interface for the engine. */
#ifndef SHERDI_COLLECTIVES_WORLD_IMPL_H
#define SHERDI_COLLECTIVES_WORLD_IMPL_H

#include "collectives/world.h"

#include "base/api.h"
#include "collectives/module_list.h"

#include <pthread.h>
#include <stdatomic.h>

/* Longest wait in one call where the caller sets no limit. */
#define WORLD_TIMEOUT_NS (30 * 60 * INT64_C(1000000000))

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
    CALL_BROADCAST,
    CALL_ALLOC,
    CALL_REGROUP,
} world_call_kind;

const char *sherdi_world_call_name(world_call_kind kind);
/* Enough for a description. */
#define WORLD_CALL_TEXT_BYTES 192
/** Writes a description of a call, such as 'sherd_unit_acquire (all-gather of 8 bytes of unit
 *  "layer 3")', and returns `text`. The call may come from another rank: `kind`, `name` and
 *  `caller` are used as that rank sent them, but the texts are terminated. */
const char *sherdi_world_call_describe(uint32_t kind, uint64_t len_bytes, const char *name,
                                       const char *caller, char text[WORLD_CALL_TEXT_BYTES]);
/* In a text with a call that is sent to other ranks: the call of the program that it belongs to. */
#define WORLD_CALLER_BYTES 40
/** Fails the world because two ranks make different calls, which the texts describe. `more` follows
 *  the second. */
sherd_status sherdi_world_fail_differ(sherd_world *world, int rank, const char *text, int other,
                                      const char *other_text, const char *more);

typedef struct world_call {
    world_call_kind kind;
    uint32_t        flags;       /* flags of the arguments; SHERDI_COLL_HOST if they have none */
    size_t          slice_bytes; /* bytes between two ranks; 0 for a broadcast or a barrier */
    const char     *what;        /* as in the arguments, and observer too */
    const char     *caller;      /* the call of the program, where it is queued */
    const sherdi_world_observer *observer;
    union {
        sherdi_all_gather_args all_gather;
        sherdi_reduction_args  reduction;
        world_broadcast_args   broadcast;
    } args;
} world_call;

/* The order of calls that overlap with their caller (tickets.h). The object of the module begins
 * with it. */
typedef struct world_order {
    const struct world_order_ops *ops;
} world_order;

typedef struct world_order_ops {
    /* Makes a call of a world that is whole, as calls.c does without an order; sherdi_world_drain,
     * _wait, _follow, _is_done. */
    sherd_status (*call)(sherd_world *world, const world_call *call, sherdi_ticket *ticket_out);
    void (*drain)(sherd_world *world);
    sherd_status (*wait)(sherd_world *world, sherdi_ticket ticket);
    sherd_status (*follow)(sherd_world *world, const sherdi_backend *lane, sherdi_ticket ticket);
    int (*is_done)(sherd_world *world, sherdi_ticket ticket);
    /* Forgets the failures of tickets. */
    void (*forget)(sherd_world *world);
    /* Waits until every call has ended; none follows. The world is closed after it. */
    void (*stop)(sherd_world *world);
    void (*close)(sherd_world *world);
} world_order_ops;

/* The core's part of the device of a world; the object of the module begins with it (device.h). */
typedef struct world_device {
    const struct world_device_ops *ops;
    int                            index;     /* number of the device in this process */
    int                            is_direct; /* its calls only queue work, and overlap by that */
} world_device;

struct peers_device_ops;

/* The operations of worlds on the memory of a device (module_list.h). `open` makes world->device,
 * and the other slots need it. */
typedef struct world_device_ops {
    /* Opens the device of that kind that `params` ask for; call it once local_rank is known. After
     * a failure the caller closes. */
    sherd_status (*open)(sherd_world *world, const sherd_world_params *params, const char *kind);
    void (*close)(sherd_world *world);
    /* Allocates zeroed device memory on every rank, or on none. Collective. The memory is freed
     * with the world at the latest. */
    sherd_status (*alloc)(sherd_world *world, size_t len_bytes, void **out);
    void (*free)(sherd_world *world, void *memory);
    /* Runs a call on device memory over a transport of host memory. Blocks until the results are on
     * the device. */
    sherd_status (*run)(sherd_world *world, const world_call *call);
    const struct peers_device_ops *peers; /* of ranks that are threads: peers.h */
} world_device_ops;

/* What others want to know of a world (listeners.h). */
typedef struct world_company_ops {
    /* The world has failed; the program cannot see it yet. Any thread calls it. */
    void (*failed)(sherd_world *world);
    /* The world is about to be closed; it is gone. */
    void (*leave)(sherd_world *world);
    void (*drop)(sherd_world *world);
} world_company_ops;

enum { WORLD_IS_WHOLE = 0, WORLD_IS_FAILING = 1, WORLD_HAS_FAILED = 2 };

/* The beginning of every transport's object. */
struct sherd_world {
    const sherdi_world_ops *ops;
    int                     rank;
    int                     world_size;
    int first, stride; /* numbers of its ranks in messages: first + rank * stride; 0: as they are */
    int local_rank;    /* number among the ranks of this host */
    int local_size;
    int share, shares; /* this rank is number `share` of `shares` on its cores */
    int cpu_threads;
    int crowd;              /* most ranks that an ancestor world has on this host; 0: no ancestor */
    int is_single_threaded; /* the transport allows one thread only: no overlap */
    /* most of a call; while the world is being opened, the time in which the ranks must meet */
    _Atomic int64_t       timeout_ns;
    int64_t               host_timeout_ns; /* longest silence of another host */
    atomic_int            owners;
    pid_t                 process;     /* that made the world; a forked child's copy is unusable */
    const char           *callback_of; /* see sherdi_world_callback_set */
    _Atomic(const char *) caller;      /* see sherdi_world_caller_note; NULL: none */
    /* the caller of the message that is being sent; of the sending thread */
    const char          *running;
    sherdi_mem           mem;
    struct sherdi_peers *peers;   /* ranks of this host that share memory; else NULL */
    sherdi_backend      *host;    /* the CPU */
    sherdi_backend      *backend; /* the lane of collectives on a device; else `host` */
    world_device        *device;  /* NULL: it has none */
    sherdi_world_held    held;
    /* SHERDI_TOLD_BYTES for each rank; for one where the world is simulated */
    double          *sum_scratch;
    _Atomic uint64_t sent_bytes;
    _Atomic uint64_t received_bytes;
    _Atomic uint64_t between_bytes; /* sent to other hosts, counted where they are sent */
    uint64_t         calls;         /* made on the transport; written by one thread at a time */
    world_order     *order;         /* NULL: every call is done when it returns */
    const world_company_ops *_Atomic company;   /* NULL: nobody wants to know of this world */
    struct world_listener *_Atomic   listeners; /* added by the thread that drives the world */
    /* family.c */
    struct world_listener *kin;         /* the parent's family; NULL: this world has no parent */
    struct sherd_world    *next_of_kin; /* guarded by the family's lock, as is_made is */
    int                    is_made;     /* of a child: its split has ended */

    /* WORLD_IS_WHOLE, ...; status and text are valid after HAS_FAILED */
    atomic_int   failure_state;
    sherd_status failure_status;
    char         failure_text[SHERDI_ERROR_BYTES];
};

/** Returns E_STATE in a child that the program has forked: messages of the child would reach the
 *  peers of its parent, if anyone. */
sherd_status sherdi_world_check_process(const sherd_world *world);
/** Fills the common part: counts, locks, time limit. sherdi_world_fini undoes it, and nothing else
 *  is needed. Local rank and size are those of a world on one host until the transport changes
 *  them. */
void sherdi_world_init(sherd_world *world, const sherdi_world_ops *ops, int rank, int world_size,
                       const sherd_world_params *params);
/** Creates the backend, opens the device and allocates the scratch; call it once local_size is
 *  known. `shares` ranks use the cores that this process may run on, and this rank is number
 *  `share` of them. */
sherd_status sherdi_world_equip(sherd_world *world, const sherd_world_params *params, int share,
                                int shares);
/** Undoes sherdi_world_init and sherdi_world_equip. */
void sherdi_world_fini(sherd_world *world);

/* The default parameters. */
extern const sherd_world_params sherdi_world_standard;

/** Returns the number by which messages name a rank: of a group of an engine's ranks, that of the
 *  engine's world. */
static inline int sherdi_world_number(const sherd_world *world, int rank)
{
    return world->first + rank * (world->stride > 0 ? world->stride : 1);
}

/** Counts bytes that a call has moved. */
void sherdi_world_traffic_add(sherd_world *world, uint64_t sent_bytes, uint64_t received_bytes);
/** Executes a call, or puts it in the queue if the world overlaps and the caller takes a ticket. */
sherd_status sherdi_world_call_queue(sherd_world *world, const world_call *call,
                                     sherdi_ticket *ticket_out);
/** Runs a checked call on this thread. */
sherd_status sherdi_world_call_run(sherd_world *world, const world_call *call);

/** Marks the world as failed: it is unusable from now on. Only the first status and text are
 *  stored. Does not notify the other ranks. Any thread may call it. The listeners hear of it before
 *  the program can see it. */
void sherdi_world_set_failed(sherd_world *world, sherd_status status, const char *text);
/** Marks the world as failed and notifies the other ranks. The thread that noticed the failure
 *  calls it. Returns the status of the world's failure, which may be an earlier one, with its text
 *  as the last error. */
sherd_status sherdi_world_fail(sherd_world *world, sherd_status status, const char *fmt, ...)
    SHERDI_PRINTF(3, 4);

/** Fails the world in this way because `rank` has disconnected while this rank waits for it. */
sherd_status sherdi_world_fail_left(sherd_world *world, int rank);
/** Fails the world in this way because the time limit has passed: "rank 1 waited 2.0 s (the time
 *  limit) for ", then the text that `fmt` makes. */
sherd_status sherdi_world_fail_late(sherd_world *world, const char *fmt, ...) SHERDI_PRINTF(2, 3);
/** Closes a world that could not be completed. Returns `status` with the text of the last error. */
sherd_status sherdi_world_drop(sherd_world *world, sherd_status status);
/** Appends a rank to a list such as "1, 3" in `text`. A list that is full ends with " ...". */
void sherdi_ranks_add(char *text, size_t text_bytes, int rank);

static inline int sherdi_world_has_failed(const sherd_world *world)
{
    return atomic_load_explicit(&world->failure_state, memory_order_acquire) != WORLD_IS_WHOLE;
}

/** Return the bytes of one element of send, and of recv. */
static inline size_t sherdi_reduction_send_bytes(const sherdi_reduction_args *args)
{
    return args->add != NULL ? sizeof(uint64_t) : sherd_dtype_bytes(args->send_dtype);
}

static inline size_t sherdi_reduction_recv_bytes(const sherdi_reduction_args *args)
{
    return args->fixed != NULL || args->add != NULL ? sizeof(int64_t)
                                                    : sherd_dtype_bytes(args->recv_dtype);
}

/** Does the local part of a reduction on `lane`: sums count_elems elements of every rank's slice.
 *  `srcs` are in the order of the ranks. The result goes to `dst`, and the same result to each of
 *  more_dsts. */
void sherdi_world_reduce_local(const sherdi_backend *lane, const sherdi_reduction_args *args,
                               const void *const *srcs, int num_srcs, void *dst, size_t count_elems,
                               void *const *more_dsts, int num_more_dsts);
/** Does an all-reduce by the world's reduce-scatter and all-gather. */
sherd_status sherdi_world_all_reduce_in_two(sherd_world *world, const sherdi_reduction_args *args);

/* ---- the device of a world */

static inline int sherdi_world_has_device(const sherd_world *world)
{
    return world->backend != world->host;
}

/** Returns whether the device calls of this world are ordered on its lane. Their tickets are then
 *  events. */
static inline int sherdi_world_is_on_lane(const sherd_world *world)
{
    return sherdi_world_has_device(world) &&
           (world->world_size == 1 || (world->ops->caps & SHERDI_WORLD_ON_LANE) != 0);
}

/** Returns whether the call's buffers are memory of the world's device. */
static inline int sherdi_world_call_is_on_device(const sherd_world *world, const world_call *call)
{
    return sherdi_world_has_device(world) && !(call->flags & SHERDI_COLL_HOST);
}

/** Maps zeroed pages, which the kernel provides on first touch. Returns NULL (E_NOMEM) when it
 *  cannot. */
void *sherdi_pages_map(size_t len_bytes, int flags);

#endif
