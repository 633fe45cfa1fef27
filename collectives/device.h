/* The memory of a GPU in a world, in addition to the core's part (world_device): device.c has the
 * lane's tickets and the memory that the ranks allocate together, staged.c moves it over transports
 * of host memory, peers_device.c between ranks that are threads. */
#ifndef SHERDI_COLLECTIVES_DEVICE_H
#define SHERDI_COLLECTIVES_DEVICE_H

#include "collectives/room.h"
#include "collectives/world_impl.h"
#include "kernels/lanes.h"

/* Devices. `send` and `recv` are memory of the world's backend (sherdi_world_backend), which is a
 * lane of the world's own. Before the call, the caller makes this lane follow the lanes that wrote
 * `send` and used `recv` (sherdi_lane_follow); after it, the caller makes the lane that needs the
 * result follow the ticket (sherdi_world_follow).
 *
 * A transport that orders its work on the lane (nccl, threads, one rank) returns before the work is
 * done, and its tickets are events. One that moves data through the host (shm, mpi: staged.c) waits
 * for the lane on the world's thread, and its ticket is done when the result is on the device.
 * Without a ticket every call returns when it is done. Control data (exchange, sums, broadcast,
 * SHERDI_COLL_HOST) is host memory, and does not wait for the queued work of the lane. */

/* Number of the latest tickets of a lane that have an event of their own. */
#define WORLD_EVENTS 64

/* Device memory that sherdi_world_alloc returned. */
typedef struct device_block {
    void  *memory;     /* NULL: free entry */
    void  *handle;     /* from memory_enter */
    size_t made_bytes; /* bytes that memory_make made; 0: it is the device's memory */
} device_block;

typedef struct sherdi_device {
    world_device  common;               /* first */
    sherdi_event *events[WORLD_EVENTS]; /* event of ticket t: [(t - 1) % WORLD_EVENTS] */
    sherdi_mem    given;                /* counts the memory that sherdi_world_alloc returned */
    device_block *blocks;               /* the entries of that memory */
    size_t        block_capacity;
    void         *receive;        /* from sherdi_world_reserve */
    int           is_warm;        /* sherdi_world_warm was called: 1, or 2 with the vendor's sums */
    struct sherdi_staged *staged; /* where the transport moves host memory only; else NULL */
} sherdi_device;

/* Functions of a transport for the memory of its devices. */
typedef struct world_device_slots {
    /* Optional (NULL = none): sherdi_world_reserve_bytes. */
    size_t (*reserve_bytes)(const sherd_world *world, size_t whole_bytes);
    /* Optional (NULL = calls take no memory of the device): sherdi_world_warm. */
    sherd_status (*warm)(sherd_world *world, int has_vendor_sums);
    /* Optional, both or none (NULL = the device's own memory is used). memory_make gives zeroed
     * device memory of a library that moves its own memory faster; *out NULL with SHERD_OK: use the
     * device's own. memory_drop gives it back, with no call under way. */
    sherd_status (*memory_make)(sherd_world *world, size_t len_bytes, void **out);
    void (*memory_drop)(sherd_world *world, void *memory);
    /* Optional: device memory was added to the world, or is about to be freed. For a library that
     * moves registered memory faster; memory that it cannot register stays unregistered. `handle`
     * is what memory_enter returned; NULL: nothing. */
    void *(*memory_enter)(sherd_world *world, void *memory, size_t len_bytes);
    void (*memory_leave)(sherd_world *world, void *handle);
} world_device_slots;

/** Returns the device of a world that has one. */
static inline sherdi_device *sherdi_device_of(const sherd_world *world)
{
    return (sherdi_device *)world->device;
}

/** Returns the index of a rank's device: `wanted`, or where that is -1 the local rank modulo the
 *  number of devices. */
int sherdi_device_index(int wanted, int local_rank, int count);

/* ---- device memory over a transport of host memory: staged.c */

struct sherdi_staged;
sherd_status sherdi_staged_create(sherd_world *world, struct sherdi_staged **out);
/** Accepts NULL. */
void sherdi_staged_destroy(struct sherdi_staged *staged);
/** Runs a call on device memory. Blocks until the results are on the device. */
sherd_status sherdi_staged_run(struct sherdi_staged *staged, const world_call *call);

/* ---- device memory of ranks that are threads: peers_device.c */

struct sherdi_peers;
extern const struct peers_device_ops sherdi_peers_device_ops;
/** Blocks until no rank uses another rank's memory any more. Call it after a failure. */
void sherdi_peers_device_settle(const struct sherdi_peers *peers);

#endif
