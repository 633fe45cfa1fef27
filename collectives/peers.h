/* Ranks of one host that read each other's memory: the algorithms of threads, shm and mpi.
 * A transport supplies the shared control block, memory that all can see (hooks) and the
 * news of a failure; meeting, finding the peers' pointers and moving data are here. The calls are slots of
 * sherdi_world_ops for a world whose ranks sherdi_peers_init has brought together.
 *
 * Meetings are counted. What a rank publishes for meeting m (its note, its mail, its half of
 * the bounce buffer, all chosen by m's parity) is read by the others before they come to
 * m + 1, and written again only for m + 2. So one meeting a portion is enough. */
#ifndef SHERDI_COLLECTIVES_PEERS_H
#define SHERDI_COLLECTIVES_PEERS_H

#include "collectives/world_impl.h"

/* Up to so many bytes an all-gather travels with the note: one meeting, no second. */
#define PEERS_MAIL_BYTES 1024
/* As much of a call's name as an error tells. */
#define PEERS_NAME_BYTES 64
/* Each rank's bounce buffer has two halves of this. */
#define PEERS_HALF_BYTES ((size_t)1 << 20)

/* An offset in world memory, the same for every rank but for the share; segment 0 is "none". On a device of
 * ranks that are threads it is an address. */
#define PEERS_ADDRESS UINT32_MAX
typedef struct peers_address {
    uint32_t segment;      /* or PEERS_ADDRESS */
    uint64_t offset_bytes; /* or the address */
} peers_address;

/* What a rank says about its call when it comes to the first meeting of the call. */
typedef struct peers_note {
    uint32_t      kind;   /* world_call_kind */
    uint32_t      detail; /* types, flags, root: whatever must be equal */
    uint32_t      scale_bits;
    int32_t       status; /* sherd_status of this rank, with its sentence in the mail */
    uint64_t      len_bytes;
    peers_address send;
    peers_address recv;
    uint64_t      name_hash;              /* of args->what; 0: none */
    char          name[PEERS_NAME_BYTES]; /* its end, to be told */
} peers_note;

typedef struct peers_slot {
    _Alignas(64) _Atomic uint64_t meetings; /* that this rank has come to */
    atomic_int           has_left;
    struct peers_device *device; /* of a rank of this process; NULL: it has none */
    peers_note           notes[2];
    _Alignas(64) unsigned char mail[2][PEERS_MAIL_BYTES];
} peers_slot;

/* In memory that all ranks of the host share; zeroed at the start. */
typedef struct peers_control {
    _Alignas(64) atomic_uint generation; /* futex: changes when all have come */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint sleepers;
    atomic_int failure_state; /* as in sherd_world */
    int        failure_status;
    char       failure_text[SHERDI_ERROR_BYTES];
    peers_slot slots[]; /* [count] */
} peers_control;

typedef struct peers_segment {
    uint32_t       number; /* from 1, equal on all ranks; 0: free entry */
    unsigned char *base;   /* share of rank i at base + i * share_bytes */
    size_t         share_bytes;
    void          *handle; /* the transport's */
} peers_segment;

typedef struct sherdi_peers sherdi_peers;

/* Memory that all ranks of the host see, in two steps with a meeting between them. */
typedef struct peers_hooks {
    /* On index 0 only: makes `len_bytes` zero bytes. Keeps them until take or unmake. */
    sherd_status (*make)(sherdi_peers *peers, size_t len_bytes);
    void (*unmake)(sherdi_peers *peers);
    /* On all: *base_out points at the same bytes for all. */
    sherd_status (*take)(sherdi_peers *peers, size_t len_bytes, unsigned char **base_out,
                         void **handle_out);
    void (*drop)(sherdi_peers *peers, unsigned char *base, size_t len_bytes, void *handle);
} peers_hooks;

/* Portions that come from ranks of other hosts while a reduction runs portion by portion. */
typedef struct peers_wire {
    void  *ctx;
    size_t portion_bytes; /* at most, of one rank */
    sherd_status (*start)(void *ctx, const sherdi_reduction_args *args, size_t first_elem,
                          size_t count_elems);
    /* Waits for what was started; srcs[r] of other hosts' ranks from `first_byte` of it on. */
    sherd_status (*finish)(void *ctx, size_t first_byte, const void **srcs);
} peers_wire;

