/* Ranks with a GPU each: device memory moves over NCCL, control data over the sockets of star.c.
 * Only files named nccl_* and this one include nccl.h.
 *
 * Each call on device memory queues its work on the world's lane and returns when NCCL has launched
 * it. The communicators do not block, so NCCL launches by a thread of its own; how long that takes
 * has not been seen on a GPU yet. NCCL's own sums have an order of their own. So a reduction is an
 * all-to-all into planned room (sherdi_world_reserve), followed by the kernel `reduce` on the lane,
 * which gives the same bits as every other transport. */
#include "collectives/nccl_impl.h"

#include "base/log.h"
#include "collectives/meeting_point.h"
#include "collectives/split.h"
#include "collectives/transport.h"
#include "collectives/remote.h"
#include "kernels/lanes.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------- calls on the lane -- */

static cudaStream_t stream_of(const sherd_world *world)
{
    return (cudaStream_t)sherdi_lanes_of(world->backend)->lane_stream(world->backend);
}

static sherd_status device_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    ncclResult_t result;

    if (args->slice_bytes == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_nccl_call_begin(world, CALL_ALL_GATHER, args->what));
    result = sherdi_nccl_api.AllGather(args->send, args->recv, args->slice_bytes, ncclUint8,
                                       sherdi_nccl_of(world)->comm, stream_of(world));
    return sherdi_nccl_call_end(world, result, CALL_ALL_GATHER);
}

static int is_going(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

static int has_all_to_all(const sherd_world *world)
{
    const struct sherdi_nccl *nccl = ((const sherdi_procs *)world)->moving;

    return nccl->options.has_all_to_all;
}

/* The library's own all-to-all, which also moves this rank's own slice. Call it under the lock. */
static ncclResult_t slices_swap_whole(sherd_world *world, const void *send, void *recv,
                                      size_t slice_bytes)
{
    return sherdi_nccl_api.AlltoAll(send, recv, slice_bytes, ncclUint8, sherdi_nccl_of(world)->comm,
                                    stream_of(world));
}

/* Sends the slices of `send` to the other ranks and receives theirs into `recv`, one after the
 * other without this rank's own. Call it under the lock. */
static ncclResult_t slices_swap(sherd_world *world, const unsigned char *send, unsigned char *recv,
                                size_t slice_bytes)
{
    ncclComm_t   comm   = sherdi_nccl_of(world)->comm;
    cudaStream_t stream = stream_of(world);
    ncclResult_t result = sherdi_nccl_api.GroupStart();
    ncclResult_t ended;

    for (int r = 0; r < world->world_size && is_going(result); r++) {
        size_t slot = (size_t)(r > world->rank ? r - 1 : r);

        if (r == world->rank) {
            continue;
        }
        result = sherdi_nccl_api.Send(send + (size_t)r * slice_bytes, slice_bytes, ncclUint8, r,
                                      comm, stream);
        if (is_going(result)) {
            result = sherdi_nccl_api.Recv(recv + slot * slice_bytes, slice_bytes, ncclUint8, r,
                                          comm, stream);
        }
    }
    ended = sherdi_nccl_api.GroupEnd();
    return is_going(result) ? ended : result;
}

static ncclResult_t slices_send(sherd_world *world, const void *send, void *recv,
                                size_t slice_bytes)
{
    return has_all_to_all(world) ? slices_swap_whole(world, send, recv, slice_bytes)
                                 : slices_swap(world, send, recv, slice_bytes);
}

static size_t nccl_reserve_bytes(const sherd_world *world, size_t whole_bytes)
{
    if (has_all_to_all(world)) {
        return whole_bytes;
    }
    return whole_bytes - whole_bytes / (size_t)world->world_size;
}

static sherd_status reserve_check(const sherd_world *world, world_call_kind kind,
                                  size_t whole_bytes, const char *what)
{
    size_t needed = nccl_reserve_bytes(world, whole_bytes);

    if (needed > world->held.room_bytes) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "%s of %zu bytes%s%s over NCCL needs %zu bytes to receive in, and %zu "
                           "are reserved (sherdi_world_reserve)",
                           sherdi_world_call_name(kind), whole_bytes, what == NULL ? "" : " of ",
                           what == NULL ? "" : what, needed, world->held.room_bytes);
    }
    return SHERD_OK;
}

