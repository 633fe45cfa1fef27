/* Ranks of one host that read each other's memory: the algorithms of threads, shm and mpi. A
 * transport supplies the shared control block, memory that all ranks can see (hooks), and the news
 * of a failure. The functions here meet, find the peers' pointers and move the data; peers_meet.c
 * has the meetings and the memory, peers.c the calls. The calls are functions of sherdi_world_ops
 * for a world on which sherdi_peers_init was called.
 *
 * Meetings are counted. For meeting m a rank publishes its note, its mail and a half of its bounce
 * buffer (bounce.h), all chosen by m's parity. The other ranks read them before they come to meeting
 * m + 1, and the rank writes them again only for meeting m + 2. So one meeting per portion is
 * enough. */
#ifndef SHERDI_COLLECTIVES_PEERS_H
#define SHERDI_COLLECTIVES_PEERS_H

#include "collectives/world_impl.h"

/* An all-gather of up to this number of bytes is sent with the note: it needs no second meeting. */
#define PEERS_MAIL_BYTES 1024
/* Bytes of a call's name that an error message shows. */
#define PEERS_NAME_BYTES 64

/* A position in world memory: a segment, and an offset that counts from the start of a rank's
 * share, so that it is the same for all ranks. Segment 0 means "none". For device memory of ranks
 * that are threads it is a plain address. */
#define PEERS_ADDRESS UINT32_MAX
typedef struct peers_address {
    uint32_t segment;      /* or PEERS_ADDRESS */
    uint64_t offset_bytes; /* or the address */
} peers_address;

/* The description that a rank publishes of its call at the call's first meeting. */
typedef struct peers_note {
    uint32_t      kind;   /* world_call_kind */
    uint32_t      detail; /* types, flags, root: must be equal on all ranks */
    uint32_t      scale_bits;
    int32_t       status; /* sherd_status of this rank; its message is in the mail */
    uint64_t      len_bytes;
    peers_address send;
    peers_address recv;
    uint64_t      name_hash;                  /* of args->what; 0: none */
    char          name[PEERS_NAME_BYTES];     /* the end of the name, for messages */
    char          caller[WORLD_CALLER_BYTES]; /* for messages; sherdi_peers_meet_with sets it */
} peers_note;

typedef struct peers_slot {
    _Alignas(64) _Atomic uint64_t meetings; /* number of meetings to which this rank has come */
    atomic_int           has_left;
    struct peers_device *device; /* of a rank of this process; NULL: it has no device */
    peers_note           notes[2];
    _Alignas(64) unsigned char mail[2][PEERS_MAIL_BYTES];
} peers_slot;

/* Of peers_control.arrived: a rank has left a meeting for a failure, and nobody comes any more. */
#define PEERS_CLOSED (UINT64_C(1) << 63)

/* Lies in memory that all ranks of the host share; zeroed at the start. */
typedef struct peers_control {
    _Alignas(64) atomic_uint generation;   /* futex; the number of the last complete meeting */
    _Alignas(64) _Atomic uint64_t arrived; /* of all ranks, at all meetings; or PEERS_CLOSED */
    _Alignas(64) atomic_uint sleepers;
    /* of ranks that are processes: as in sherd_world */
    atomic_int failure_state;
    int        failure_status;
    char       failure_text[SHERDI_ERROR_BYTES];
    peers_slot slots[]; /* [count] */
} peers_control;

typedef struct peers_segment {
    uint32_t       number; /* from 1 on, equal on all ranks; 0: free entry */
    unsigned char *base;   /* share of rank i at base + i * share_bytes */
    size_t         share_bytes;
    void          *handle; /* the transport's */
} peers_segment;

typedef struct sherdi_peers sherdi_peers;

/* How a transport makes memory that all ranks of the host see: in two steps, with a meeting between
 * them. */
typedef struct peers_hooks {
    /* Called on index 0 only. Makes `len_bytes` zero bytes and keeps them until take or unmake. */
    sherd_status (*make)(sherdi_peers *peers, size_t len_bytes);
    void (*unmake)(sherdi_peers *peers);
    /* Called on all ranks. Sets *base_out to the same bytes on all. */
    sherd_status (*take)(sherdi_peers *peers, size_t len_bytes, unsigned char **base_out,
                         void **handle_out);
    void (*drop)(sherdi_peers *peers, unsigned char *base, size_t len_bytes, void *handle);
    /* Optional (NULL: a failure reaches the worlds of all ranks at once). Fails this rank's world if
     * another rank has failed. */
    void (*look)(sherdi_peers *peers);
} peers_hooks;