struct sherdi_peers {
    sherd_world          *world;
    const peers_hooks    *hooks;
    const peers_wire     *wire;   /* NULL: all ranks of the world are here */
    struct peers_device  *device; /* peers_device.h; NULL: calls are on host memory alone */
    const sherdi_backend *lane;   /* that the call in progress moves and sums on */
    int                   count;  /* ranks of this host */
    int                   me;     /* my index among them */
    int                  *ranks;  /* [count], ascending: rank of an index */
    peers_control        *control;
    unsigned char        *bounce; /* rank i's two halves at bounce + i * 2 * PEERS_HALF_BYTES */
    size_t                spins, most_spins; /* looks before sleeping: now, and at most */
    uint64_t              meetings;
    peers_segment        *segments;
    size_t                segment_capacity;
    uint32_t              last_number;
    const void          **srcs; /* [world_size] by rank: scratch of a reduction */
    void                **dsts; /* [count] */
};

/** Bytes of control block and bounce buffers for `count` ranks, one mapping. */
size_t sherdi_peers_shared_bytes(int count);

/** Takes zeroed shared memory (of sherdi_peers_shared_bytes), copies `ranks` (NULL: all of the world), and becomes the
 *  world's peers. */
sherd_status sherdi_peers_init(sherdi_peers *peers, sherd_world *world, const peers_hooks *hooks,
                               int count, int me, const int *ranks, void *shared);
/** Says that this rank comes to no further meeting. */
void sherdi_peers_leave(sherdi_peers *peers);
/** Leaves and drops all segments. The shared memory is the transport's. */
void sherdi_peers_fini(sherdi_peers *peers);

/** Any thread: makes all ranks of the host fail. */
void sherdi_peers_abort(sherdi_peers *peers, sherd_status status, const char *text);
/** Wakes those who wait so that they look at their world's failure. */
void sherdi_peers_wake(sherdi_peers *peers);
/** The failure of the host's ranks or of the world. */
sherd_status sherdi_peers_check(sherdi_peers *peers);

/* The portions of a call; peers_meet.c. */

/** Comes to the next meeting and waits until all have: what each published before it is
 *  everybody's after it. */
sherd_status sherdi_peers_meet(sherdi_peers *peers);
/** The first meeting of a call: publishes the note and up to PEERS_MAIL_BYTES, and compares
 *  the notes of all. */
sherd_status sherdi_peers_meet_with(sherdi_peers *peers, const peers_note *note, const void *mail,
                                    size_t mail_bytes);
/** What a rank published for the last meeting; valid until the next. */
const peers_note *sherdi_peers_note(const sherdi_peers *peers, int index);
unsigned char    *sherdi_peers_mail(sherdi_peers *peers, int index);
/** Where [data, data + len_bytes) lies in this rank's world memory; segment 0: not in it. */
peers_address sherdi_peers_find_address(const sherdi_peers *peers, const void *data,
                                        size_t len_bytes);
/** A rank's memory at an address; NULL when this rank has freed its share. */
unsigned char *sherdi_peers_at(const sherdi_peers *peers, int index, peers_address address);

/** Index of a rank among those of this host; -1: it is elsewhere. */
int sherdi_peers_index(const sherdi_peers *peers, int rank);

/* The calls: slots of sherdi_world_ops, among the ranks of this host; slices stand where their rank says. Reductions
 * take the other hosts' shares from the wire. */

sherd_status sherdi_peers_barrier(sherd_world *world);
/** Comes to every meeting with no call of its own until all ranks do. */
sherd_status sherdi_peers_regroup(sherd_world *world);
sherd_status sherdi_peers_alloc(sherd_world *world, size_t len_bytes, void **out);
void         sherdi_peers_free(sherd_world *world, void *memory);
sherd_status sherdi_peers_all_gather(sherd_world *world, const sherdi_all_gather_args *args);
sherd_status sherdi_peers_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args);
sherd_status sherdi_peers_all_reduce(sherd_world *world, const sherdi_reduction_args *args);
sherd_status sherdi_peers_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args);
/** `root` is a rank of this host. */
sherd_status sherdi_peers_broadcast(sherd_world *world, void *data, size_t len_bytes, int root);

#endif
