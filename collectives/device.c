/* The device of a world: which device it is, the lane of its collectives, tickets as events of that
 * lane, and device memory that all ranks allocate together. the core calls it by its
 * table; a world on the CPU has none of this. */
#include "collectives/device.h"

#include "base/checked.h"
#include "base/log.h"
#include "collectives/peers.h"
#include "collectives/remote.h"
#include "collectives/tickets.h"
#include "kernels/devices.h"

#include <stdlib.h>

int sherdi_device_index(int wanted, int local_rank, int count)
{
    return wanted >= 0 ? wanted : count > 0 ? local_rank % count : 0;
}

/* What the transport does about the memory of devices: nothing where it has no table, or the rank
 * is alone. */
static const world_device_slots *slots_of(const sherd_world *world)
{
    static const world_device_slots NONE = {0};

    return world->world_size > 1 && world->ops->device != NULL ? world->ops->device : &NONE;
}

/* ----------------------------------------------------------------- memory -- */

static sherd_status block_make(sherd_world *world, size_t len_bytes, size_t *out)
{
    sherdi_device  *device = sherdi_device_of(world);
    sherdi_backend *lane   = world->backend;
    size_t          entry  = 0;
    device_block   *block;

    while (entry < device->block_capacity && device->blocks[entry].memory != NULL) {
        entry++;
    }
    SHERDI_TRY(sherdi_grow(&world->mem, SHERDI_MEM_CONTROL, (void **)&device->blocks,
                           &device->block_capacity, entry + 1, sizeof(*device->blocks)));
    block = &device->blocks[entry];
    if (slots_of(world)->memory_make != NULL) {
        SHERDI_TRY(slots_of(world)->memory_make(world, len_bytes, &block->memory));
    }
    if (block->memory != NULL) {
        block->made_bytes = len_bytes;
        sherdi_mem_note(&device->given, SHERDI_MEM_TRANSPORT, (int64_t)len_bytes);
    } else {
        SHERDI_TRY(lane->device->alloc(lane, &device->given, SHERDI_MEM_TRANSPORT, len_bytes,
                                       &block->memory));
    }
    *out = entry;
    return SHERD_OK;
}

static void block_drop(sherd_world *world, device_block *block)
{
    if (block->made_bytes > 0) {
        slots_of(world)->memory_drop(world, block->memory);
        sherdi_mem_note(&sherdi_device_of(world)->given, SHERDI_MEM_TRANSPORT,
                        -(int64_t)block->made_bytes);
    } else {
        world->backend->device->free(world->backend, block->memory);
    }
    *block = (device_block){0};
}

static sherd_status device_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    size_t        entry  = 0;
    sherd_status  here   = block_make(world, len_bytes, &entry);
    sherd_status  status = sherdi_world_alloc_agree(world, here, len_bytes, "device memory");
    device_block *block;

    if (status != SHERD_OK) {
        if (here == SHERD_OK) {
            block_drop(world, &sherdi_device_of(world)->blocks[entry]);
        }
        return status;
    }
    block = &sherdi_device_of(world)->blocks[entry];
    if (slots_of(world)->memory_enter != NULL) {
        block->handle = slots_of(world)->memory_enter(world, block->memory, len_bytes);
    }
    *out = block->memory;
    return SHERD_OK;
}

/* A peer may still read memory that this rank's lane has done with, but only after a failure. */
static void readers_settle(const sherd_world *world)
{
    if (world->peers != NULL && world->peers->device != NULL && sherdi_world_has_failed(world)) {
        sherdi_peers_device_settle(world->peers);
    }
}

static void device_free(sherd_world *world, void *memory)
{
    sherdi_device *device = sherdi_device_of(world);

    for (size_t i = 0; i < device->block_capacity; i++) {
        device_block *block = &device->blocks[i];

        if (block->memory == memory) {
            (void)sherdi_lane_wait(world->backend); /* the next call reports its failure */
            readers_settle(world);
            if (slots_of(world)->memory_leave != NULL) {
                slots_of(world)->memory_leave(world, block->handle);
            }
            block_drop(world, block);
            return;
        }
    }
}

