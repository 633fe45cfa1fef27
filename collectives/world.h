/* A world: ranks that move memory between each other. Transports implement the ops
 * table and block on the calling thread; this layer checks arguments, counts bytes,
 * keeps the order, and runs calls on the world's own thread when asked to overlap.
 *
 * Order. One thread drives a world. Calls are executed strictly in the order in which
 * they were made, whether a ticket is taken or not, so all ranks meet in the same order.
 *
 * Failure. When a rank dies, fails or aborts, calls in progress and all later ones
 * return E_PEER_LOST within seconds, with the rank and the reason; nobody hangs. */
#ifndef SHERDI_COLLECTIVES_WORLD_H
#define SHERDI_COLLECTIVES_WORLD_H

#include "base/mem.h"
#include "kernels/backend.h"
#include "sherd.h"

/* Devices. `send` and `recv` are memory of the world's backend (sherdi_world_backend), a lane of the
 * world's own: the caller has it follow the lanes that wrote `send` and used `recv` before the call
 * (sherdi_lane_follow), and has the lane that needs the result follow the ticket
 * (sherdi_world_follow). A transport that orders its work on the lane (nccl, threads, one rank) returns before
 * it is done, with tickets that are events; one that moves through the host (shm, mpi: staged.c) waits for the
 * lane on the world's thread, and its ticket is done when the result is on the device. Without a ticket every
 * call returns when it is done. Control data (exchange, sums, broadcast, SHERDI_COLL_HOST) is host memory, and
 * does not wait for what is queued on the lane. */

/* Position in the queue of a world; 0 is "done before the start". */
typedef uint64_t sherdi_ticket;

/* The senders' memory is the world's (sherdi_world_alloc), was complete at the last call
 * that met (barrier, exchange, reduction) and will not change before the next one: a
 * transport that can read peers' memory need not meet for this call. */
#define SHERDI_COLL_STABLE 1u
/* The buffers are host memory, whatever the backend; complete when the call returns. */
#define SHERDI_COLL_HOST 2u
/* Of a reduction: the sum of the transport's vendor, in any order and rounding it likes, in place of the one
 * reduction. Only where SHERDI_WORLD_VENDOR_SUMS says so; without effect on one rank. */
#define SHERDI_COLL_VENDOR_SUM 8u

/* recv [world_size * slice_bytes]; in place when send == recv + rank * slice_bytes. */
typedef struct sherdi_all_gather_args {
    const void *send;
    void       *recv;
    size_t      slice_bytes;
    uint32_t    flags;
    const char *what; /* as in sherdi_reduction_args; compared where the call meets */
} sherdi_all_gather_args;

/* Lives until the call is done. */
typedef struct sherdi_fixed_sink {
    double               multiplier;
    double               limit;
    sherdi_fixed_counts *counts;
} sherdi_fixed_sink;

/* Reduce-scatter: send [world_size * slice_elems] of send_dtype; rank r gets slice r:
 *   x = round_to(comm_dtype, ((g0 + g1) + g2 ...) * scale), in fp32, ranks in order;
 *   accumulate ? recv = round_to(recv_dtype, recv + x) : recv = x.
 * In place when recv == send + rank * slice_elems and types are equal.
 * All-reduce: the same for every slice, recv [world_size * slice_elems]; in place when
 * recv == send; accumulate must be 0 and recv_dtype equal to send_dtype and comm_dtype. */
typedef struct sherdi_reduction_args {
    const void *send;
    void       *recv;
    size_t      slice_elems;
    sherd_dtype send_dtype; /* what travels; comm_dtype or a type that converts to it exactly */
    sherd_dtype comm_dtype;
    sherd_dtype recv_dtype;
    float       scale;
    int         accumulate;
    /* Deterministic: not NULL makes recv int64_t [slice_elems], the integers of the gradients
     * (sherdi_fixed_element) added, no order and no scale in it; comm_dtype and recv_dtype are
     * not looked at. Reduce-scatter only. The counts are added to when the call runs. */
    const struct sherdi_fixed_sink *fixed;
    const char
            *what; /* the name of it, compared and told when ranks disagree; lives until the call is
                         done; may be NULL */
    uint32_t flags; /* SHERDI_COLL_VENDOR_SUM or 0 */
} sherdi_reduction_args;

/* send and recv [world_size * slice_bytes], not overlapping: recv slice s is what rank s
 * had in its send slice of the receiver. */
typedef struct sherdi_all_to_all_args {
    const void *send;
    void       *recv;
    size_t      slice_bytes;
    uint32_t    flags; /* SHERDI_COLL_HOST (not where a transport has sum_u64) or 0 */
} sherdi_all_to_all_args;

