/* The thread of a world, on which its calls overlap with what the caller does meanwhile. Calls wait
 * in a ring, in their order. See world_thread_ops. */
#include "collectives/overlap.h"

#include "base/thread.h"
#include "collectives/tickets.h"
#include "kernels/cpu/roles.h"

#include <stdlib.h>
#include <string.h>

/* Ticket t is in ring[(t - 1) % WORLD_QUEUE_CALLS]. The lock is the queue's. */
typedef struct overlap_thread {
    world_thread   common; /* first */
    pthread_t      thread;
    pthread_cond_t has_work;
    pthread_cond_t has_progress;
    int            is_stopping;
    world_call     ring[WORLD_QUEUE_CALLS];
} overlap_thread;

static overlap_thread *own_of(const sherd_world *world)
{
    return (overlap_thread *)sherdi_tickets_of(world)->thread;
}

static void *queue_main(void *raw)
{
    sherd_world    *world = raw;
    world_tickets  *queue = sherdi_tickets_of(world);
    overlap_thread *own;

    (void)pthread_setname_np(pthread_self(), "sherd-queue");
    sherdi_backend_cpu_keep(world->host, SHERDI_CPU_ROLE_WIRE, world->rank);
    if (queue->lane != NULL) {
        queue->lane->thread_begin(world);
    }
    (void)pthread_mutex_lock(&queue->lock);
    own = own_of(world);
    for (;;) {
        sherdi_ticket next = atomic_load_explicit(&queue->done, memory_order_relaxed) + 1;
        world_call    call;
        sherd_status  status;

        if (next > queue->issued) {
            if (own->is_stopping) {
                break;
            }
            (void)pthread_cond_wait(&own->has_work, &queue->lock);
            continue;
        }
        call = own->ring[(next - 1) % WORLD_QUEUE_CALLS];
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
        (void)pthread_cond_broadcast(&own->has_progress);
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return NULL;
}

static void overlap_wait(sherd_world *world, sherdi_ticket ticket)
{
    world_tickets *queue = sherdi_tickets_of(world);

    (void)pthread_mutex_lock(&queue->lock);
    while (atomic_load_explicit(&queue->done, memory_order_acquire) < ticket) {
        (void)pthread_cond_wait(&own_of(world)->has_progress, &queue->lock);
    }
    (void)pthread_mutex_unlock(&queue->lock);
}

/* The caller of a call for which the ring has no room waits until one has ended. */
static sherdi_ticket overlap_push(sherd_world *world, const world_call *call)
{
    overlap_thread *own   = own_of(world);
    world_tickets  *queue = sherdi_tickets_of(world);
    world_call     *entry;
    sherdi_ticket   ticket;

    (void)pthread_mutex_lock(&queue->lock);
    while (queue->issued - atomic_load_explicit(&queue->done, memory_order_relaxed) ==
           WORLD_QUEUE_CALLS) {
        (void)pthread_cond_wait(&own->has_progress, &queue->lock);
    }
    ticket        = ++queue->issued;
    entry         = &own->ring[(ticket - 1) % WORLD_QUEUE_CALLS];
    *entry        = *call;
    entry->caller = atomic_load_explicit(&world->caller, memory_order_relaxed);
    (void)pthread_cond_signal(&own->has_work);
    (void)pthread_mutex_unlock(&queue->lock);
    return ticket;
}

static void overlap_stop(sherd_world *world)
{
    overlap_thread *own = own_of(world);

    (void)pthread_mutex_lock(&sherdi_tickets_of(world)->lock);
    own->is_stopping = 1;
    (void)pthread_cond_signal(&own->has_work);
    (void)pthread_mutex_unlock(&sherdi_tickets_of(world)->lock);
    (void)pthread_join(own->thread, NULL);
    (void)pthread_cond_destroy(&own->has_progress);
    (void)pthread_cond_destroy(&own->has_work);
    free(own);
    sherdi_tickets_of(world)->thread = NULL;
}

static const world_thread_ops THREAD = {
    .push = overlap_push, .wait = overlap_wait, .stop = overlap_stop};

/* The thread waits for the lock, so that it finds itself in the world. */
static sherd_status thread_start(sherd_world *world)
{
    world_tickets  *queue = sherdi_tickets_of(world);
    overlap_thread *own   = calloc(1, sizeof(*own));
    int             error;

    if (own == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for overlapped communication");
    }
    own->common.ops = &THREAD;
    (void)pthread_cond_init(&own->has_work, NULL);
    (void)pthread_cond_init(&own->has_progress, NULL);
    (void)pthread_mutex_lock(&queue->lock);
    error         = sherdi_thread_start(&own->thread, 0, queue_main, world);
    queue->thread = error == 0 ? &own->common : NULL;
    (void)pthread_mutex_unlock(&queue->lock);
    if (error != 0) {
        free(own);
        return sherdi_fail(SHERD_E_NOMEM,
                           "cannot start the thread for overlapped communication: %s",
                           strerror(error));
    }
    return SHERD_OK;
}

sherd_status sherdi_world_overlapped(sherd_world *world)
{
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
    return sherdi_tickets_of(world)->thread != NULL ? SHERD_OK : thread_start(world);
}