/* Device memory of ranks that are threads of one process (peers_device.c): its kernels read peers'
 * memory in place, and what their device does not reach is copied to scratch. */
typedef struct peers_device_ops {
    /* Returns whether ranks with these parameters would be on several devices. */
    int (*is_spread)(const sherd_world_params *params, int world_size);
    /* Prepares the peers for device memory: from then on their calls on it are queued on the
     * world's lane. Call it after the world was equipped, and before any rank's first call.
     * `readers` is of the group: the number of ranks in a call, which use others' memory.
     * `is_spread`: not all ranks are on this rank's device. Does nothing for one rank. */
    sherd_status (*open)(sherdi_peers *peers, atomic_int *readers, int is_spread);
    /* Lets the rank's device read the memory of the others directly, where devices can. */
    void (*reach)(sherd_world *const *worlds, int world_size, int rank);
    /* Call it after sherdi_peers_leave. Accepts a device that is not completely open. */
    void (*close)(sherdi_peers *peers);
    /* The first meeting of a call. Afterwards the lane runs after all work that any rank had queued
     * before the call. */
    sherd_status (*begin)(sherdi_peers *peers, const peers_note *note);
    /* The last meeting of a call. Afterwards the lane runs after the work of all ranks in the
     * call. */
    sherd_status (*end)(sherdi_peers *peers);
} peers_device_ops;

struct sherdi_peers {
    sherd_world            *world;
    const peers_hooks      *hooks;
    struct peers_device    *device;  /* peers_device.c; NULL: calls use host memory only */
    unsigned char          *scratch; /* on the device, where the ranks are on several; else NULL */
    size_t                  scratch_bytes; /* for the slice of each rank */
    const sherdi_backend   *lane;          /* moves and sums for the call in progress */
    const peers_device_ops *on_device;     /* of this call; NULL: it is on host memory */
    int                     count;         /* number of ranks on this host */
    int                     me;            /* index of this rank among them */
    int                    *ranks;         /* [count], ascending: rank of an index */
    peers_control          *control;
    unsigned char          *bounce;            /* the bounce buffers of all ranks; bounce.h */
    size_t                  spins, most_spins; /* looks before sleeping: now, and at most */
    uint64_t                meetings;
    peers_segment          *segments;
    size_t                  segment_capacity;
    uint32_t                last_number;
    const void            **srcs; /* [world_size] by rank: scratch of a reduction */
    void                  **dsts; /* [count] */
};

/** Returns the bytes of the control block and the bounce buffers for `count` ranks, in one
 *  mapping. */
size_t sherdi_peers_shared_bytes(int count);

/** Initialises the peers of a world. `shared` is zeroed memory of sherdi_peers_shared_bytes;
 *  `ranks` (NULL: all of the world) is copied. Errors: E_NOMEM. */
sherd_status sherdi_peers_init(sherdi_peers *peers, sherd_world *world, const peers_hooks *hooks,
                               int count, int me, const int *ranks, void *shared);
/** Declares that this rank comes to no further meeting. */
void sherdi_peers_leave(sherdi_peers *peers);
/** Leaves, and drops all segments. The transport frees the shared memory. */
void sherdi_peers_fini(sherdi_peers *peers);

/** Wakes the waiting ranks, so that they check for a failure of their world. Any thread may call
 *  it. */
void sherdi_peers_wake(sherdi_peers *peers);
/** Returns the failure of the host's ranks or of the world, else SHERD_OK. */
sherd_status sherdi_peers_check(sherdi_peers *peers);

/* Parts of a call; peers_meet.c. */

/** Comes to the next meeting and blocks until all ranks have come. Afterwards every rank sees the
 *  notes that the others published before it. */
sherd_status sherdi_peers_meet(sherdi_peers *peers);
/** The first meeting of a call: publishes the note and up to PEERS_MAIL_BYTES of mail, meets, and
 *  compares the notes of all ranks. */
sherd_status sherdi_peers_meet_with(sherdi_peers *peers, const peers_note *note, const void *mail,
                                    size_t mail_bytes);