/* Capabilities, asked once. */
#define SHERDI_WORLD_SHARES_MEMORY 1u /* peers' sherdi_world_alloc memory is read in place */
#define SHERDI_WORLD_SIMULATES     2u /* moves nothing: contents of buffers mean nothing */
#define SHERDI_WORLD_ON_LANE       4u /* orders device collectives on the lane of its backend */
#define SHERDI_WORLD_VENDOR_SUMS   8u /* knows SHERDI_COLL_VENDOR_SUM */

struct sherdi_split;

/* A transport. Slots are called by one thread at a time, in the same order on all ranks,
 * with valid arguments, and block until the local result is complete and the send buffer may be reused.
 * Memory may be any; it is fastest in memory of `alloc`. None allocates (but alloc). A world of one rank
 * and one that simulates need the first three alone: the layer above copies, or does nothing.
 *
 * On a device a transport without ON_LANE sees host memory alone: staged.c carries the bytes. One with it
 * is given device memory where SHERDI_COLL_HOST is not set, queues on world->backend, and may return before
 * the lane is done. */
typedef struct sherdi_world_ops {
    size_t      struct_size;
    const char *name;
    uint32_t    caps;

    /* Required, may be called with a half-built world. No meeting. */
    void (*close)(sherd_world *world);
    /* Required but of worlds that always have a device, whose memory is the layer's above. Collective, equal
     * len_bytes on all: zeroed memory, SHERD_ALIGN_BYTES aligned, at the same offset for all. On failure of one
     * rank all ranks fail. */
    sherd_status (*alloc)(sherd_world *world, size_t len_bytes, void **out);
    /* With it. Local. Peers may go on reading what this rank had until they free theirs. */
    void (*free)(sherd_world *world, void *memory);
    sherd_status (*barrier)(sherd_world *world);
    sherd_status (*all_gather)(sherd_world *world, const sherdi_all_gather_args *args);
    sherd_status (*reduce_scatter)(sherd_world *world, const sherdi_reduction_args *args);
    sherd_status (*all_reduce)(sherd_world *world, const sherdi_reduction_args *args);
    sherd_status (*all_to_all)(sherd_world *world, const sherdi_all_to_all_args *args);
    sherd_status (*broadcast)(sherd_world *world, void *data, size_t len_bytes, int root);
    /* Optional (NULL = there is nobody to tell). Any thread, never blocks: makes all ranks' calls fail. */
    void (*abort)(sherd_world *world, const char *why);

    /* Optional (NULL = calls that some ranks have made cannot be taken back): sherdi_world_regroup of ranks on one host. */
    sherd_status (*regroup)(sherd_world *world);
    /* Optional (NULL = by all_to_all and all_gather of host memory): sherdi_world_sum_u64. */
    sherd_status (*sum_u64)(sherd_world *world, uint64_t *values, size_t count);
    /* Optional (NULL = none): sherdi_world_reserve_bytes. */
    size_t (*reserve_bytes)(const sherd_world *world, size_t whole_bytes);
    /* Optional (NULL = calls take nothing of the device): sherdi_world_warm. */
    sherd_status (*warm)(sherd_world *world, int has_vendor_sums);
    /* Optional, both or none (NULL = the device's memory will do): device memory of a library that moves its own faster,
     * zeroed; *out NULL with SHERD_OK: the device's will do. drop gives it back, with no call under way. */
    sherd_status (*memory_make)(sherd_world *world, size_t len_bytes, void **out);
    void (*memory_drop)(sherd_world *world, void *memory);
    /* Optional: device memory was added to the world, or is about to be freed. For a library that moves
     * registered memory faster; what it cannot do stays undone. `handle` is what enter returned; NULL: nothing. */
    void *(*memory_enter)(sherd_world *world, void *memory, size_t len_bytes);
    void (*memory_leave)(sherd_world *world, void *handle);
    /* Optional (NULL = the ranks cannot be told). Any thread, never blocks: every other rank notes it
     * (sherdi_world_ending_note). What is lost on the way is not told. */
    void (*tell_ending)(sherd_world *world, uint64_t key, int is_agreed);
    /* Optional (NULL = it cannot be split). Called by all ranks of split->parent, those of no group too: makes the world
     * of this rank's group, over the same transport. Calls sherdi_split_tell equally often on all, and
     * sherdi_split_adopt, as collectives/split.h has them. A world in *out beside a failure is the caller's to destroy. */
    sherd_status (*split)(struct sherdi_split *split, sherd_world **out);
} sherdi_world_ops;

