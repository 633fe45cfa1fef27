/* The order of calls. A call runs at once on the caller's thread, or it goes to a thread of the world
 * (overlap.c); the caller then gets a ticket and waits for it. */
#include "collectives/world_impl.h"

#include "base/absent.h"
#include "base/clock.h"

#include <assert.h>
#include <string.h>

/* --------------------------------------------------------------- running -- */

/* Returns whether the call's buffers are memory of the world's device. */
static int call_is_on_device(const sherd_world *world, const world_call *call)
{
    return sherdi_world_has_device(world) && !(call->flags & SHERDI_COLL_HOST);
}

/* Does a call in a world of one rank. */
static void call_run_alone(sherd_world *world, const world_call *call)
{
    const sherdi_backend *lane = call_is_on_device(world, call) ? world->backend : world->host;
    const sherdi_reduction_args  *red    = &call->args.reduction;
    const sherdi_all_gather_args *gather = &call->args.all_gather;

    switch (call->kind) {
    case CALL_ALL_GATHER:
        if (gather->recv != gather->send) {
            lane->kernels->copy(lane, gather->recv, gather->send, gather->slice_bytes);
        }
        break;
    case CALL_REDUCE_SCATTER:
    case CALL_ALL_REDUCE:
        sherdi_world_reduce_local(lane, red, &red->send, 1, red->recv, red->slice_elems, NULL, 0);
        break;
    case CALL_BARRIER:
    case CALL_BROADCAST:
    case CALL_ALLOC:
    case CALL_REGROUP:
        break;
    }
}

static sherd_status call_make(sherd_world *world, const world_call *call)
{
    const sherdi_world_ops *ops = world->ops;

    SHERDI_TRY(sherdi_world_status(world));
    if (world->world_size == 1) {
        call_run_alone(world, call);
        return SHERD_OK;
    }
    if (ops->caps & SHERDI_WORLD_SIMULATES) {
        return SHERD_OK; /* nothing moves */
    }
    world->calls++;
    if (call_is_on_device(world, call) && !sherdi_world_is_on_lane(world)) {
        return world->device->ops->run(world, call);
    }
    switch (call->kind) {
    case CALL_BARRIER:
        return ops->barrier(world);
    case CALL_ALL_GATHER:
        return ops->all_gather(world, &call->args.all_gather);
    case CALL_REDUCE_SCATTER:
        return ops->reduce_scatter(world, &call->args.reduction);
    case CALL_ALL_REDUCE:
        return ops->all_reduce(world, &call->args.reduction);
    case CALL_BROADCAST:
        return ops->broadcast(world, call->args.broadcast.data, call->args.broadcast.len_bytes,
                              call->args.broadcast.root);
    case CALL_ALLOC:
    case CALL_REGROUP:
        break;
    }
    assert(!"a call that is not queued");
    return SHERD_E_STATE;
}

/* Reports a gather or a reduction to its observer. */
static void call_tell(const sherd_world *world, const world_call *call, int64_t start_ns)
{
    int is_reduction = call->kind == CALL_REDUCE_SCATTER || call->kind == CALL_ALL_REDUCE;

    call->observer->tell(call->observer->ctx, is_reduction, call->what,
                         sherdi_wire_all_gather(world->world_size, call->slice_bytes), start_ns,
                         sherdi_now_ns());
}

sherd_status sherdi_world_call_run(sherd_world *world, const world_call *call)
{
    int64_t      start_ns;
    sherd_status status;

    if (call->observer == NULL ||
        (call_is_on_device(world, call) && sherdi_world_is_on_lane(world))) {
        return call_make(world, call);
    }
    start_ns = sherdi_now_ns();
    status   = call_make(world, call);
    call_tell(world, call, start_ns);
    return status;
}

/* --------------------------------------------------------------- tickets -- */

static const world_thread_ops *const THREAD = SHERDI_WORLD_THREAD;

sherd_status sherdi_world_overlap(sherd_world *world)
{
    if (world->queue.thread != NULL || (world->device != NULL && world->device->is_direct)) {
        return SHERD_OK;
    }
    if (world->is_single_threaded) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "overlapped communication needs MPI_THREAD_SERIALIZED at least: initialise "
            "MPI with MPI_Init_thread, or switch overlap_comm off");
    }
    return THREAD == NULL ? sherdi_absent("overlap", "a thread for communication")
                          : THREAD->start(world);
}