/** Return the note that a rank published for the last meeting; valid until the next one. */
const peers_note *sherdi_peers_note(const sherdi_peers *peers, int index);
unsigned char    *sherdi_peers_mail(sherdi_peers *peers, int index);
/** Writes a description of the call of a note, and returns `text`. */
const char *sherdi_peers_describe(const peers_note *note, char text[WORLD_CALL_TEXT_BYTES]);
/** Returns the position of [data, data + len_bytes) in this rank's share of world memory; segment
 *  0: it is not in it. */
peers_address sherdi_peers_find_address(const sherdi_peers *peers, const void *data,
                                        size_t len_bytes);
/** Returns the memory of a rank at a position; NULL when this rank has freed the segment. */
unsigned char *sherdi_peers_at(const sherdi_peers *peers, int index, peers_address address);

/** Copies memory that this rank reaches. */
static inline void sherdi_peers_copy(const sherdi_peers *peers, void *dst, const void *src,
                                     size_t len_bytes)
{
    if (dst != src && len_bytes > 0) {
        peers->lane->kernels->copy(peers->lane, dst, src, len_bytes);
    }
}

/** Returns the index to read from in a step. Each rank starts at its neighbour, so that not all
 *  read one rank's memory at once. */
static inline int sherdi_peers_neighbour(const sherdi_peers *peers, int step)
{
    return (peers->me + step) % peers->count;
}

/** Returns where the slice of a rank is gathered. */
static inline unsigned char *sherdi_peers_slice(const sherdi_peers           *peers,
                                                const sherdi_all_gather_args *args, int index)
{
    return (unsigned char *)args->recv + (size_t)peers->ranks[index] * args->slice_bytes;
}

/* A reduction: what does not change from portion to portion. */
typedef struct reduction_work {
    const sherdi_reduction_args *args;
    size_t                       elem_bytes, slice_bytes; /* of what is sent */
    int                          is_shared; /* the ranks of the host read each other's `send` */
} reduction_work;

/** Begins a reduction, in which the ranks of the host compare it; and ends it, after which nobody
 *  reads this rank's `send` any more. */
sherd_status sherdi_peers_reduction_begin(sherd_world *world, const sherdi_reduction_args *args,
                                          reduction_work *work);
sherd_status sherdi_peers_reduction_end(sherdi_peers *peers, const reduction_work *work);
/** Returns how many of `count` elements can be added up at once. */
size_t sherdi_peers_sum_portion(const sherdi_peers *peers, const reduction_work *work,
                                size_t count);
/** Each rank of the host adds up a slice: index i slice slices[i] (-1: none). Sets peers->srcs for
 *  the ranks of this host to `len_bytes` of their data for this rank's slice, at an address where
 *  peers->lane can add them up. All ranks of the host call it. */
sherd_status sherdi_peers_sources_find(sherdi_peers *peers, const reduction_work *work,
                                       const int *slices, size_t first_byte, size_t len_bytes);

/* The calls: functions of sherdi_world_ops, among the ranks of this host. A slice lies at the
 * position of its rank in the world. */

sherd_status sherdi_peers_barrier(sherd_world *world);
sherd_status sherdi_peers_alloc(sherd_world *world, size_t len_bytes, void **out);
void         sherdi_peers_free(sherd_world *world, void *memory);
sherd_status sherdi_peers_all_gather(sherd_world *world, const sherdi_all_gather_args *args);
sherd_status sherdi_peers_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args);
sherd_status sherdi_peers_all_reduce(sherd_world *world, const sherdi_reduction_args *args);

/* Calls on memory that is not the world's (bounce.h). All ranks make them after the first meeting of
 * the call. */
typedef struct peers_bounce_ops {
    size_t buffer_bytes; /* of a rank */
    sherd_status (*gather)(sherdi_peers *peers, const sherdi_all_gather_args *args);
    /* Puts bytes of slices where the others find them, and meets: for index i of slice slices[i]; -1:
     * none. At most share_bytes. */
    sherd_status (*shares_fill)(sherdi_peers *peers, const reduction_work *work, const int *slices,
                                size_t first_byte, size_t len_bytes);
    /* Returns what a rank has put there for this one. */
    const unsigned char *(*share_of)(const sherdi_peers *peers, int index);
    size_t (*share_bytes)(const sherdi_peers *peers);
} peers_bounce_ops;

#endif
