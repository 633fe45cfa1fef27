/* The table of a kind of device other than the CPU. devices.c finds it by name. */
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

/** Returns how many devices of a kind ("cuda") the process has: 0 without a driver, or in a build
 *  without it; `why` (may be NULL) then receives one sentence. */
int sherdi_backend_device_count(const char *kind, char *why, size_t why_bytes);
/** Creates the first lane of a device. Call sherdi_backend_destroy when no other lane is left.
 *  Errors: E_INVAL (no such kind or number), E_NOTSUP (not in this build, no driver, a device older
 *  than the kernels), E_NOMEM. */
sherd_status sherdi_backend_device_create(const char *kind, int index, sherdi_mem *mem,
                                          sherdi_backend **out);
/** Returns a number that tells a device of this host from the others, whatever number a process
 *  sees it under; 0: there is no such device. */
uint64_t sherdi_backend_device_identity(const char *kind, int index);
/** Locks host memory of the caller's for copies of the lane's device; and ends that, before it is
 *  freed. Nothing where the lane is NULL or the CPU's. E_NOMEM, E_DEVICE. */
sherd_status sherdi_pin(sherdi_backend *lane, void *memory, size_t len_bytes);
void         sherdi_unpin(sherdi_backend *lane, void *memory);
/** Does what sherdi_host_alloc does, and locks the memory for copies of the lane's device, if the
 *  lane is not NULL or the CPU's. E_NOMEM, E_DEVICE. */
sherd_status sherdi_pinned_alloc(const sherdi_backend *host, sherdi_backend *lane, sherdi_mem *mem,
                                 sherdi_mem_purpose purpose, size_t len_bytes, void **out);
/** Frees it, with the same lane, when no lane uses it any more. Accepts NULL. */
void sherdi_pinned_free(sherdi_backend *lane, void *memory);
/** Writes a description such as "NVIDIA H200, 143771 MiB, compute capability 9.0"; "" where there
 *  is no such device. */
void sherdi_backend_device_describe(const char *kind, int index, char *text, size_t text_bytes);

#endif