/* Sums this rank's slice into `recv`, in the order of the ranks. */
static sherd_status sum_own_slice(sherd_world *world, world_call_kind kind,
                                  const sherdi_reduction_args *args, void *recv)
{
    size_t               slice_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    const unsigned char *send        = args->send;
    const unsigned char *receive     = sherdi_device_of(world)->receive;
    const void         **srcs        = (const void **)(void *)world->sum_scratch;
    ncclResult_t         result;

    SHERDI_TRY(reserve_check(world, kind, slice_bytes * (size_t)world->world_size, args->what));
    SHERDI_TRY(sherdi_nccl_call_begin(world, kind, args->what));
    result = slices_send(world, send, sherdi_device_of(world)->receive, slice_bytes);
    SHERDI_TRY(sherdi_nccl_call_end(world, result, kind));
    for (int r = 0; r < world->world_size; r++) {
        srcs[r] = has_all_to_all(world) ? receive + (size_t)r * slice_bytes
                  : r == world->rank
                      ? send + (size_t)r * slice_bytes
                      : receive + (size_t)(r > world->rank ? r - 1 : r) * slice_bytes;
    }
    sherdi_world_reduce_local(world->backend, args, srcs, world->world_size, recv,
                              args->slice_elems, NULL, 0);
    return SHERD_OK;
}

static ncclDataType_t type_of(sherd_dtype dtype)
{
    return dtype == SHERD_F32 ? ncclFloat32 : dtype == SHERD_BF16 ? ncclBfloat16 : ncclFloat16;
}

/* Takes NCCL's own sum, where the caller asked for it. A kernel then applies the scale. */
static sherd_status vendor_sum(sherd_world *world, world_call_kind kind,
                               const sherdi_reduction_args *args)
{
    int    is_whole = kind == CALL_ALL_REDUCE;
    int    is_plain = args->recv_dtype == args->send_dtype && !args->accumulate;
    size_t count    = is_whole ? args->slice_elems * (size_t)world->world_size : args->slice_elems;
    ncclDataType_t type = type_of(args->send_dtype);
    void          *sums = args->recv;
    const void    *srcs[1];
    ncclResult_t   result;

    if (!is_plain) {
        size_t whole = count * sherd_dtype_bytes(args->send_dtype) * (size_t)world->world_size;

        SHERDI_TRY(reserve_check(world, kind, whole, args->what));
        sums = sherdi_device_of(world)->receive;
    }
    SHERDI_TRY(sherdi_nccl_call_begin(world, kind, args->what));
    result = is_whole
                 ? sherdi_nccl_api.AllReduce(args->send, sums, count, type, ncclSum,
                                             sherdi_nccl_of(world)->comm, stream_of(world))
                 : sherdi_nccl_api.ReduceScatter(args->send, sums, count, type, ncclSum,
                                                 sherdi_nccl_of(world)->comm, stream_of(world));
    SHERDI_TRY(sherdi_nccl_call_end(world, result, kind));
    srcs[0] = sums;
    sherdi_world_reduce_local(world->backend, args, srcs, 1, args->recv, count, NULL, 0);
    return SHERD_OK;
}

static sherd_status nccl_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args)
{
    if (args->slice_elems == 0) {
        return SHERD_OK;
    }
    if (args->flags & SHERDI_COLL_VENDOR_SUM) {
        return vendor_sum(world, CALL_REDUCE_SCATTER, args);
    }
    return sum_own_slice(world, CALL_REDUCE_SCATTER, args, args->recv);
}

static sherd_status nccl_all_reduce(sherd_world *world, const sherdi_reduction_args *args)
{
    size_t                 slice_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    unsigned char         *own    = (unsigned char *)args->recv + (size_t)world->rank * slice_bytes;
    sherdi_all_gather_args gather = {
        .send = own, .recv = args->recv, .slice_bytes = slice_bytes, .what = args->what};

    if (args->slice_elems == 0) {
        return SHERD_OK;
    }
    if (args->flags & SHERDI_COLL_VENDOR_SUM) {
        return vendor_sum(world, CALL_ALL_REDUCE, args);
    }
    SHERDI_TRY(sum_own_slice(world, CALL_ALL_REDUCE, args, own));
    return device_all_gather(world, &gather);
}

/* --------------------------------------------------------------- first calls -- */

/* Bytes of a slice. NCCL connects to peers when it first uses an algorithm, and it uses another
 * algorithm for long messages. */
static const size_t WARM_BYTES[] = {256, (size_t)1 << 20};

