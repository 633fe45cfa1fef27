/* The device of a world: which device it is, the lane of its collectives, tickets as events of that
 * lane, and device memory that all ranks allocate together. world.c and tickets.c call it; a world
 * on the CPU has none of this. */
#include "collectives/job.h"

#include "base/checked.h"
#include "base/log.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <string.h>

int sherdi_world_device_index(int wanted, int local_rank, int count)
{
    return wanted >= 0 ? wanted : count > 0 ? local_rank % count : 0;
}

/* ------------------------------------------------------------- life of it -- */

static sherd_status events_create(sherd_world *world)
{
    sherdi_backend *lane = world->backend;

    for (int i = 0; i < WORLD_EVENTS; i++) {
        SHERDI_TRY(lane->device->event_create(lane, 0, &world->device.events[i]));
    }
    return SHERD_OK;
}

sherd_status sherdi_world_device_open(sherd_world *world, const sherd_world_params *params)
{
    const char *kind;
    int         count;
    char        text[160];

    SHERDI_TRY(sherdi_world_backend_kind(params, &kind));
    if (strcmp(kind, "cpu") == 0) {
        return SHERD_OK;
    }
    count               = sherdi_backend_device_count(kind, text, sizeof(text));
    world->device.index = sherdi_world_device_index(
        params->device, params->local_rank >= 0 ? params->local_rank : world->local_rank, count);
    sherdi_mem_init(&world->device.given);
    SHERDI_TRY(
        sherdi_backend_device_create(kind, world->device.index, &world->mem, &world->backend));
    SHERDI_TRY(events_create(world));
    world->device.is_direct = world->world_size == 1;
    if (!sherdi_world_is_on_lane(world)) {
        SHERDI_TRY(sherdi_staged_create(world, &world->device.staged));
    }
    sherdi_backend_device_describe(kind, world->device.index, text, sizeof(text));
    sherdi_log(SHERD_LOG_DEBUG, world->rank, "%s device %d: %s", kind, world->device.index, text);
    return SHERD_OK;
}

void sherdi_world_device_close(sherd_world *world)
{
    sherdi_backend *lane = world->backend;

    if (lane == NULL || lane == world->host) {
        return;
    }
    if (sherdi_lane_wait(lane) != SHERD_OK) {
        sherdi_log(SHERD_LOG_WARN, world->rank,
                   "the device failed while the world was destroyed: %s", sherd_last_error());
    }
    sherdi_staged_destroy(world->device.staged);
    for (size_t i = 0; i < world->device.block_capacity; i++) {
        if (world->device.blocks[i].memory != NULL) {
            sherdi_world_device_free(world, world->device.blocks[i].memory);
        }
    }
    sherdi_free(world->device.blocks);
    for (int i = 0; i < WORLD_EVENTS; i++) {
        lane->device->event_destroy(world->device.events[i]);
    }
    sherdi_backend_destroy(lane);
    world->backend = NULL;
}

/* ----------------------------------------------------------------- memory -- */

static sherd_status block_make(sherd_world *world, size_t len_bytes, size_t *out)
{
    sherdi_backend *lane  = world->backend;
    size_t          entry = 0;
    world_block    *block;

    while (entry < world->device.block_capacity && world->device.blocks[entry].memory != NULL) {
        entry++;
    }
    SHERDI_TRY(sherdi_grow(&world->mem, SHERDI_MEM_CONTROL, (void **)&world->device.blocks,
                           &world->device.block_capacity, entry + 1,
                           sizeof(*world->device.blocks)));
    block = &world->device.blocks[entry];
    if (world->ops->memory_make != NULL && world->world_size > 1) {
        SHERDI_TRY(world->ops->memory_make(world, len_bytes, &block->memory));
    }
    if (block->memory != NULL) {
        block->made_bytes = len_bytes;
        sherdi_mem_note(&world->device.given, SHERDI_MEM_TRANSPORT, (int64_t)len_bytes);
    } else {
        SHERDI_TRY(lane->device->alloc(lane, &world->device.given, SHERDI_MEM_TRANSPORT, len_bytes,
                                       &block->memory));
    }
    *out = entry;
    return SHERD_OK;
}

static void block_drop(sherd_world *world, world_block *block)
{
    if (block->made_bytes > 0) {
        world->ops->memory_drop(world, block->memory);
        sherdi_mem_note(&world->device.given, SHERDI_MEM_TRANSPORT, -(int64_t)block->made_bytes);
    } else {
        world->backend->device->free(world->backend, block->memory);
    }
    *block = (world_block){0};
}

