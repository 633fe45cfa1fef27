/* Checks of the calls on worlds: the engine keeps the rules of world.h, and a call that breaks one
 * is refused before the ranks meet. */
#include "collectives/world_impl.h"

#include "base/checked.h"

static int ranges_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t at_a = (uintptr_t)a;
    uintptr_t at_b = (uintptr_t)b;

    return at_a < at_b + b_bytes && at_b < at_a + a_bytes;
}

/* Returns whether world_size slices fit into the address space, and the buffers are there. */
static int slices_are_valid(const sherd_world *world, const void *send, const void *recv,
                            size_t slice_bytes)
{
    size_t whole_bytes;

    return sherdi_mul_fits(slice_bytes, (size_t)world->world_size, &whole_bytes) &&
           (slice_bytes == 0 || (send != NULL && recv != NULL));
}

static int dtype_widens_to(sherd_dtype from, sherd_dtype to)
{
    return from == to || to == SHERD_F32;
}

/* No value is rounded but to the type of the sum, and buffers are aligned to their elements. */
static int reduction_is_valid(const sherd_world *world, const sherdi_reduction_args *args)
{
    size_t send_bytes = sherd_dtype_bytes(args->send_dtype);
    size_t recv_bytes = sherdi_reduction_recv_bytes(args);
    size_t slice_bytes;

    return send_bytes > 0 && recv_bytes > 0 &&
           (args->fixed != NULL ||
            (dtype_widens_to(args->send_dtype, args->comm_dtype) &&
             (args->accumulate || dtype_widens_to(args->comm_dtype, args->recv_dtype)))) &&
           (uintptr_t)args->send % send_bytes == 0 && (uintptr_t)args->recv % recv_bytes == 0 &&
           sherdi_mul_fits(args->slice_elems, sherdi_max_size(send_bytes, recv_bytes),
                           &slice_bytes) &&
           !((args->flags & SHERDI_COLL_VENDOR_SUM) && args->fixed != NULL) &&
           slices_are_valid(world, args->send, args->recv, slice_bytes);
}

static int reduce_scatter_is_valid(const sherd_world *world, const sherdi_reduction_args *args)
{
    size_t send_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    int    is_in_place =
        args->recv == (const unsigned char *)args->send + (size_t)world->rank * send_bytes &&
        args->send_dtype == args->recv_dtype && args->fixed == NULL;

    return reduction_is_valid(world, args) &&
           (is_in_place ||
            !ranges_overlap(args->send, send_bytes * (size_t)world->world_size, args->recv,
                            args->slice_elems * sherdi_reduction_recv_bytes(args)));
}

static int all_reduce_is_valid(const sherd_world *world, const sherdi_reduction_args *args)
{
    size_t whole_bytes =
        args->slice_elems * sherd_dtype_bytes(args->send_dtype) * (size_t)world->world_size;

    return reduction_is_valid(world, args) && !args->accumulate && args->fixed == NULL &&
           args->recv_dtype == args->send_dtype && args->comm_dtype == args->send_dtype &&
           (args->recv == args->send ||
            !ranges_overlap(args->send, whole_bytes, args->recv, whole_bytes));
}

static int all_gather_is_valid(const sherd_world *world, const sherdi_all_gather_args *args)
{
    const unsigned char *own =
        (const unsigned char *)args->recv + (size_t)world->rank * args->slice_bytes;

    return slices_are_valid(world, args->send, args->recv, args->slice_bytes) &&
           (args->send == own || !ranges_overlap(args->send, args->slice_bytes, args->recv,
                                                 args->slice_bytes * (size_t)world->world_size));
}

static int call_is_valid(const sherd_world *world, const world_call *call)
{
    switch (call->kind) {
    case CALL_ALL_GATHER:
        return all_gather_is_valid(world, &call->args.all_gather);
    case CALL_REDUCE_SCATTER:
        return call->args.reduction.add != NULL ||
               reduce_scatter_is_valid(world, &call->args.reduction);
    case CALL_ALL_REDUCE:
        return call->args.reduction.add != NULL ||
               all_reduce_is_valid(world, &call->args.reduction);
    default:
        return 1;
    }
}

sherd_status sherdi_world_call_checked(const sherd_world *world, const world_call *call)
{
    if (!call_is_valid(world, call)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: its arguments do not keep the rules of collectives/world.h",
                           sherdi_world_call_name(call->kind));
    }
    return SHERD_OK;
}