#define WARM_SIZES (sizeof(WARM_BYTES) / sizeof(WARM_BYTES[0]))

static sherd_status warm_once(sherd_world *world, unsigned char *send, unsigned char *recv,
                              size_t slice_bytes, int has_vendor_sums)
{
    const sherdi_all_gather_args gather = {
        .send = send, .recv = recv, .slice_bytes = slice_bytes, .what = "first calls"};
    ncclResult_t                result;
    const sherdi_reduction_args sum = {.send        = send,
                                       .recv        = recv,
                                       .slice_elems = slice_bytes / sizeof(float),
                                       .scale       = 1,
                                       .what        = "first calls"};

    SHERDI_TRY(device_all_gather(world, &gather));
    SHERDI_TRY(sherdi_nccl_call_begin(world, CALL_REDUCE_SCATTER, "first calls"));
    result = slices_send(world, send, recv, slice_bytes);
    SHERDI_TRY(sherdi_nccl_call_end(world, result, CALL_REDUCE_SCATTER));
    if (has_vendor_sums) {
        SHERDI_TRY(vendor_sum(world, CALL_REDUCE_SCATTER, &sum));
        SHERDI_TRY(vendor_sum(world, CALL_ALL_REDUCE, &sum));
    }
    return SHERD_OK;
}

static sherd_status nccl_warm(sherd_world *world, int has_vendor_sums)
{
    size_t       size   = (size_t)world->world_size;
    size_t       whole  = size * WARM_BYTES[WARM_SIZES - 1];
    sherd_status status = SHERD_OK;
    void        *memory;

    SHERDI_TRY(sherdi_world_alloc(world, 2 * whole, &memory));
    for (size_t i = 0; i < WARM_SIZES && status == SHERD_OK; i++) {
        status = warm_once(world, memory, (unsigned char *)memory + whole, WARM_BYTES[i],
                           has_vendor_sums);
    }
    if (status == SHERD_OK) {
        status = sherdi_lane_wait(world->backend);
    }
    sherdi_world_free(world, memory);
    return status;
}

/* ------------------------------------------------------------------- memory -- */

static int registers(const struct sherdi_nccl *nccl)
{
    if (nccl->options.has_windows) {
        return 1;
    }
    return !nccl->is_foreign && !nccl->options.is_unregistered &&
           sherdi_nccl_api.CommRegister != NULL && sherdi_nccl_api.CommDeregister != NULL;
}

#ifndef NCCL_WIN_COLL_SYMMETRIC
#define NCCL_WIN_COLL_SYMMETRIC 0x01 /* of 2.27; no older library has windows */
#endif

/* A window needs memory that NCCL allocated. Without windows the memory is the device's. */
static sherd_status nccl_memory_make(sherd_world *world, size_t len_bytes, void **out)
{
    ncclResult_t result;
    void        *memory = NULL;

    *out = NULL;
    if (!sherdi_nccl_of(world)->options.has_windows) {
        return SHERD_OK;
    }
    (void)cudaSetDevice(world->device->index); /* NCCL allocates on the thread's device */
    result = sherdi_nccl_api.MemAlloc(&memory, len_bytes);
    if (result != ncclSuccess) {
        return sherdi_fail(SHERD_E_NOMEM, "NCCL gives no memory for %zu bytes in a window: %s",
                           len_bytes, sherdi_nccl_api.GetErrorString(result));
    }
    world->backend->device->fill(world->backend, memory, 0, len_bytes);
    if (sherdi_lane_wait(world->backend) != SHERD_OK) {
        (void)sherdi_nccl_api.MemFree(memory);
        return SHERD_E_DEVICE;
    }
    *out = memory;
    return SHERD_OK;
}

static void nccl_memory_drop(sherd_world *world, void *memory)
{
    (void)world;
    (void)sherdi_nccl_api.MemFree(memory);
}

/* Call it under the lock. A thread of NCCL's registers a window, and the call's result does not say
 * so: the caller must ask afterwards. */
static ncclResult_t memory_register(struct sherdi_nccl *nccl, void *memory, size_t len_bytes)
{
    ncclResult_t result;

    nccl->window = NULL;
    if (!nccl->options.has_windows) {
        return sherdi_nccl_api.CommRegister(nccl->comm, memory, len_bytes, &nccl->window);
    }
    result = sherdi_nccl_api.CommWindowRegister(nccl->comm, memory, len_bytes, &nccl->window,
                                                NCCL_WIN_COLL_SYMMETRIC);
    return result == ncclSuccess ? ncclInProgress : result;
}

