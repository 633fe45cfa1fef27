/* A world: ranks that move memory between each other. Transports implement the ops table, and block
 * on the calling thread. The layer above them (this file's functions) checks arguments, counts
 * bytes, keeps the order, and executes calls on the world's thread if they are to overlap.
 *
 * Order. One thread drives a world. Calls are executed strictly in the order in which they were
 * made, whether a ticket is taken or not, so all ranks meet in the same order.
 *
 * Failure. When a rank dies, fails or aborts, calls in progress and all later ones return
 * E_PEER_LOST within seconds, with the rank and the reason; where a whole host is silent, after the
 * world's limit for that. No rank hangs. */
#ifndef SHERDI_COLLECTIVES_WORLD_H
#define SHERDI_COLLECTIVES_WORLD_H

#include "base/mem.h"
#include "kernels/backend.h"
#include "sherd.h"

/* The end of messages about ranks that make different calls. */
#define SHERDI_USUAL_CAUSE                                                                         \
    "the usual cause is a data loader that ends earlier on one rank than on another"

/* The ticket of a call: its position in the queue of a world; 0 is "done before the start". */
typedef uint64_t sherdi_ticket;

/* The senders' memory is the world's (sherdi_world_alloc), was complete at the last call that met
 * (barrier, exchange, reduction), and will not change before the next one. A transport that can
 * read peers' memory then need not meet for this call. */
#define SHERDI_COLL_STABLE 1u
/* The buffers are host memory, with every backend; the call is complete when it returns. */
#define SHERDI_COLL_HOST 2u
/* For a reduction: takes the sum of the transport's vendor, in any order and rounding that the
 * vendor likes, instead of the one reduction. No effect where the transport has no such sum, and on
 * one rank. */
#define SHERDI_COLL_VENDOR_SUM 4u
/* For a reduction to fp32, bf16 or fp16 over several hosts: adds the ranks of a host up first, in
 * fp32, and then the hosts in the order of their first ranks; a transport that knows hosts then
 * sends a sum where that is fewer bytes. Others ignore it. */
#define SHERDI_COLL_HOST_SUM 8u

struct world_call;

/* Makes a call in place of `make`, by calling it: observed.h. */
typedef struct sherdi_world_observer {
    sherd_status (*observe)(sherd_world *world, const struct world_call *call,
                            sherd_status (*make)(sherd_world             *world,
                                                 const struct world_call *call));
} sherdi_world_observer;

/* recv is [world_size * slice_bytes]; the gather is in place when send == recv + rank *
 * slice_bytes. */
typedef struct sherdi_all_gather_args {
    const void *send;
    void       *recv;
    size_t      slice_bytes;
    uint32_t    flags;
    const char *what; /* as in sherdi_reduction_args; compared where the call meets */
    const sherdi_world_observer *observer; /* as in sherdi_reduction_args */
} sherdi_all_gather_args;

/* Reduce-scatter: send is [world_size * slice_elems] of send_dtype; rank r gets slice r:
 *   x = round_to(comm_dtype, ((g0 + g1) + g2 ...) * scale), in fp32, ranks in order;
 *   with weights, rank k's gradient is gk * (float)weights[k], in fp32;
 *   accumulate ? recv = round_to(recv_dtype, recv + x) : recv = x.
 * It is in place when recv == send + rank * slice_elems and the types are equal. All-reduce: the
 * same for every slice; recv is [world_size * slice_elems]. It is in place when recv == send.
 * accumulate must be 0, and recv_dtype equal to send_dtype and comm_dtype. */
typedef struct sherdi_reduction_args {
    const void *send;
    void       *recv;
    size_t      slice_elems;
    /* the type that is sent; comm_dtype or one that converts to it exactly */
    sherd_dtype send_dtype;
    sherd_dtype comm_dtype;
    sherd_dtype recv_dtype;
    float       scale;
    int         accumulate;
    /* By rank, at most 1, the same on all ranks; does not change until the call is done. NULL: all
     * are 1. Deterministic: a rank's weight multiplies the multiplier of its integers */
    const double *weights;
    /* Not NULL: a deterministic reduce-scatter. recv is int64_t [slice_elems] and gets the sum of
     * the gradients' integers (sherdi_fixed_element), with no order and no scale in it; comm_dtype
     * and recv_dtype are ignored. The call adds to the counts when it is executed; those of all
     * ranks together are of all slices, since a rank may add up, and count, for others. */
    const sherdi_fixed_sink *fixed;
    /* Not NULL: adds elements of 8 bytes in place of the kernels (sherdi_integers_add); types, scale
     * and accumulate are ignored. In host memory. */
    void (*add)(const void *const *srcs, int num_srcs, void *dst, size_t count);
    /* The name of the reduced unit; ranks compare it, and the message has it when they disagree.
     * Lives until the call is done; may be NULL */
    const char                  *what;
    uint32_t                     flags;
    const sherdi_world_observer *observer; /* lives until the call is done; NULL: nobody listens */
} sherdi_reduction_args;