/* -------------------------------------------------------- room for reductions -- */

size_t sherdi_world_reserve_bytes(const sherd_world *world, size_t whole_bytes)
{
    return world->device == NULL || slots_of(world)->reserve_bytes == NULL
               ? 0
               : slots_of(world)->reserve_bytes(world, whole_bytes);
}

/* Frees the old room first, because the plan has space for one only. */
sherd_status sherdi_world_reserve(sherd_world *world, size_t whole_bytes)
{
    sherdi_device *device = sherdi_device_of(world);
    size_t         bytes  = sherdi_world_reserve_bytes(world, whole_bytes);

    SHERDI_TRY(sherdi_world_status(world));
    if (bytes <= world->held.room_bytes) {
        return SHERD_OK;
    }
    sherdi_world_free(world, device->receive);
    world->held.overhead_bytes -= world->held.room_bytes;
    world->held.room_bytes = 0;
    device->receive        = NULL;
    SHERDI_TRY(sherdi_world_alloc(world, bytes, &device->receive));
    world->held.room_bytes = bytes;
    world->held.overhead_bytes += bytes;
    return SHERD_OK;
}

sherd_status sherdi_world_warm(sherd_world *world, int has_vendor_sums)
{
    sherdi_device *device = sherdi_device_of(world);
    int            wanted = has_vendor_sums ? 2 : 1;
    size_t         before, after;

    if (device == NULL || slots_of(world)->warm == NULL || device->is_warm >= wanted) {
        return SHERD_OK;
    }
    before = world->backend->device->free_bytes(world->backend, NULL);
    SHERDI_TRY(slots_of(world)->warm(world, has_vendor_sums));
    after           = world->backend->device->free_bytes(world->backend, NULL);
    device->is_warm = wanted;
    world->held.taken_bytes += before > after ? before - after : 0;
    sherdi_log(SHERD_LOG_INFO, world->rank, "%s takes %.1f MiB of the device for %d ranks",
               world->ops->name, (double)world->held.taken_bytes / 0x1p20, world->world_size);
    return SHERD_OK;
}

/* ---------------------------------------------------------------- tickets -- */

/* An event is recorded again after WORLD_EVENTS tickets. It then stands for a later call on the
 * same lane; waiting for that call includes the earlier one. */
static sherdi_event *ticket_event(const sherd_world *world, sherdi_ticket ticket)
{
    return sherdi_device_of(world)->events[(ticket - 1) % WORLD_EVENTS];
}

static void ticket_record(sherd_world *world, sherdi_ticket ticket)
{
    sherdi_lanes_of(world->backend)->event_record(ticket_event(world, ticket), world->backend);
}

static void device_thread_begin(const sherd_world *world)
{
    if (sherdi_lanes_of(world->backend)->thread_begin != NULL) {
        sherdi_lanes_of(world->backend)->thread_begin(world->backend);
    }
}

/* With other ranks, the lane may stand still because one of them is dead. So the wait also looks at
 * the world's failure. */
static sherd_status ticket_wait(sherd_world *world, sherdi_ticket ticket)
{
    const sherdi_lane_ops *device = sherdi_lanes_of(world->backend);
    sherdi_event          *event;
    sherd_status           status;

    if (ticket == 0) {
        return SHERD_OK;
    }
    event = ticket_event(world, ticket);
    for (int turn = 0; world->world_size > 1 && !device->event_is_done(event); turn++) {
        SHERDI_TRY(sherdi_world_status(world));
        sherdi_nap(turn);
    }
    status = device->event_wait(event);
    if (status != SHERD_OK) {
        return sherdi_world_fail(world, status, "rank %d: %s", world->rank, sherd_last_error());
    }
    return world->world_size > 1 ? sherdi_world_status(world) : SHERD_OK;
}

static sherd_status ticket_made(sherd_world *world, int is_waited, sherdi_ticket *out)
{
    world_tickets *queue = sherdi_tickets_of(world);

    *out = 0;
    if (sherdi_world_is_on_lane(world)) {
        (void)pthread_mutex_lock(&queue->lock);
        *out = ++queue->issued;
        ticket_record(world, *out);
        atomic_store_explicit(&queue->done, *out, memory_order_release);
        (void)pthread_mutex_unlock(&queue->lock);
    }
    return is_waited ? ticket_wait(world, *out) : SHERD_OK;
}

