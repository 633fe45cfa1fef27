/* Ranks of one process over device memory. All of it is in one address space, so a rank's lane reads its peers'
 * buffers where they lie. The host meets twice in a call, and the lanes wait for each other by events:
 *
 *   record `ready`; meet, with the buffers' addresses; follow everybody's `ready`;
 *   read and sum on the lane; record `done`; meet; follow everybody's `done`.
 *
 * So the host never waits for the device, and what a lane does after a call comes after all that the peers
 * did to this rank's buffers. Events are recorded again in the next call at the earliest, when the meetings say
 * that all have followed them. SHERDI_COLL_STABLE makes no difference: a meeting tells when the values are
 * complete on the device, which nothing else does.
 *
 * On several devices a kernel does not reach into another one's memory: copies do, and sums go through
 * scratch, piece by piece. */
#include "collectives/peers_device.h"

#include "base/checked.h"

#include <string.h>
#include <time.h>

/* Scratch of a rank, for all the others together. */
#define SCRATCH_BYTES   ((size_t)16 << 20)
#define PIECE_MIN_BYTES ((size_t)64 << 10)
#define SETTLE_NAP_NS   100000

/* What a rank says at the first meeting of a call. */
typedef struct device_mail {
    const void         *send;
    void               *recv;
    const sherdi_event *ready;
    const sherdi_event *done;
} device_mail;

/* --------------------------------------------------------------- life -- */

static sherd_status tables_create(peers_device *device)
{
    sherdi_mem *mem   = &device->peers->world->mem;
    size_t      count = (size_t)device->peers->count;

    device->sends = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*device->sends));
    device->recvs = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*device->recvs));
    device->dones = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*device->dones));
    return device->sends == NULL || device->recvs == NULL || device->dones == NULL ? SHERD_E_NOMEM
                                                                                   : SHERD_OK;
}

static sherd_status scratch_create(peers_device *device)
{
    sherd_world    *world = device->peers->world;
    sherdi_backend *lane  = world->backend;
    size_t          count = (size_t)device->peers->count;
    void           *memory;

    device->piece_bytes = sherdi_max_size(
        PIECE_MIN_BYTES, SCRATCH_BYTES / count / SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES);
    SHERDI_TRY(lane->device->alloc(lane, &world->mem, SHERDI_MEM_TRANSPORT, SHERDI_MEMORY_DEVICE,
                                   count * device->piece_bytes, &memory));
    device->scratch = memory;
    world->overhead_bytes += count * device->piece_bytes;
    return SHERD_OK;
}

sherd_status sherdi_peers_device_open(peers_device *device, sherdi_peers *peers,
                                      atomic_int *readers, int is_spread)
{
    sherdi_backend *lane = peers->world->backend;

    if (!sherdi_world_has_device(peers->world) || peers->count == 1) {
        return SHERD_OK;
    }
    *device = (peers_device){.peers = peers, .readers = readers, .is_spread = is_spread};
    SHERDI_TRY(tables_create(device));
    SHERDI_TRY(lane->device->event_create(lane, &device->ready));
    SHERDI_TRY(lane->device->event_create(lane, &device->done));
    return is_spread ? scratch_create(device) : SHERD_OK;
}

void sherdi_peers_device_settle(const peers_device *device)
{
    const struct timespec nap = {.tv_nsec = SETTLE_NAP_NS};

    while (device->peers != NULL && atomic_load(device->readers) > 0) {
        (void)nanosleep(&nap, NULL);
    }
}

/* Whoever is inside a call waits for this rank, which has left, or is about to go out of it. */
void sherdi_peers_device_close(peers_device *device)
{
    sherdi_backend *lane;

    if (device->peers == NULL) {
        return;
    }
    lane = device->peers->world->backend;
    sherdi_peers_device_settle(device);
    (void)sherdi_lane_wait(lane);
    lane->device->free(lane, device->scratch);
    lane->device->event_destroy(device->ready);
    lane->device->event_destroy(device->done);
    sherdi_free(device->sends);
    sherdi_free(device->recvs);
    sherdi_free(device->dones);
    memset(device, 0, sizeof(*device));
}

