/* The memory of a device whose memory is not the host's: buffers, and scalars. */
#ifndef SHERDI_ENGINE_RUN_SCALARS_DEVICE_H
#define SHERDI_ENGINE_RUN_SCALARS_DEVICE_H

#include "engine/plan/plan.h"

/* Makes and frees a buffer that is not the world's; and scalars. All results are sums of integers, so those of both sides are added. */
typedef struct sherdi_scalars_ops {
    sherd_status (*buffer_open)(sherd_engine *engine, const sherdi_plan_buffer *buffer, void **out);
    void (*buffer_close)(sherd_engine *engine, const sherdi_plan_buffer *buffer, void *memory);
    /* Makes kernel_data.on_host, and gives the device its spans. Blocks. E_DEVICE. */
    sherd_status (*open)(sherd_engine *engine);
    /* Adds the device's results, which have come down, to `out` and to the host's norms. */
    void (*add)(sherd_engine *engine, sherdi_scalars_head *out);
    uint64_t (*fingerprint)(const sherd_engine *engine);
} sherdi_scalars_ops;

#endif