/* NCCL moves registered memory without copying it to its own buffers. Memory that it does not
 * register is still moved, with copies. */
static void *nccl_memory_enter(sherd_world *world, void *memory, size_t len_bytes)
{
    struct sherdi_nccl *nccl   = sherdi_nccl_of(world);
    void               *handle = NULL;
    ncclResult_t        result;

    if (!registers(nccl)) {
        return NULL;
    }
    if (sherdi_nccl_enter(nccl)) {
        result = memory_register(nccl, memory, len_bytes);
        if (!is_going(result)) {
            sherdi_log(SHERD_LOG_DEBUG, world->rank, "NCCL does not register %zu bytes: %s",
                       len_bytes, sherdi_nccl_result_text(nccl, result));
        } else if (sherdi_nccl_settle(nccl, result, "the registration of memory") == SHERD_OK) {
            handle = nccl->window;
        }
        sherdi_nccl_leave(nccl);
    }
    return handle;
}

void sherdi_nccl_deregister(sherd_world *world, void *handle)
{
    struct sherdi_nccl *nccl = sherdi_nccl_of(world);

    if (nccl != NULL && handle != NULL && sherdi_nccl_enter(nccl)) {
        ncclResult_t result = nccl->options.has_windows
                                  ? sherdi_nccl_api.CommWindowDeregister(nccl->comm, handle)
                                  : sherdi_nccl_api.CommDeregister(nccl->comm, handle);

        (void)sherdi_nccl_settle(nccl, result, "the release of memory");
        sherdi_nccl_leave(nccl);
    }
}

/* ------------------------------------------------------- control over sockets -- */

static sherd_status nccl_barrier(sherd_world *world)
{
    return sherdi_star_barrier(&sherdi_nccl_of(world)->star);
}

static sherd_status nccl_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    return args->flags & SHERDI_COLL_HOST
               ? sherdi_star_all_gather(&sherdi_nccl_of(world)->star, args)
               : device_all_gather(world, args);
}

static sherd_status nccl_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    return sherdi_star_broadcast(&sherdi_nccl_of(world)->star, data, len_bytes, root);
}

static sherd_status nccl_sum_u64(sherd_world *world, uint64_t *values, size_t count)
{
    return sherdi_star_sum_u64(&sherdi_nccl_of(world)->star, values, count);
}

static void nccl_close(sherd_world *world)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    sherdi_procs_close(procs);
    free(procs);
}

/* The ranks meet again, for control lines and a communicator of the new world. */
static sherd_status nccl_split(sherdi_split *split, sherd_world **out)
{
    procs_params  procs;
    meeting_point point;

    SHERDI_TRY(sherdi_meeting_point_split(split, SHERD_OK, &procs, &point));
    procs.mover_use = PROCS_MOVER_ALWAYS;
    return split->world_size > 0 ? sherdi_world_shm_create(&procs, out) : SHERD_OK;
}

static const world_device_slots NCCL_DEVICE = {
    .reserve_bytes = nccl_reserve_bytes,
    .warm          = nccl_warm,
    .memory_make   = nccl_memory_make,
    .memory_drop   = nccl_memory_drop,
    .memory_enter  = nccl_memory_enter,
    .memory_leave  = sherdi_nccl_deregister,
};

const sherdi_world_ops sherdi_nccl_ops = {
    .struct_size    = sizeof(sherdi_nccl_ops),
    .name           = "nccl",
    .caps           = SHERDI_WORLD_ON_LANE,
    .close          = nccl_close,
    .barrier        = nccl_barrier,
    .all_gather     = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce     = nccl_all_reduce,
    .broadcast      = nccl_broadcast,
    .abort          = sherdi_procs_abort,
    .tell_ending    = sherdi_procs_tell_ending,
    .split          = nccl_split,
    .sum_u64        = nccl_sum_u64,
    .device         = &NCCL_DEVICE,
};

const sherdi_transport sherdi_transport_nccl = {
    .name  = "nccl",
    .holds = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_HOSTS | SHERDI_TRANSPORT_MPI |
             SHERDI_TRANSPORT_DEVICES,
    .is_built = 1,
    .create   = sherdi_world_shm_create, /* the ranks meet as in shm; then the table changes */
    .library  = sherdi_nccl_text,
    .mover    = &sherdi_nccl_mover,
};
