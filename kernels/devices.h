/* What a kind of device gives to devices.c. */
#ifndef SHERDI_KERNELS_DEVICES_H
#define SHERDI_KERNELS_DEVICES_H

#include "kernels/backend.h"

typedef struct sherdi_device_kind {
    const char *name;
    /* Required. Devices of this process; 0 with a sentence in `why` (which may be NULL). Never fails. */
    int (*count)(char *why, size_t why_bytes);
    /* Required. The first lane of device `index`, which is there. */
    sherd_status (*create)(int index, sherdi_mem *mem, sherdi_backend **out);
    /* Required. */
    void (*describe)(int index, char *text, size_t text_bytes);
    /* Required. Equal for one device, under whatever number a process of this host sees it. */
    uint64_t (*identity)(int index);
} sherdi_device_kind;

extern const sherdi_device_kind sherdi_device_kind_cuda; /* cuda/device.cu, or cuda_none.c */

#endif
