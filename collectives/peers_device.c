/* Device memory of ranks that are threads of one process. They have one address space, so a rank's
 * lane reads its peers' buffers in place. The host meets twice per call, and the lanes wait for
 * each other by events:
 *
 *   record `ready`; meet, with the buffers' addresses; follow every rank's `ready`; read and sum on
 *   the lane (peers.c); record `done`; meet; follow every rank's `done`.
 *
 * So the host never waits for the device, and later work of a lane comes after all accesses of the
 * peers to this rank's buffers. An event is recorded again in the next call at the earliest, when
 * the meetings guarantee that all ranks have followed it. SHERDI_COLL_STABLE makes no difference:
 * only a meeting shows when the values are complete on the device.
 *
 * On several devices a kernel does not reach another device's memory. Copies do, and sums go
 * through scratch, portion by portion. */
#include "collectives/peers.h"

#include "base/checked.h"
#include "base/log.h"
#include "collectives/device.h"
#include "collectives/transport.h"
#include "kernels/devices.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bytes of a rank's scratch, for all peers together. */
#define SCRATCH_BYTES     ((size_t)16 << 20)
#define PORTION_MIN_BYTES ((size_t)64 << 10)
#define SETTLE_NAP_NS     100000

/* The state of a rank for device calls. */
typedef struct peers_device {
    atomic_int   *readers; /* of the group */
    sherdi_event *ready;   /* event: others may use this call's buffers */
    sherdi_event *done;    /* event: this rank is through with others' buffers */
} peers_device;

/* --------------------------------------------------------------- life -- */

/* Device -1 gives each rank the device of its local rank, as far as there are devices. */
static int devices_differ(const sherd_world_params *params, int world_size)
{
    const char *kind = "cpu";

    (void)sherdi_world_backend_kind(params, &kind); /* it was checked */
    return strcmp(kind, "cpu") != 0 && params->device < 0 && world_size > 1 &&
           sherdi_backend_device_count(kind, NULL, 0) > 1;
}

static sherd_status scratch_create(sherdi_peers *peers)
{
    sherd_world    *world = peers->world;
    sherdi_backend *lane  = world->backend;
    size_t          count = (size_t)peers->count;
    void           *memory;

    peers->scratch_bytes = sherdi_max_size(
        PORTION_MIN_BYTES, SCRATCH_BYTES / count / SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES);
    SHERDI_TRY(lane->device->alloc(lane, &world->mem, SHERDI_MEM_TRANSPORT,
                                   count * peers->scratch_bytes, &memory));
    peers->scratch = memory;
    world->held.overhead_bytes += count * peers->scratch_bytes;
    return SHERD_OK;
}

static sherd_status device_open(sherdi_peers *peers, atomic_int *readers, int is_spread)
{
    sherdi_backend *lane = peers->world->backend;
    peers_device   *device;

    if (peers->count == 1) {
        return SHERD_OK;
    }
    device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the device of rank %d",
                           peers->world->rank);
    }
    device->readers                         = readers;
    peers->control->slots[peers->me].device = peers->device = device;
    SHERDI_TRY(sherdi_lanes_of(lane)->event_create(lane, 0, &device->ready));
    SHERDI_TRY(sherdi_lanes_of(lane)->event_create(lane, 0, &device->done));
    return is_spread ? scratch_create(peers) : SHERD_OK;
}

static void device_reach(sherd_world *const *worlds, int world_size, int rank)
{
    const sherdi_backend *lane = worlds[rank]->backend;

    for (int r = 0; r < world_size; r++) {
        if (sherdi_lanes_of(lane)->device_reach != NULL &&
            !sherdi_lanes_of(lane)->device_reach(lane, worlds[r]->backend)) {
            sherdi_log(SHERD_LOG_INFO, rank,
                       "the device of this rank has no direct access to that of rank %d: copies go "
                       "through the host",
                       r);
        }
    }
}

void sherdi_peers_device_settle(const sherdi_peers *peers)
{
    const struct timespec nap = {.tv_nsec = SETTLE_NAP_NS};

    while (peers->device != NULL && atomic_load(peers->device->readers) > 0) {
        (void)nanosleep(&nap, NULL);
    }
}

/* A rank that is still inside a call either waits for this rank, which has left the call, or is
 * about to leave the call. */
static void device_close(sherdi_peers *peers)
{
    peers_device   *device = peers->device;
    sherdi_backend *lane;

    if (device == NULL) {
        return;
    }
    lane = peers->world->backend;
    sherdi_peers_device_settle(peers);
    (void)sherdi_lane_wait(lane);
    lane->device->free(lane, peers->scratch);
    sherdi_lanes_of(lane)->event_destroy(device->ready);
    sherdi_lanes_of(lane)->event_destroy(device->done);
    free(device);
    peers->device  = NULL;
    peers->scratch = NULL;
}

/* ------------------------------------------------------------ meetings -- */

static const sherdi_backend *lane_of(const sherdi_peers *peers)
{
    return peers->world->backend;
}

/* Leaves a call that will not be completed. First waits until this rank's lane has finished its
 * reads of peers. */
static sherd_status call_fail(const sherdi_peers *peers, sherd_status status)
{
    const sherdi_outcome failed = sherdi_outcome_of(status);

    (void)sherdi_lane_wait(lane_of(peers));
    (void)atomic_fetch_sub(peers->device->readers, 1);
    return sherdi_outcome_end(&failed);
}

static sherd_status call_begin(sherdi_peers *peers, const peers_note *note)
{
    const sherdi_backend *lane   = lane_of(peers);
    peers_device         *device = peers->device;
    sherd_status          status;

    (void)atomic_fetch_add(device->readers, 1);
    sherdi_lanes_of(lane)->event_record(device->ready, lane);
    status = sherdi_peers_meet_with(peers, note, NULL, 0);
    if (status != SHERD_OK) {
        return call_fail(peers, status);
    }
    for (int i = 0; i < peers->count; i++) {
        if (i != peers->me) {
            sherdi_lanes_of(lane)->lane_follow_event(lane, peers->control->slots[i].device->ready);
        }
    }
    return SHERD_OK;
}

static sherd_status call_end(sherdi_peers *peers)
{
    const sherdi_backend *lane   = lane_of(peers);
    peers_device         *device = peers->device;
    sherd_status          status;

    sherdi_lanes_of(lane)->event_record(device->done, lane);
    status = sherdi_peers_meet(peers);
    if (status != SHERD_OK) {
        return call_fail(peers, status);
    }
    for (int i = 0; i < peers->count; i++) {
        if (i != peers->me) {
            sherdi_lanes_of(lane)->lane_follow_event(lane, peers->control->slots[i].device->done);
        }
    }
    (void)atomic_fetch_sub(device->readers, 1);
    return SHERD_OK;
}

const peers_device_ops sherdi_peers_device_ops = {
    .is_spread = devices_differ,
    .open      = device_open,
    .reach     = device_reach,
    .close     = device_close,
    .begin     = call_begin,
    .end       = call_end,
};
