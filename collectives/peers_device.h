/* Ranks of one process over device memory: peers_device.c, for peers.c and threads.c. */
#ifndef SHERDI_COLLECTIVES_PEERS_DEVICE_H
#define SHERDI_COLLECTIVES_PEERS_DEVICE_H

#include "collectives/peers.h"

/* What a rank has; all zero where the world has no device. */
typedef struct peers_device {
    sherdi_peers  *peers;
    atomic_int    *readers;       /* of the group: ranks inside a call, who touch others' memory */
    int            is_spread;     /* the ranks are on several devices */
    size_t         portion_bytes; /* of one rank's slice, through scratch */
    unsigned char *scratch;       /* [count * portion_bytes] on the device; NULL unless spread */
    sherdi_event  *ready;         /* others may touch the buffers of the call */
    sherdi_event  *done;          /* what this rank had to do with others' buffers is done */
} peers_device;

/** After the world was equipped, and before any rank's first call: makes it the device of the peers, whose calls
 *  on device memory are queued on the world's lane from then on. `is_spread`: not all ranks have this rank's
 *  device. */
sherd_status sherdi_peers_device_open(peers_device *device, sherdi_peers *peers,
                                      atomic_int *readers, int is_spread);
/** Half-built too, after sherdi_peers_leave. */
void sherdi_peers_device_close(peers_device *device);
/** Blocks until no rank touches another one's memory any more. After a failure, or before the end. */
void sherdi_peers_device_settle(const peers_device *device);

/** The first meeting of a call, after which the lane comes behind what every rank had queued before it. */
sherd_status sherdi_peers_device_begin(peers_device *device, const peers_note *note);
/** Its last one, after which the lane comes behind what every rank does in it. */
sherd_status sherdi_peers_device_end(peers_device *device);
/** Room for portion_bytes of a rank's slice, where its memory is out of the reach of this device's kernels; else
 *  NULL. */
unsigned char *sherdi_peers_device_scratch(const peers_device *device, int index);

#endif
