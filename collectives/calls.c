/* The calls of the engine and of the program. They run the call, and count its bytes (checks.c checks
 * the arguments). A call runs at once and on the caller's thread, unless the world has an order of its own
 * for calls that overlap with their caller (world_order). */
#include "collectives/world_impl.h"

#include "base/absent.h"
#include "base/checked.h"
#include "base/log.h"

#include <assert.h>
#include <string.h>

/* -------------------------------------------------------------- the caller -- */

sherd_status sherdi_callback_check(const char *call, const char *outer)
{
    if (outer == NULL && sherdi_log_is_telling()) {
        outer = "the log";
    }
    return outer == NULL
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             "%s: it was called by a function that %s calls; such a function "
                             "(fill, progress, write, log) cannot call its engine or world; return "
                             "from it first",
                             call, outer);
}

sherd_status sherdi_world_check_caller(sherd_world *world, const char *call)
{
    if (world == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "%s: the world is NULL", call);
    }
    SHERDI_TRY(sherdi_callback_check(call, world->callback_of));
    sherdi_world_caller_note(world, call);
    return SHERD_OK;
}

void sherdi_world_caller_note(sherd_world *world, const char *call)
{
    atomic_store_explicit(&world->caller, call, memory_order_relaxed);
}

const char *sherdi_world_caller(const sherd_world *world)
{
    return atomic_load_explicit(&world->caller, memory_order_relaxed);
}

const char *sherdi_world_callback_set(sherd_world *world, const char *call)
{
    const char *before = world->callback_of;

    world->callback_of = call;
    return before;
}

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

sherd_status sherdi_world_call_run(sherd_world *world, const world_call *call)
{
    return call->observer == NULL ? call_make(world, call)
                                  : call->observer->observe(world, call, call_make);
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

sherd_status sherdi_world_call_queue(sherd_world *world, const world_call *call,
                                     sherdi_ticket *ticket_out)
{
    SHERDI_TRY(SHERDI_WORLD_CALL_CHECK(world, call));
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

/* ---------------------------------------------------- making and counting -- */

void sherdi_world_traffic_add(sherd_world *world, uint64_t sent_bytes, uint64_t received_bytes)
{
    (void)atomic_fetch_add_explicit(&world->sent_bytes, sent_bytes, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&world->received_bytes, received_bytes, memory_order_relaxed);
}

/* Counts one slice to every other rank, and one from it. */
static void traffic_add_slices(sherd_world *world, size_t slice_bytes)
{
    uint64_t bytes = sherdi_wire_all_gather(world->world_size, slice_bytes);

    sherdi_world_traffic_add(world, bytes, bytes);
}

static sherd_status reduce(sherd_world *world, world_call_kind kind,
                           const sherdi_reduction_args *args, sherdi_ticket *ticket_out)
{
    const world_call call = {
        .kind           = kind,
        .flags          = args->flags,
        .slice_bytes    = args->slice_elems * sherdi_reduction_send_bytes(args),
        .what           = args->what,
        .observer       = args->observer,
        .args.reduction = *args,
    };

    SHERDI_TRY(sherdi_world_call_queue(world, &call, ticket_out));
    traffic_add_slices(world, (kind == CALL_ALL_REDUCE ? 2 : 1) * call.slice_bytes);
    return SHERD_OK;
}

sherd_status sherdi_world_all_gather(sherd_world *world, const sherdi_all_gather_args *args,
                                     sherdi_ticket *ticket_out)
{
    const world_call call = {.kind            = CALL_ALL_GATHER,
                             .flags           = args->flags,
                             .slice_bytes     = args->slice_bytes,
                             .what            = args->what,
                             .observer        = args->observer,
                             .args.all_gather = *args};

    SHERDI_TRY(sherdi_world_call_queue(world, &call, ticket_out));
    traffic_add_slices(world, args->slice_bytes);
    return SHERD_OK;
}

sherd_status sherdi_world_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args,
                                         sherdi_ticket *ticket_out)
{
    return reduce(world, CALL_REDUCE_SCATTER, args, ticket_out);
}

sherd_status sherdi_world_all_reduce(sherd_world *world, const sherdi_reduction_args *args,
                                     sherdi_ticket *ticket_out)
{
    return reduce(world, CALL_ALL_REDUCE, args, ticket_out);
}

sherd_status sherd_world_barrier(sherd_world *world)
{
    const world_call call = {.kind = CALL_BARRIER, .flags = SHERDI_COLL_HOST};

    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_barrier"));
    return sherdi_world_call_queue(world, &call, NULL);
}

/* ------------------------------------------------------------ control data -- */

sherd_status sherdi_world_exchange(sherd_world *world, const void *mine, void *all,
                                   size_t len_bytes, const char *what)
{
    sherdi_all_gather_args args = {.send        = mine,
                                   .recv        = all,
                                   .slice_bytes = len_bytes,
                                   .flags       = SHERDI_COLL_HOST,
                                   .what        = what};

    return sherdi_world_all_gather(world, &args, NULL);
}

sherd_status sherdi_world_tell(sherd_world *world, const void *mine, size_t len_bytes,
                               const char *what, sherdi_messages *out)
{
    *out = (sherdi_messages){world->sum_scratch, len_bytes};
    if (len_bytes > SHERDI_TOLD_BYTES) {
        return sherdi_fail(SHERD_E_INVAL, "%s: a rank can tell %zu bytes, and not %zu", what,
                           SHERDI_TOLD_BYTES, len_bytes);
    }
    if (world->ops->caps & SHERDI_WORLD_SIMULATES) {
        SHERDI_TRY(sherdi_world_status(world));
        memcpy(world->sum_scratch, mine, len_bytes);
        traffic_add_slices(world, len_bytes);
        out->stride_bytes = 0;
        return SHERD_OK;
    }
    return sherdi_world_exchange(world, mine, world->sum_scratch, len_bytes, what);
}

/* Values of a rank that ranks of one host send with the note of a call (PEERS_MAIL_BYTES). */
#define SUM_PORTION 128

/* Sums one portion: values[i] = ((v of rank 0 + v of rank 1) + ...). All simulated ranks have this
 * rank's values. */
static sherd_status sum_portion(sherd_world *world, double *values, size_t count)
{
    sherdi_messages messages;

    SHERDI_TRY(sherdi_world_tell(world, values, count * sizeof(*values), "a sum", &messages));
    memcpy(values, sherdi_message_of(&messages, 0), count * sizeof(*values));
    for (int r = 1; r < world->world_size; r++) {
        const double *other = sherdi_message_of(&messages, r);

        for (size_t i = 0; i < count; i++) {
            values[i] += other[i];
        }
    }
    return SHERD_OK;
}

sherd_status sherd_world_sum_f64(sherd_world *world, double *values, size_t count)
{
    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_sum_f64"));
    if (values == NULL && count > 0) {
        return sherdi_fail(SHERD_E_INVAL, "sherd_world_sum_f64: values is NULL");
    }
    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(sherdi_world_status(world));
    sherdi_world_drain(world);
    for (size_t at = 0; at < count && world->world_size > 1; at += SUM_PORTION) {
        SHERDI_TRY(sum_portion(world, values + at, sherdi_min_size(SUM_PORTION, count - at)));
    }
    return SHERD_OK;
}