/* Capabilities of a transport, asked for once. */
#define SHERDI_WORLD_SHARES_MEMORY 1u /* peers' sherdi_world_alloc memory is read in place */
#define SHERDI_WORLD_SIMULATES     2u /* moves nothing: contents of buffers mean nothing */
#define SHERDI_WORLD_ON_LANE       4u /* orders device collectives on the lane of its backend */
#define SHERDI_WORLD_TAKES_BACK    8u /* its ranks of one host are peers: regroup.h */

struct sherdi_split;
struct world_device_slots;

/* The table of a transport. Its slots are called by one thread at a time, in the same order on all
 * ranks, with valid arguments. They block until the local result is complete and the send buffer
 * may be reused. Memory may be any; memory of `alloc` is the fastest. No slot allocates, except
 * `alloc`. A world of one rank, and one that simulates, need only the first three functions: the
 * layer above copies, or does nothing.
 *
 * On a device, a transport without ON_LANE sees host memory alone: staged.c carries the bytes. One
 * with ON_LANE gets device memory if SHERDI_COLL_HOST is not set, queues on world->backend, and may
 * return before the lane is done. */
typedef struct sherdi_world_ops {
    size_t      struct_size;
    const char *name;
    uint32_t    caps;

    /* Required. Closes the world, even a half-built one. Does not meet. */
    void (*close)(sherd_world *world);
    /* Required, except for worlds that always have a device: the layer above has their memory.
     * Collective, with equal len_bytes on all ranks: gives zeroed memory, SHERD_ALIGN_BYTES
     * aligned, at the same offset for all. When one rank fails, all fail. */
    sherd_status (*alloc)(sherd_world *world, size_t len_bytes, void **out);
    /* Required with `alloc`. Frees its memory. Local. Peers may continue to read the memory of this
     * rank until they free theirs. */
    void (*free)(sherd_world *world, void *memory);
    sherd_status (*barrier)(sherd_world *world);
    sherd_status (*all_gather)(sherd_world *world, const sherdi_all_gather_args *args);
    sherd_status (*reduce_scatter)(sherd_world *world, const sherdi_reduction_args *args);
    sherd_status (*all_reduce)(sherd_world *world, const sherdi_reduction_args *args);
    sherd_status (*broadcast)(sherd_world *world, void *data, size_t len_bytes, int root);
    /* Optional (NULL = no other rank exists). Makes all ranks' calls fail. Any thread may call it;
     * it never blocks. */
    void (*abort)(sherd_world *world, const char *why);

    /* Optional (NULL = by reduce_scatter and all_gather of host memory): sherdi_world_sum_u64. */
    sherd_status (*sum_u64)(sherd_world *world, uint64_t *values, size_t count);
    /* Optional (NULL = it takes no memory of the device and knows no better one): device.h. */
    const struct world_device_slots *device;
    /* Optional (NULL = the ranks cannot be notified). Notifies every other rank, which notes it
     * (sherdi_world_told); a message that is lost in transit is not repeated. Any thread may
     * call it; it never blocks. */
    void (*tell_ending)(sherd_world *world, uint64_t key, int is_agreed);
    /* Optional (NULL = it cannot be split, unless split.c knows how). Makes the world of this
     * rank's group, over the same transport. All ranks of split->parent call it, those of no group
     * too. It calls sherdi_split_tell equally often on all ranks, and sherdi_split_adopt, as
     * collectives/split.h says. If it fails and sets *out, the caller destroys that world. */
    sherd_status (*split)(struct sherdi_split *split, sherd_world **out);
} sherdi_world_ops;

/* ---- functions for the engine. With `ticket_out` NULL a call returns when it is done. Otherwise it
 * is queued where the world overlaps (and done at once where it does not), and follow.h takes the
 * ticket. */

uint32_t sherdi_world_caps(const sherd_world *world);
/* Returns the lane of collectives, on the device that holds the engine's memory. */
const sherdi_backend *sherdi_world_backend(const sherd_world *world);
/* Returns the CPU, for what rests in host memory; the same as above where there is no other
 * device. */
