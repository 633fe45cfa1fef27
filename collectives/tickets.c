/* The order of calls that overlap with their caller. See tickets.h. */
#include "collectives/tickets.h"

#include <stdlib.h>

static void queue_wait_done(sherd_world *world, sherdi_ticket ticket)
{
    world_tickets *queue = sherdi_tickets_of(world);

    if (atomic_load_explicit(&queue->done, memory_order_acquire) < ticket) {
        queue->thread->ops->wait(world, ticket);
    }
}

static void tickets_drain(sherd_world *world)
{
    queue_wait_done(world, sherdi_tickets_of(world)->issued);
}

static sherd_status tickets_call(sherd_world *world, const world_call *call,
                                 sherdi_ticket *ticket_out)
{
    world_tickets *queue  = sherdi_tickets_of(world);
    sherdi_ticket  ticket = 0;

    if (ticket_out != NULL && queue->thread != NULL) {
        *ticket_out = queue->thread->ops->push(world, call);
        return SHERD_OK;
    }
    sherdi_world_drain(world);
    SHERDI_TRY(sherdi_world_call_run(world, call));
    if (sherdi_world_call_is_on_device(world, call)) {
        SHERDI_TRY(queue->lane->made(world, ticket_out == NULL, &ticket));
    }
    if (ticket_out != NULL) {
        *ticket_out = ticket;
    }
    return SHERD_OK;
}

/* Waits until the call with this ticket has run, as far as it runs on the host. */
static sherd_status queue_wait_run(sherd_world *world, sherdi_ticket ticket)
{
    world_tickets *queue = sherdi_tickets_of(world);
    uint64_t       failed;

    SHERDI_TRY(sherdi_ticket_check(ticket, queue->issued));
    queue_wait_done(world, ticket);
    failed = atomic_load(&queue->failed_ticket);
    if (failed != 0 && failed <= ticket) {
        return sherdi_outcome_end(&queue->failed);
    }
    return SHERD_OK;
}

static sherd_status tickets_wait(sherd_world *world, sherdi_ticket ticket)
{
    SHERDI_TRY(queue_wait_run(world, ticket));
    return sherdi_world_is_on_lane(world) ? sherdi_tickets_of(world)->lane->wait(world, ticket)
                                          : SHERD_OK;
}

static sherd_status tickets_follow(sherd_world *world, const sherdi_backend *lane,
                                   sherdi_ticket ticket)
{
    if (!sherdi_world_is_on_lane(world) || !lane->device->is_async) {
        return tickets_wait(world, ticket);
    }
    SHERDI_TRY(queue_wait_run(world, ticket));
    sherdi_tickets_of(world)->lane->follow(world, lane, ticket);
    return sherdi_world_status(world);
}

int sherdi_world_is_done(sherd_world *world, sherdi_ticket ticket)
{
    world_tickets *queue = sherdi_tickets_of(world);

    return queue == NULL ||
           (atomic_load_explicit(&queue->done, memory_order_acquire) >= ticket &&
            (!sherdi_world_is_on_lane(world) || queue->lane->is_done(world, ticket)));
}

static void tickets_forget(sherd_world *world)
{
    world_tickets *queue = sherdi_tickets_of(world);

    (void)pthread_mutex_lock(&queue->lock);
    atomic_store(&queue->failed_ticket, 0);
    (void)pthread_mutex_unlock(&queue->lock);
}

static void tickets_stop(sherd_world *world)
{
    world_tickets *queue = sherdi_tickets_of(world);

    if (queue->thread != NULL) {
        queue->thread->ops->stop(world);
    }
}

static void tickets_close(sherd_world *world)
{
    (void)pthread_mutex_destroy(&sherdi_tickets_of(world)->lock);
    free(world->order);
}

sherd_status sherdi_tickets_open(sherd_world *world)
{
    static const world_order_ops OPS = {.call   = tickets_call,
                                        .drain  = tickets_drain,
                                        .wait   = tickets_wait,
                                        .follow = tickets_follow,
                                        .forget = tickets_forget,
                                        .stop   = tickets_stop,
                                        .close  = tickets_close};
    world_tickets               *own;

    if (world->order != NULL) {
        return SHERD_OK;
    }
    own = calloc(1, sizeof(*own));
    if (own == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the tickets of a world");
    }
    own->common.ops = &OPS;
    (void)pthread_mutex_init(&own->lock, NULL);
    world->order = &own->common;
    return SHERD_OK;
}
