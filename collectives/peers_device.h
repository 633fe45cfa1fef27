/* Device memory of ranks that are threads of one process. peers_device.c implements it, peers.c and
 * threads.c use it. */
#ifndef SHERDI_COLLECTIVES_PEERS_DEVICE_H
#define SHERDI_COLLECTIVES_PEERS_DEVICE_H

#include "collectives/peers.h"

/* What a rank has for device calls; all zero where the world has no device. */
typedef struct peers_device {
    sherdi_peers  *peers;
    atomic_int    *readers; /* of the group: number of ranks in a call, which use others' memory */
    int            is_spread;     /* the ranks are on several devices */
    size_t         portion_bytes; /* of one rank's slice, in scratch */
    unsigned char *scratch;       /* [count * portion_bytes] on the device; NULL unless spread */
    sherdi_event  *ready;         /* event: others may use this call's buffers */
    sherdi_event  *done;          /* event: this rank is through with others' buffers */
} peers_device;

/** Prepares the peers for device memory: from then on their calls on it are queued on the world's
 *  lane. Call it after the world was equipped, and before any rank's first call. `is_spread`: not
 *  all ranks are on this rank's device. Does nothing without a device. */
sherd_status sherdi_peers_device_open(peers_device *device, sherdi_peers *peers,
                                      atomic_int *readers, int is_spread);
/** Call it after sherdi_peers_leave. Accepts a device that is not completely open. */
void sherdi_peers_device_close(peers_device *device);
/** Blocks until no rank uses another rank's memory any more. Call it after a failure, or before the
 *  end. */
void sherdi_peers_device_settle(const peers_device *device);

/** The first meeting of a call. Afterwards the lane runs behind all work that any rank had queued
 *  before the call. */
sherd_status sherdi_peers_device_begin(peers_device *device, const peers_note *note);
/** The last meeting of a call. Afterwards the lane runs behind all that any rank does in the
 *  call. */
sherd_status sherdi_peers_device_end(peers_device *device);
/** Returns scratch for portion_bytes of a rank's slice if this device's kernels cannot reach that
 *  rank's memory; else NULL. */
unsigned char *sherdi_peers_device_scratch(const peers_device *device, int index);

#endif