const sherdi_backend *sherdi_world_host(const sherd_world *world);
int                   sherdi_world_local_size(const sherd_world *world);
/* The bytes that a world itself holds on a rank. */
typedef struct sherdi_world_held {
    size_t
        overhead_bytes; /* segments for control and for copies on their way, room for reductions */
    size_t room_bytes;  /* of that room; sherdi_world_reserve (room.h) */
    size_t taken_bytes; /* by the transport, of a device; sherdi_world_warm */
} sherdi_world_held;
const sherdi_world_held *sherdi_world_held_of(const sherd_world *world);

/** Blocks until every queued call has ended, whatever becomes of it. A call that the caller's
 *  thread then executes is still in the order of the calls. */
void sherdi_world_drain(sherd_world *world);

/** Adds an owner and returns `world`. sherd_world_destroy drops one. */
sherd_world *sherdi_world_retain(sherd_world *world);

/** Makes calls with a ticket run on a thread of the world from now on. Idempotent. E_NOTSUP when
 *  the transport cannot be called from another thread. */
sherd_status sherdi_world_overlap(sherd_world *world);

/** Allocates memory of the world, on its device if it has one; see sherdi_world_ops. Collective,
 *  blocking, with equal len_bytes on all ranks; 0 gives a valid pointer. */
sherd_status sherdi_world_alloc(sherd_world *world, size_t len_bytes, void **out);
/** Waits for queued calls, then frees the memory. Accepts NULL. */
void sherdi_world_free(sherd_world *world, void *memory);

sherd_status sherdi_world_all_gather(sherd_world *world, const sherdi_all_gather_args *args,
                                     sherdi_ticket *ticket_out);
sherd_status sherdi_world_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args,
                                         sherdi_ticket *ticket_out);
sherd_status sherdi_world_all_reduce(sherd_world *world, const sherdi_reduction_args *args,
                                     sherdi_ticket *ticket_out);
/** Exchanges small control data: all[r * len_bytes ..] is the data of rank r. Meets. Blocking. On
 *  the simulated world every rank's part is a copy of `mine`. `what` names the exchange, the same
 *  on all ranks, where a rank calls something else. */
sherd_status sherdi_world_exchange(sherd_world *world, const void *mine, void *all,
                                   size_t len_bytes, const char *what);

/* Most bytes of a message of a rank. */
#define SHERDI_TOLD_BYTES ((size_t)4096)

/* The messages of all ranks, valid until the next call on the world. */
typedef struct sherdi_messages {
    const void *first;
    size_t      stride_bytes; /* from rank to rank; 0: all messages are the same */
} sherdi_messages;

/** Exchanges control data like sherdi_world_exchange; the messages are in memory of the world. */
sherd_status sherdi_world_tell(sherd_world *world, const void *mine, size_t len_bytes,
                               const char *what, sherdi_messages *out);

static inline const void *sherdi_message_of(const sherdi_messages *messages, int rank)
{
    return (const unsigned char *)messages->first + (size_t)rank * messages->stride_bytes;
}

/** Begins every call of the program on a world. Returns E_INVAL if the world is NULL, and E_STATE
 *  inside a function of the program that a call of one of its engines calls
 *  (sherdi_world_callback_set). The message begins with `call`. */
sherd_status sherdi_world_check_caller(sherd_world *world, const char *call);
/** Notes the call of the program, on a world or on one of its engines, to which later messages
 *  belong: for error messages. Static storage. */
void sherdi_world_caller_note(sherd_world *world, const char *call);
/** Returns the call that was noted last. */
const char *sherdi_world_caller(const sherd_world *world);
/** Notes that `call` executes a function of the program, which may not use the world; NULL: no call
 *  does. Returns the earlier note, to be set again: the function may use another engine of the
 *  world. */
const char *sherdi_world_callback_set(sherd_world *world, const char *call);
/** Returns E_STATE if `call` is made inside a function of the program: one that `outer` calls
 *  (NULL: no call does), or the log's. */
sherd_status sherdi_callback_check(const char *call, const char *outer);
/** Returns the failure of the world, if it has one: E_PEER_LOST and the message; else SHERD_OK. */
sherd_status sherdi_world_status(sherd_world *world);

/* Bytes that a call puts on the wire for one rank: sent, which equals received. They do not depend
 * on the transport: the plan counts with them. */
static inline uint64_t sherdi_wire_all_gather(int world_size, size_t slice_bytes)
{
    return (uint64_t)(world_size - 1) * slice_bytes;
}

#endif