static void ticket_follow(sherd_world *world, const sherdi_backend *lane, sherdi_ticket ticket)
{
    if (ticket != 0 && lane != world->backend) {
        sherdi_lanes_of(lane)->lane_follow_event(lane, ticket_event(world, ticket));
    }
}

static int ticket_is_done(sherd_world *world, sherdi_ticket ticket)
{
    return ticket == 0 ||
           sherdi_lanes_of(world->backend)->event_is_done(ticket_event(world, ticket));
}

static const world_lane_ops LANE = {.made         = ticket_made,
                                    .record       = ticket_record,
                                    .wait         = ticket_wait,
                                    .follow       = ticket_follow,
                                    .is_done      = ticket_is_done,
                                    .thread_begin = device_thread_begin};

/* ------------------------------------------------------------- life of it -- */

static sherd_status events_create(sherdi_device *device, sherdi_backend *lane)
{
    for (int i = 0; i < WORLD_EVENTS; i++) {
        SHERDI_TRY(sherdi_lanes_of(lane)->event_create(lane, 0, &device->events[i]));
    }
    return SHERD_OK;
}

static sherd_status device_open(sherd_world *world, const sherd_world_params *params,
                                const char *kind)
{
    sherdi_device *device = calloc(1, sizeof(*device));
    int            rank   = params->local_rank >= 0 ? params->local_rank : world->local_rank;
    int            count;
    char           text[160];

    if (device == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the device of a world");
    }
    count                = sherdi_backend_device_count(kind, text, sizeof(text));
    device->common.ops   = &sherdi_world_devices;
    device->common.index = sherdi_device_index(params->device, rank, count);
    world->device        = &device->common;
    sherdi_mem_init(&device->given);
    SHERDI_TRY(
        sherdi_backend_device_create(kind, world->device->index, &world->mem, &world->backend));
    SHERDI_TRY(events_create(device, world->backend));
    SHERDI_TRY(sherdi_tickets_open(world));
    sherdi_tickets_of(world)->lane = &LANE;
    world->device->is_direct       = world->world_size == 1;
    if (!sherdi_world_is_on_lane(world)) {
        SHERDI_TRY(sherdi_staged_create(world, &device->staged));
    }
    sherdi_backend_device_describe(kind, world->device->index, text, sizeof(text));
    sherdi_log(SHERD_LOG_DEBUG, world->rank, "%s device %d: %s", kind, world->device->index, text);
    return SHERD_OK;
}

static void lane_close(sherd_world *world)
{
    sherdi_device  *device = sherdi_device_of(world);
    sherdi_backend *lane   = world->backend;

    if (sherdi_lane_wait(lane) != SHERD_OK) {
        sherdi_log(SHERD_LOG_WARN, world->rank,
                   "the device failed while the world was destroyed: %s", sherd_last_error());
    }
    sherdi_staged_destroy(device->staged);
    for (size_t i = 0; i < device->block_capacity; i++) {
        if (device->blocks[i].memory != NULL) {
            device_free(world, device->blocks[i].memory);
        }
    }
    sherdi_free(device->blocks);
    for (int i = 0; i < WORLD_EVENTS; i++) {
        sherdi_lanes_of(lane)->event_destroy(device->events[i]);
    }
    sherdi_backend_destroy(lane);
    world->backend = NULL;
}

static void device_close(sherd_world *world)
{
    if (sherdi_world_has_device(world)) {
        lane_close(world);
    }
    free(world->device);
    world->device = NULL;
}

static sherd_status device_run(sherd_world *world, const world_call *call)
{
    return sherdi_staged_run(sherdi_device_of(world)->staged, call);
}

const world_device_ops sherdi_world_devices = {
    .open  = device_open,
    .close = device_close,
    .alloc = device_alloc,
    .free  = device_free,
    .run   = device_run,
    .peers = &sherdi_peers_device_ops,
};