/* ---- what the engine uses. `ticket_out` NULL: returns when done; else queued where the
 *      world overlaps (done at once where it does not), and sherdi_world_wait takes the ticket. */

uint32_t sherdi_world_caps(const sherd_world *world);
/* The lane of collectives, on the device that holds the engine's memory. */
const sherdi_backend *sherdi_world_backend(const sherd_world *world);
/* The CPU, for what rests in host memory; the same as above where there is no other device. */
const sherdi_backend *sherdi_world_host(const sherd_world *world);
int                   sherdi_world_local_size(const sherd_world *world);
/* Bytes that the world itself holds on this rank: segments for control and bouncing. */
size_t sherdi_world_overhead_bytes(const sherd_world *world);

/** Told of every gather and reduction that runs on the host's side of a transport, when it is over, by the thread
 *  that ran it; `what` is the call's. NULL: nobody. Not for calls on a lane, which the caller can mark. */
typedef void (*sherdi_world_observe_fn)(void *ctx, int is_reduction, const char *what,
                                        uint64_t bytes, int64_t start_ns, int64_t end_ns);
void sherdi_world_observe(sherd_world *world, sherdi_world_observe_fn fn, void *ctx);

/** The NCCL that this process can load, "2.28.9", or why it cannot; valid until the next call on this thread. */
const char *sherdi_world_nccl_text(void);
/** The MPI that this process has or can open, "Open MPI v4.1.4, FILE", or "no: " and why; as above. */
const char *sherdi_world_mpi_text(void);

/** Another owner. sherd_world_destroy drops one. */
sherd_world *sherdi_world_retain(sherd_world *world);

/** From now on calls with a ticket run on a thread of the world's own. Idempotent.
 *  E_NOTSUP when the transport cannot be called from another thread. */
sherd_status sherdi_world_overlap(sherd_world *world);

/** Collective, blocking; see the slot. Equal len_bytes on all; 0 gives a valid pointer. Memory of the world's
 *  device where it has one. */
sherd_status sherdi_world_alloc(sherd_world *world, size_t len_bytes, void **out);
/** Waits for queued calls, then frees. Accepts NULL. */
void sherdi_world_free(sherd_world *world, void *memory);

/**
 * Room for reductions: a transport that cannot sum in the order of ranks receives the other ranks' slices
 * and sums them itself. The engine reserves once, at seal, for the largest gradient that is reduced.
 *
 * Units      whole_bytes is world_size * slice_elems elements of send_dtype, the send buffer of the call.
 * Collective equal whole_bytes on all; nothing to do where it is not more than before, or not needed.
 * Ownership  the world's; enters sherdi_world_overhead_bytes with sherdi_world_reserve_bytes of it.
 * Errors     E_NOMEM on all ranks. A reduction that was not reserved for is E_NOMEM with the numbers.
 */
sherd_status sherdi_world_reserve(sherd_world *world, size_t whole_bytes);
/** What a reservation holds on this rank, for the plan: 0 on most transports. */
size_t sherdi_world_reserve_bytes(const sherd_world *world, size_t whole_bytes);
/** What is reserved now. */
size_t sherdi_world_reserved_bytes(const sherd_world *world);

/**
 * Lets the transport take what it takes of the device at its first calls (buffers of each peer), by a small call of each
 * kind: what is free after it is the engine's. Once; nothing on most transports. The log says how much it was, and
 * sherdi_world_taken_bytes; where others take of the device meanwhile, with theirs.
 *
 * Collective Blocks until all are through. `has_vendor_sums`: SHERDI_COLL_VENDOR_SUM will be asked for.
 * Errors     E_NOMEM on all ranks; E_DEVICE, E_PEER_LOST as every call.
 */
sherd_status sherdi_world_warm(sherd_world *world, int has_vendor_sums);
size_t       sherdi_world_taken_bytes(const sherd_world *world);

/* The machine that a simulated rank stands for; sizes that are not known are 0. */
typedef struct sherdi_simulated {
    int    has_device;  /* device memory is not the host's */
    int    has_receive; /* reductions are received into room of the world's own */
    int    is_on_lane;  /* collectives are ordered on the device */
    int    ranks_per_host;
    size_t device_bytes, host_bytes;
} sherdi_simulated;
/** NULL for a world that is real. */
const sherdi_simulated *sherdi_world_simulated(const sherd_world *world);

sherd_status sherdi_world_all_gather(sherd_world *world, const sherdi_all_gather_args *args,
                                     sherdi_ticket *ticket_out);
sherd_status sherdi_world_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args,
                                         sherdi_ticket *ticket_out);
