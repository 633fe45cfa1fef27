/* The order of calls that overlap with their caller. See tickets.h. */
#include "collectives/tickets.h"

#include "base/thread.h"
#include "kernels/cpu/roles.h"

#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------- thread -- */

static void *queue_main(void *raw)
{
    sherd_world   *world = raw;
    world_tickets *queue = sherdi_tickets_of(world);

    (void)pthread_setname_np(pthread_self(), "sherd-queue");
    sherdi_backend_cpu_keep(world->host, SHERDI_CPU_ROLE_WIRE, world->rank);
    if (queue->lane != NULL) {
        queue->lane->thread_begin(world);
    }
    (void)pthread_mutex_lock(&queue->lock);
    for (;;) {
        sherdi_ticket next = atomic_load_explicit(&queue->done, memory_order_relaxed) + 1;
        world_call    call;
        sherd_status  status;

        if (next > queue->issued) {
            if (queue->is_stopping) {
                break;
            }
            (void)pthread_cond_wait(&queue->has_work, &queue->lock);
            continue;
        }
        call = queue->ring[(next - 1) % WORLD_QUEUE_CALLS];
        (void)pthread_mutex_unlock(&queue->lock);
        world->running = call.caller;
        status         = sherdi_world_call_run(world, &call);
        if (sherdi_world_is_on_lane(world)) {
            queue->lane->record(world, next);
        }
        (void)pthread_mutex_lock(&queue->lock);
        if (status != SHERD_OK && atomic_load(&queue->failed_ticket) == 0) {
            sherdi_outcome_add(&queue->failed, status);
            atomic_store(&queue->failed_ticket, next);
        }
        atomic_store_explicit(&queue->done, next, memory_order_release);
        (void)pthread_cond_broadcast(&queue->has_progress);
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/* The caller of a call for which the ring has no room waits until one has ended. */
static sherdi_ticket queue_push(sherd_world *world, const world_call *call)
{
    world_tickets *queue = sherdi_tickets_of(world);
    world_call    *entry;
    sherdi_ticket  ticket;

    (void)pthread_mutex_lock(&queue->lock);
    while (queue->issued - atomic_load_explicit(&queue->done, memory_order_relaxed) ==
           WORLD_QUEUE_CALLS) {
        (void)pthread_cond_wait(&queue->has_progress, &queue->lock);
    }
    ticket        = ++queue->issued;
    entry         = &queue->ring[(ticket - 1) % WORLD_QUEUE_CALLS];
    *entry        = *call;
    entry->caller = atomic_load_explicit(&world->caller, memory_order_relaxed);
    (void)pthread_cond_signal(&queue->has_work);
    (void)pthread_mutex_unlock(&queue->lock);
    return ticket;
}

static void queue_wait_done(sherd_world *world, sherdi_ticket ticket)
{
    world_tickets *queue = sherdi_tickets_of(world);

    if (atomic_load_explicit(&queue->done, memory_order_acquire) >= ticket) {
        return;
    }
    (void)pthread_mutex_lock(&queue->lock);
    while (atomic_load_explicit(&queue->done, memory_order_acquire) < ticket) {
        (void)pthread_cond_wait(&queue->has_progress, &queue->lock);
    }
    (void)pthread_mutex_unlock(&queue->lock);
}

/* ------------------------------------------------------------------ order -- */

static void tickets_drain(sherd_world *world)
{
    queue_wait_done(world, sherdi_tickets_of(world)->issued);
}

static sherd_status tickets_call(sherd_world *world, const world_call *call,
                                 sherdi_ticket *ticket_out)
{
    world_tickets *queue  = sherdi_tickets_of(world);
    sherdi_ticket  ticket = 0;

    if (ticket_out != NULL && queue->has_thread) {
        *ticket_out = queue_push(world, call);
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

static int tickets_is_done(sherd_world *world, sherdi_ticket ticket)
{
    world_tickets *queue = sherdi_tickets_of(world);

    return atomic_load_explicit(&queue->done, memory_order_acquire) >= ticket &&
           (!sherdi_world_is_on_lane(world) || queue->lane->is_done(world, ticket));
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

    if (!queue->has_thread) {
        return;
    }
    (void)pthread_mutex_lock(&queue->lock);
    queue->is_stopping = 1;
    (void)pthread_cond_signal(&queue->has_work);
    (void)pthread_mutex_unlock(&queue->lock);
    (void)pthread_join(queue->thread, NULL);
    queue->has_thread = 0;
}

static void tickets_close(sherd_world *world)
{
    world_tickets *queue = sherdi_tickets_of(world);

    (void)pthread_cond_destroy(&queue->has_progress);
    (void)pthread_cond_destroy(&queue->has_work);
    (void)pthread_mutex_destroy(&queue->lock);
    free(queue);
}

sherd_status sherdi_tickets_open(sherd_world *world)
{
    static const world_order_ops OPS = {.call    = tickets_call,
                                        .drain   = tickets_drain,
                                        .wait    = tickets_wait,
                                        .follow  = tickets_follow,
                                        .is_done = tickets_is_done,
                                        .forget  = tickets_forget,
                                        .stop    = tickets_stop,
                                        .close   = tickets_close};
    world_tickets               *own;

    if (world->order != NULL) {
        return SHERD_OK;
    }
    own = calloc(1, sizeof(*own));
    if (own == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for overlapped communication");
    }
    own->common.ops = &OPS;
    (void)pthread_cond_init(&own->has_work, NULL);
    (void)pthread_cond_init(&own->has_progress, NULL);
    (void)pthread_mutex_init(&own->lock, NULL);
    world->order = &own->common;
    return SHERD_OK;
}

sherd_status sherdi_world_overlapped(sherd_world *world)
{
    world_tickets *queue;
    int            error;

    if (world->device != NULL && world->device->is_direct) {
        return SHERD_OK;
    }
    if (world->is_single_threaded) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "overlapped communication needs MPI_THREAD_SERIALIZED at least: initialise "
            "MPI with MPI_Init_thread, or switch overlap_comm off");
    }
    SHERDI_TRY(sherdi_tickets_open(world));
    queue = sherdi_tickets_of(world);
    if (queue->has_thread) {
        return SHERD_OK;
    }
    error = sherdi_thread_start(&queue->thread, 0, queue_main, world);
    if (error != 0) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "cannot start the thread for overlapped communication: %s",
                           strerror(error));
    }
    queue->has_thread = 1;
    return SHERD_OK;
}
