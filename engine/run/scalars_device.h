/* Scalars of a device whose memory is not the host's. */
#ifndef SHERDI_ENGINE_RUN_SCALARS_DEVICE_H
#define SHERDI_ENGINE_RUN_SCALARS_DEVICE_H

#include "engine/plan/plan.h"

/* All results are sums of integers, so those of both sides are added. */
typedef struct sherdi_scalars_ops {
    /* Makes kernel_data.on_host, and gives the device its spans. Blocks. E_DEVICE. */
    sherd_status (*open)(sherd_engine *engine);
    /* Adds the device's results, which have come down, to `out` and to the host's norms. */
    void (*add)(sherd_engine *engine, sherdi_scalars_head *out);
    uint64_t (*fingerprint)(const sherd_engine *engine);
} sherdi_scalars_ops;

#endif