/* ------------------------------------------------------------ meetings -- */

static const sherdi_backend *lane_of(const peers_device *device)
{
    return device->peers->world->backend;
}

/* The call will not come to its end: whatever this rank still reads is read before it says so. */
static sherd_status call_fail(const peers_device *device, sherd_status status)
{
    char text[SHERDI_ERROR_BYTES];

    (void)strncpy(text, sherd_last_error(), sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)sherdi_lane_wait(lane_of(device));
    (void)atomic_fetch_sub(device->readers, 1);
    return sherdi_fail_relay(status, text);
}

/* After it the peers' buffers stand in sends and recvs, and the lane comes after their `ready`. */
static sherd_status call_begin(peers_device *device, const peers_note *note, const void *send,
                               void *recv)
{
    sherdi_peers            *peers = device->peers;
    const sherdi_backend    *lane  = lane_of(device);
    const sherdi_device_ops *ops   = lane->device;
    device_mail  mail = {.send = send, .recv = recv, .ready = device->ready, .done = device->done};
    sherd_status status;

    (void)atomic_fetch_add(device->readers, 1);
    ops->event_record(device->ready, lane);
    status = sherdi_peers_meet_with(peers, note, &mail, sizeof(mail));
    if (status != SHERD_OK) {
        return call_fail(device, status);
    }
    for (int i = 0; i < peers->count; i++) {
        memcpy(&mail, sherdi_peers_mail(peers, i), sizeof(mail));
        device->sends[i] = mail.send;
        device->recvs[i] = mail.recv;
        device->dones[i] = mail.done;
        if (i != peers->me) {
            ops->lane_follow_event(lane, mail.ready);
        }
    }
    return SHERD_OK;
}

static sherd_status call_end(peers_device *device)
{
    sherdi_peers         *peers = device->peers;
    const sherdi_backend *lane  = lane_of(device);
    sherd_status          status;

    lane->device->event_record(device->done, lane);
    status = sherdi_peers_meet(peers);
    if (status != SHERD_OK) {
        return call_fail(device, status);
    }
    for (int i = 0; i < peers->count; i++) {
        if (i != peers->me) {
            lane->device->lane_follow_event(lane, device->dones[i]);
        }
    }
    (void)atomic_fetch_sub(device->readers, 1);
    return SHERD_OK;
}

/* --------------------------------------------------------------- calls -- */

static void copy(const peers_device *device, void *dst, const void *src, size_t len_bytes)
{
    if (dst != src && len_bytes > 0) {
        lane_of(device)->kernels->copy(lane_of(device), dst, src, len_bytes);
    }
}

static int neighbour(const peers_device *device, int step)
{
    return (device->peers->me + step) % device->peers->count;
}

sherd_status sherdi_peers_device_all_gather(peers_device                 *device,
                                            const sherdi_all_gather_args *args)
{
    peers_note     note = {.kind = CALL_ALL_GATHER, .len_bytes = args->slice_bytes};
    unsigned char *recv = args->recv;

    sherdi_peers_note_name(&note, args->what);
    SHERDI_TRY(call_begin(device, &note, args->send, recv));
    for (int step = 0; step < device->peers->count; step++) {
        int index = neighbour(device, step);

        copy(device, recv + (size_t)device->peers->ranks[index] * args->slice_bytes,
             device->sends[index], args->slice_bytes);
    }
    return call_end(device);
}

sherd_status sherdi_peers_device_all_to_all(peers_device                 *device,
                                            const sherdi_all_to_all_args *args)
{
    peers_note     note = {.kind = CALL_ALL_TO_ALL, .len_bytes = args->slice_bytes};
    size_t         mine = (size_t)device->peers->world->rank * args->slice_bytes;
    unsigned char *recv = args->recv;

    SHERDI_TRY(call_begin(device, &note, args->send, recv));
    for (int step = 0; step < device->peers->count; step++) {
        int index = neighbour(device, step);

        copy(device, recv + (size_t)device->peers->ranks[index] * args->slice_bytes,
             (const unsigned char *)device->sends[index] + mine, args->slice_bytes);
    }
    return call_end(device);
}

