/* Ranks of one process over device memory: peers_device.c, for threads.c. */
#ifndef SHERDI_COLLECTIVES_PEERS_DEVICE_H
#define SHERDI_COLLECTIVES_PEERS_DEVICE_H

#include "collectives/peers.h"

/* What a rank has; all zero where the world has no device. */
typedef struct peers_device {
    sherdi_peers        *peers;
    atomic_int          *readers; /* of the group: ranks inside a call, who touch others' memory */
    int                  is_spread;   /* the ranks are on several devices */
    size_t               piece_bytes; /* of one rank's slice, through scratch */
    unsigned char       *scratch;     /* [count * piece_bytes] on the device; NULL unless spread */
    sherdi_event        *ready;       /* others may touch the buffers of the call */
    sherdi_event        *done;        /* what this rank had to do with others' buffers is done */
    const void         **sends;       /* [count] by index: of the call that runs */
    void               **recvs;
    const sherdi_event **dones;
} peers_device;

/** After the world was equipped. `is_spread`: not all ranks have this rank's device. */
sherd_status sherdi_peers_device_open(peers_device *device, sherdi_peers *peers,
                                      atomic_int *readers, int is_spread);
/** Half-built too, after sherdi_peers_leave. */
void sherdi_peers_device_close(peers_device *device);
/** Blocks until no rank touches another one's memory any more. After a failure, or before the end. */
void sherdi_peers_device_settle(const peers_device *device);

/* The calls: queued on the world's lane when they return; each meets on the host. */

sherd_status sherdi_peers_device_all_gather(peers_device                 *device,
                                            const sherdi_all_gather_args *args);
sherd_status sherdi_peers_device_reduce_scatter(peers_device                *device,
                                                const sherdi_reduction_args *args);
sherd_status sherdi_peers_device_all_reduce(peers_device                *device,
                                            const sherdi_reduction_args *args);
sherd_status sherdi_peers_device_all_to_all(peers_device                 *device,
                                            const sherdi_all_to_all_args *args);

#endif