static void queue_wait_done(sherd_world *world, sherdi_ticket ticket)
{
    if (atomic_load_explicit(&world->queue.done, memory_order_acquire) < ticket) {
        world->queue.thread->ops->wait(world, ticket);
    }
}

void sherdi_world_drain(sherd_world *world)
{
    queue_wait_done(world, world->queue.issued);
    world->running =
        atomic_load_explicit(&world->caller, memory_order_relaxed); /* this thread sends now */
}

sherd_status sherdi_world_queue_call(sherd_world *world, const world_call *call,
                                     sherdi_ticket *ticket_out)
{
    sherdi_ticket ticket = 0;

    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(sherdi_world_status(world));
    if (ticket_out != NULL && world->queue.thread != NULL) {
        *ticket_out = world->queue.thread->ops->push(world, call);
        return SHERD_OK;
    }
    sherdi_world_drain(world);
    SHERDI_TRY(sherdi_world_call_run(world, call));
    if (call_is_on_device(world, call)) {
        SHERDI_TRY(world->device->ops->made(world, ticket_out == NULL, &ticket));
    }
    if (ticket_out != NULL) {
        *ticket_out = ticket;
    }
    return SHERD_OK;
}

/* Waits until the call with this ticket has run, as far as it runs on the host. */
static sherd_status queue_wait_run(sherd_world *world, sherdi_ticket ticket)
{
    world_queue *queue = &world->queue;
    uint64_t     failed;

    if (ticket > queue->issued) {
        return sherdi_fail(SHERD_E_INVAL, "ticket %llu was never given out; the last one is %llu",
                           (unsigned long long)ticket, (unsigned long long)queue->issued);
    }
    queue_wait_done(world, ticket);
    failed = atomic_load(&queue->failed_ticket);
    if (failed != 0 && failed <= ticket) {
        return sherdi_outcome_end(&queue->failed);
    }
    return SHERD_OK;
}

sherd_status sherdi_world_wait(sherd_world *world, sherdi_ticket ticket)
{
    SHERDI_TRY(queue_wait_run(world, ticket));
    return sherdi_world_is_on_lane(world) ? world->device->ops->wait(world, ticket) : SHERD_OK;
}

sherd_status sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                 sherdi_ticket ticket)
{
    if (!sherdi_world_is_on_lane(world) || !lane->device->is_async) {
        return sherdi_world_wait(world, ticket);
    }
    SHERDI_TRY(queue_wait_run(world, ticket));
    world->device->ops->follow(world, lane, ticket);
    return sherdi_world_status(world);
}

int sherdi_world_is_done(sherd_world *world, sherdi_ticket ticket)
{
    return atomic_load_explicit(&world->queue.done, memory_order_acquire) >= ticket &&
           (!sherdi_world_is_on_lane(world) || world->device->ops->is_done(world, ticket));
}

/* ------------------------------------------------------------- regrouping -- */

/* A call that is under way between hosts cannot be taken back. */
int sherdi_world_takes_back(const sherd_world *world)
{
    return world->ops->interrupt != NULL && world->local_size == world->world_size;
}

sherd_status sherdi_world_interrupt(sherd_world *world, sherd_status why, const char *text)
{
    SHERDI_TRY(sherdi_world_check_process(world));
    sherdi_world_drain(world);
    SHERDI_TRY(sherdi_world_status(world));
    return world->ops->interrupt(world, why, text);
}

sherd_status sherdi_world_regroup(sherd_world *world)
{
    world_queue *queue = &world->queue;

    SHERDI_TRY(sherdi_world_check_process(world));
    sherdi_world_drain(world);
    SHERDI_TRY(sherdi_world_status(world));
    if (world->world_size > 1 && !(world->ops->caps & SHERDI_WORLD_SIMULATES)) {
        SHERDI_TRY(world->ops->regroup(world));
    }
    (void)pthread_mutex_lock(&queue->lock);
    atomic_store(&queue->failed_ticket, 0);
    (void)pthread_mutex_unlock(&queue->lock);
    return SHERD_OK;
}