/* Every rank's bytes of my slice, where they lie. */
static void srcs_in_place(const peers_device *device, size_t slice_bytes)
{
    const sherdi_peers *peers = device->peers;

    for (int i = 0; i < peers->count; i++) {
        peers->srcs[peers->ranks[i]] =
            (const unsigned char *)device->sends[i] + (size_t)peers->world->rank * slice_bytes;
    }
}

/* My slice, the others' parts of it copied to scratch first. */
static void reduce_spread(const peers_device *device, const sherdi_reduction_args *args)
{
    const sherdi_peers *peers       = device->peers;
    size_t              elem_bytes  = sherd_dtype_bytes(args->send_dtype);
    size_t              slice_bytes = args->slice_elems * elem_bytes;
    size_t              recv_bytes  = sherdi_reduction_recv_bytes(args);
    size_t              piece       = device->piece_bytes / elem_bytes;

    for (size_t at = 0; at < args->slice_elems; at += piece) {
        size_t count = sherdi_min_size(piece, args->slice_elems - at);

        for (int i = 0; i < peers->count; i++) {
            unsigned char       *to   = device->scratch + (size_t)i * device->piece_bytes;
            const unsigned char *from = (const unsigned char *)device->sends[i] +
                                        (size_t)peers->world->rank * slice_bytes + at * elem_bytes;

            peers->srcs[peers->ranks[i]] = i == peers->me ? from : to;
            if (i != peers->me) {
                copy(device, to, from, count * elem_bytes);
            }
        }
        sherdi_world_reduce_local(lane_of(device), args, peers->srcs, peers->count,
                                  (unsigned char *)args->recv + at * recv_bytes, count, NULL, 0);
    }
}

sherd_status sherdi_peers_device_reduce_scatter(peers_device                *device,
                                                const sherdi_reduction_args *args)
{
    peers_note note = sherdi_peers_reduction_note(CALL_REDUCE_SCATTER, args);

    SHERDI_TRY(call_begin(device, &note, args->send, args->recv));
    if (device->is_spread) {
        reduce_spread(device, args);
    } else {
        srcs_in_place(device, note.len_bytes);
        sherdi_world_reduce_local(lane_of(device), args, device->peers->srcs, device->peers->count,
                                  args->recv, args->slice_elems, NULL, 0);
    }
    return call_end(device);
}

/* Sums of slices on several devices, then all slices everywhere. */
static sherd_status all_reduce_spread(peers_device *device, const sherdi_reduction_args *args)
{
    size_t                 slice_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    sherdi_reduction_args  scatter     = *args;
    sherdi_all_gather_args gather      = {
             .recv = args->recv, .slice_bytes = slice_bytes, .what = args->what};

    scatter.recv = (unsigned char *)args->recv + (size_t)device->peers->world->rank * slice_bytes;
    gather.send  = scatter.recv;
    SHERDI_TRY(sherdi_peers_device_reduce_scatter(device, &scatter));
    return sherdi_peers_device_all_gather(device, &gather);
}

/* Each rank sums its slice once and stores it to every rank's result. */
sherd_status sherdi_peers_device_all_reduce(peers_device *device, const sherdi_reduction_args *args)
{
    sherdi_peers *peers = device->peers;
    peers_note    note  = sherdi_peers_reduction_note(CALL_ALL_REDUCE, args);
    size_t        mine  = (size_t)peers->world->rank * note.len_bytes;
    int           count = 0;

    if (device->is_spread) {
        return all_reduce_spread(device, args);
    }
    SHERDI_TRY(call_begin(device, &note, args->send, args->recv));
    srcs_in_place(device, note.len_bytes);
    for (int step = 1; step < peers->count; step++) {
        peers->dsts[count++] = (unsigned char *)device->recvs[neighbour(device, step)] + mine;
    }
    sherdi_world_reduce_local(lane_of(device), args, peers->srcs, peers->count,
                              (unsigned char *)args->recv + mine, args->slice_elems, peers->dsts,
                              count);
    return call_end(device);
}