sherd_status sherdi_world_all_reduce(sherd_world *world, const sherdi_reduction_args *args,
                                     sherdi_ticket *ticket_out);
sherd_status sherdi_world_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args,
                                     sherdi_ticket *ticket_out);
/**
 * Every rank comes here from wherever it is in the order of calls, and all leave together: what some of them still
 * wait in ends there with E_STATE and its result undefined, queued calls too, and the world is as whole as before.
 * Where the transport cannot take such a call back (nccl, mpi over several hosts) all ranks must have made equally many.
 *
 * Collective, blocking; waits for this rank's queued calls. Failures of tickets are forgotten.
 * Errors     E_STATE or E_INVAL, and the world is lost: calls that cannot be taken back. E_PEER_LOST.
 */
sherd_status sherdi_world_regroup(sherd_world *world);
/** Whether sherdi_world_regroup ends calls that some ranks have made and others have not. */
int sherdi_world_takes_back(const sherd_world *world);

/** Small control data: all[r * len_bytes ..] is what rank r gave. Meets. Blocking. On the
 *  simulated world every rank's part is a copy of `mine`. */
sherd_status sherdi_world_exchange(sherd_world *world, const void *mine, void *all,
                                   size_t len_bytes);

/** values[i] becomes the sum over the ranks modulo 2^64, on all. Host memory, `count` equal on all. Meets.
 *  Blocking; allocates nothing. On the simulated world values stay. */
sherd_status sherdi_world_sum_u64(sherd_world *world, uint64_t *values, size_t count);

/** Blocks until the call with this ticket is done; its failure, or that of an earlier call. */
sherd_status sherdi_world_wait(sherd_world *world, sherdi_ticket ticket);
/** Later work on `lane` comes after the call with this ticket. Does not wait for the device where the call is
 *  on a lane (SHERDI_WORLD_ON_LANE), but for the thread of the world to have queued it, where there is one.
 *  Returns as sherdi_world_wait, of what is known. */
sherd_status sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                 sherdi_ticket ticket);
/** 1 when the call with this ticket is done. Never blocks. */
int sherdi_world_is_done(sherd_world *world, sherdi_ticket ticket);

/* Something that every rank ends, each when it comes to it: neither collective nor in the order of calls. The
 * owner's storage, the world's to write between open and close. */
typedef struct sherdi_ending {
    uint64_t              key;         /* the same on all ranks; 0: not open */
    int                   num_agreed;  /* of the other ranks */
    int                   num_refused; /* a rank that changed its mind is in both */
    struct sherdi_ending *next;
} sherdi_ending;

/** What the other ranks say of `key` counts from now on. All ranks open it before any of them can close it. */
void sherdi_world_ending_open(sherd_world *world, sherdi_ending *ending, uint64_t key);
/** Tells the others whether this rank agrees. 1: all ranks have come and agreed. 0: one did not, or did not come
 *  within `most_ns`, which is then told to those who come later (a rank with most_ns 0 agrees whatever the others
 *  do); at once when this rank or another one refuses, the
 *  world fails, or its transport has no way to tell. Nothing when it is not open. */
int sherdi_world_ending_close(sherd_world *world, sherdi_ending *ending, int is_agreed,
                              int64_t most_ns);
/** The longest wait in one call. */
int64_t sherdi_world_timeout_ns(const sherd_world *world);

/** The failure of the world, if it has one: E_PEER_LOST and the sentence; else SHERD_OK. */
sherd_status sherdi_world_status(sherd_world *world);

/* Sums work through their values in portions of so many for each rank. */
#define SHERDI_SUM_PORTION ((size_t)256)

/* What a call puts on the wire for one rank, sent (equal to received), independent of the
 * transport: the plan's counting. */
static inline uint64_t sherdi_wire_all_gather(int world_size, size_t slice_bytes)
{
    return (uint64_t)(world_size - 1) * slice_bytes;
}

/* Values of each rank in the next portion, `left` to go. */
static inline size_t sherdi_sum_slice(int world_size, size_t left)
{
    size_t each = left / (size_t)world_size + (left % (size_t)world_size != 0);

    return each < SHERDI_SUM_PORTION ? each : SHERDI_SUM_PORTION;
}

static inline uint64_t sherdi_wire_sum_u64(int world_size, size_t count)
{
    uint64_t bytes = 0;

    while (count > 0 && world_size > 1) {
        size_t slice   = sherdi_sum_slice(world_size, count);
        size_t portion = slice * (size_t)world_size;

        bytes += 2 * sherdi_wire_all_gather(world_size, slice * sizeof(uint64_t));
        count -= portion < count ? portion : count;
    }
    return bytes;
}

#endif
