/* The table of a kind of device other than the CPU. devices.c finds it by name and carries out the
 * sherdi_backend_device_ calls of backend.h with it. */
#ifndef SHERDI_KERNELS_DEVICES_H
#define SHERDI_KERNELS_DEVICES_H

#include "kernels/backend.h"

typedef struct sherdi_device_kind {
    const char *name;
    /* Required. Returns the number of devices that this process has; 0: `why` (may be NULL)
     * receives one sentence. */
    int (*count)(char *why, size_t why_bytes);
    /* Required. Creates the first lane of device `index`, which exists. */
    sherd_status (*create)(int index, sherdi_mem *mem, sherdi_backend **out);
    /* Required. Writes sherdi_backend_device_describe's text of device `index`, which exists. */
    void (*describe)(int index, char *text, size_t text_bytes);
    /* Required. Returns the same number for a device in every process of this host, whatever index
     * the process sees it under. */
    uint64_t (*identity)(int index);
} sherdi_device_kind;

extern const sherdi_device_kind sherdi_device_kind_cuda; /* cuda/device.c, or cuda_none.c */

#endif
