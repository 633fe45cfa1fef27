/* Runs calls: at once and on the caller's thread, unless the world has an order of its own for calls
 * that overlap with their caller (world_order). */
#include "collectives/world_impl.h"

#include "base/absent.h"
#include "base/clock.h"

#include <assert.h>
#include <string.h>

/* --------------------------------------------------------------- running -- */

/* Does a call in a world of one rank. */
static void call_run_alone(sherd_world *world, const world_call *call)
{
    const sherdi_backend *lane =
        sherdi_world_call_is_on_device(world, call) ? world->backend : world->host;
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
    if (sherdi_world_call_is_on_device(world, call) && !sherdi_world_is_on_lane(world)) {
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
        (sherdi_world_call_is_on_device(world, call) && sherdi_world_is_on_lane(world))) {
        return call_make(world, call);
    }
    start_ns = sherdi_now_ns();
    status   = call_make(world, call);
    call_tell(world, call, start_ns);
    return status;
}

/* ------------------------------------------------------------------ order -- */

sherd_status sherdi_world_overlap(sherd_world *world)
{
    sherd_status (*const start)(sherd_world * world) = SHERDI_WORLD_OVERLAP;

    return start == NULL ? sherdi_absent("overlap", "a thread for communication") : start(world);
}

void sherdi_world_drain(sherd_world *world)
{
    if (world->order != NULL) {
        world->order->ops->drain(world);
    }
    world->running =
        atomic_load_explicit(&world->caller, memory_order_relaxed); /* this thread sends now */
}

sherd_status sherdi_world_queue_call(sherd_world *world, const world_call *call,
                                     sherdi_ticket *ticket_out)
{
    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(sherdi_world_status(world));
    if (world->order != NULL) {
        return world->order->ops->call(world, call, ticket_out);
    }
    sherdi_world_drain(world);
    SHERDI_TRY(sherdi_world_call_run(world, call));
    if (ticket_out != NULL) {
        *ticket_out = 0;
    }
    return SHERD_OK;
}

sherd_status sherdi_ticket_check(sherdi_ticket ticket, sherdi_ticket issued)
{
    return ticket <= issued
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "ticket %llu was never given out; the last one is %llu",
                             (unsigned long long)ticket, (unsigned long long)issued);
}

sherd_status sherdi_world_wait(sherd_world *world, sherdi_ticket ticket)
{
    return world->order == NULL ? sherdi_ticket_check(ticket, 0)
                                : world->order->ops->wait(world, ticket);
}

sherd_status sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                 sherdi_ticket ticket)
{
    return world->order == NULL ? sherdi_ticket_check(ticket, 0)
                                : world->order->ops->follow(world, lane, ticket);
}

int sherdi_world_is_done(sherd_world *world, sherdi_ticket ticket)
{
    return world->order == NULL ? ticket == 0 : world->order->ops->is_done(world, ticket);
}