sherd_status sherdi_world_device_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    size_t       entry  = 0;
    sherd_status here   = block_make(world, len_bytes, &entry);
    sherd_status status = sherdi_world_alloc_agree(world, here, len_bytes, "device memory");

    world_block *block;

    if (status != SHERD_OK) {
        if (here == SHERD_OK) {
            block_drop(world, &world->device.blocks[entry]);
        }
        return status;
    }
    block = &world->device.blocks[entry];
    if (world->ops->memory_enter != NULL && world->world_size > 1) {
        block->handle = world->ops->memory_enter(world, block->memory, len_bytes);
    }
    *out = block->memory;
    return SHERD_OK;
}

void sherdi_world_device_free(sherd_world *world, void *memory)
{
    for (size_t i = 0; i < world->device.block_capacity; i++) {
        world_block *block = &world->device.blocks[i];

        if (block->memory == memory) {
            (void)sherdi_lane_wait(world->backend); /* the next call reports its failure */
            if (world->ops->memory_leave != NULL && world->world_size > 1) {
                world->ops->memory_leave(world, block->handle);
            }
            block_drop(world, block);
            return;
        }
    }
}

size_t sherdi_world_reserve_bytes(const sherd_world *world, size_t whole_bytes)
{
    if (!sherdi_world_has_device(world) || world->world_size == 1 ||
        world->ops->reserve_bytes == NULL) {
        return 0;
    }
    return world->ops->reserve_bytes(world, whole_bytes);
}

size_t sherdi_world_reserved_bytes(const sherd_world *world)
{
    return world->device.receive_bytes;
}

/* Frees the old room first, because the plan has space for one only. */
sherd_status sherdi_world_reserve(sherd_world *world, size_t whole_bytes)
{
    size_t       bytes = sherdi_world_reserve_bytes(world, whole_bytes);
    void        *receive;
    sherd_status status;

    SHERDI_TRY(sherdi_world_status(world));
    if (bytes <= world->device.receive_bytes) {
        return SHERD_OK;
    }
    sherdi_world_free(world, world->device.receive);
    world->overhead_bytes -= world->device.receive_bytes;
    world->device.receive       = NULL;
    world->device.receive_bytes = 0;
    status                      = sherdi_world_alloc(world, bytes, &receive);
    if (status != SHERD_OK) {
        return status;
    }
    world->device.receive       = receive;
    world->device.receive_bytes = bytes;
    world->overhead_bytes += bytes;
    return SHERD_OK;
}

sherd_status sherdi_world_warm(sherd_world *world, int has_vendor_sums)
{
    int    wanted = has_vendor_sums ? 2 : 1;
    size_t before, after;

    if (!sherdi_world_has_device(world) || world->world_size == 1 || world->ops->warm == NULL ||
        world->device.is_warm >= wanted) {
        return SHERD_OK;
    }
    before = world->backend->device->free_bytes(world->backend, NULL);
    SHERDI_TRY(world->ops->warm(world, has_vendor_sums));
    after                 = world->backend->device->free_bytes(world->backend, NULL);
    world->device.is_warm = wanted;
    world->device.taken_bytes += before > after ? before - after : 0;
    sherdi_log(SHERD_LOG_INFO, world->rank, "%s takes %.1f MiB of the device for %d ranks",
               world->ops->name, (double)world->device.taken_bytes / 0x1p20, world->world_size);
    return SHERD_OK;
}

size_t sherdi_world_taken_bytes(const sherd_world *world)
{
    return world->device.taken_bytes;
}

/* ---------------------------------------------------------------- tickets -- */

/* An event is recorded again after WORLD_EVENTS tickets. It then stands for a later call on the
 * same lane; waiting for that call includes the earlier one. */
static sherdi_event *ticket_event(const sherd_world *world, sherdi_ticket ticket)
{
    return world->device.events[(ticket - 1) % WORLD_EVENTS];
}

void sherdi_world_lane_record(sherd_world *world, sherdi_ticket ticket)
{
    world->backend->device->event_record(ticket_event(world, ticket), world->backend);
}

void sherdi_world_thread_begin(const sherd_world *world)
{
    if (sherdi_world_has_device(world) && world->backend->device->thread_begin != NULL) {
        world->backend->device->thread_begin(world->backend);
    }
}

/* With other ranks, the lane may stand still because one of them is dead. So the wait also looks at
 * the world's failure. */
sherd_status sherdi_world_lane_wait(sherd_world *world, sherdi_ticket ticket)
{
    const sherdi_device_ops *device = world->backend->device;
    sherdi_event            *event;
    sherd_status             status;

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

void sherdi_world_lane_follow(sherd_world *world, const sherdi_backend *lane, sherdi_ticket ticket)
{
    if (ticket != 0 && lane != world->backend) {
        lane->device->lane_follow_event(lane, ticket_event(world, ticket));
    }
}

int sherdi_world_lane_is_done(sherd_world *world, sherdi_ticket ticket)
{
    return ticket == 0 || world->backend->device->event_is_done(ticket_event(world, ticket));
}
