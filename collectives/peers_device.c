/* Device memory of ranks that are threads of one process. They have one address space, so a rank's
 * lane reads its peers' buffers in place. The host meets twice per call, and the lanes wait for
 * each other by events:
 *
 *   record `ready`; meet, with the buffers' addresses; follow every rank's `ready`;
 *   read and sum on the lane (peers.c); record `done`; meet; follow every rank's `done`.
 *
 * So the host never waits for the device, and what a lane does after a call comes after everything
 * that the peers did to this rank's buffers. An event is recorded again in the next call at the
 * earliest, when the meetings guarantee that all ranks have followed it. SHERDI_COLL_STABLE makes
 * no difference: only a meeting tells when the values are complete on the device.
 *
 * On several devices a kernel does not reach another device's memory. Copies do, and sums go
 * through scratch, portion by portion. */
#include "collectives/peers_device.h"

#include "base/checked.h"

#include <string.h>
#include <time.h>

/* Bytes of a rank's scratch, for all peers together. */
#define SCRATCH_BYTES     ((size_t)16 << 20)
#define PORTION_MIN_BYTES ((size_t)64 << 10)
#define SETTLE_NAP_NS     100000

/* --------------------------------------------------------------- life -- */

static sherd_status scratch_create(peers_device *device)
{
    sherd_world    *world = device->peers->world;
    sherdi_backend *lane  = world->backend;
    size_t          count = (size_t)device->peers->count;
    void           *memory;

    device->portion_bytes = sherdi_max_size(
        PORTION_MIN_BYTES, SCRATCH_BYTES / count / SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES);
    SHERDI_TRY(lane->device->alloc(lane, &world->mem, SHERDI_MEM_TRANSPORT,
                                   count * device->portion_bytes, &memory));
    device->scratch = memory;
    world->overhead_bytes += count * device->portion_bytes;
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
    SHERDI_TRY(lane->device->event_create(lane, 0, &device->ready));
    SHERDI_TRY(lane->device->event_create(lane, 0, &device->done));
    peers->control->slots[peers->me].device = peers->device = device;
    return is_spread ? scratch_create(device) : SHERD_OK;
}

void sherdi_peers_device_settle(const peers_device *device)
{
    const struct timespec nap = {.tv_nsec = SETTLE_NAP_NS};

    while (device->peers != NULL && atomic_load(device->readers) > 0) {
        (void)nanosleep(&nap, NULL);
    }
}

/* A rank that is still inside a call either waits for this rank, which has left, or is about to
 * leave the call. */
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
    memset(device, 0, sizeof(*device));
}

/* ------------------------------------------------------------ meetings -- */

static const sherdi_backend *lane_of(const peers_device *device)
{
    return device->peers->world->backend;
}

/* Leaves a call that will not be completed. First waits until this rank's lane has read what it
 * still reads of its peers. */
static sherd_status call_fail(const peers_device *device, sherd_status status)
{
    const sherdi_outcome failed = sherdi_outcome_of(status);

    (void)sherdi_lane_wait(lane_of(device));
    (void)atomic_fetch_sub(device->readers, 1);
    return sherdi_outcome_end(&failed);
}

sherd_status sherdi_peers_device_begin(peers_device *device, const peers_note *note)
{
    const sherdi_peers   *peers = device->peers;
    const sherdi_backend *lane  = lane_of(device);
    sherd_status          status;

    (void)atomic_fetch_add(device->readers, 1);
    lane->device->event_record(device->ready, lane);
    status = sherdi_peers_meet_with(device->peers, note, NULL, 0);
    if (status != SHERD_OK) {
        return call_fail(device, status);
    }
    for (int i = 0; i < peers->count; i++) {
        if (i != peers->me) {
            lane->device->lane_follow_event(lane, peers->control->slots[i].device->ready);
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_peers_device_end(peers_device *device)
{
    const sherdi_peers   *peers = device->peers;
    const sherdi_backend *lane  = lane_of(device);
    sherd_status          status;

    lane->device->event_record(device->done, lane);
    status = sherdi_peers_meet(device->peers);
    if (status != SHERD_OK) {
        return call_fail(device, status);
    }
    for (int i = 0; i < peers->count; i++) {
        if (i != peers->me) {
            lane->device->lane_follow_event(lane, peers->control->slots[i].device->done);
        }
    }
    (void)atomic_fetch_sub(device->readers, 1);
    return SHERD_OK;
}

unsigned char *sherdi_peers_device_scratch(const peers_device *device, int index)
{
    return device->is_spread ? device->scratch + (size_t)index * device->portion_bytes : NULL;
}
