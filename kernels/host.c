/* Host memory for buffers: on huge pages, touched by all threads of a team, and locked if a device
 * copies from and to it. */
#include "kernels/backend.h"
#include "kernels/cpu/team.h"

#include <string.h>

sherd_status sherdi_host_touch(const sherdi_backend *host, void *memory, size_t len_bytes)
{
    int  error = host->team != NULL ? host->team->ops->touch(host, memory, len_bytes)
                                    : sherdi_pages_take(memory, len_bytes);
    char buffer[128];

    return error == 0 ? SHERD_OK
                      : sherdi_fail(SHERD_E_NOMEM, "no memory for %zu bytes: %s", len_bytes,
                                    strerror_r(error, buffer, sizeof(buffer)));
}

static int is_pinned(const sherdi_backend *pinned_for)
{
    return pinned_for != NULL && pinned_for->device->pin != NULL;
}

sherd_status sherdi_host_alloc(const sherdi_backend *host, sherdi_backend *pinned_for,
                               sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes,
                               void **out)
{
    void        *block = sherdi_alloc_pages(mem, purpose, len_bytes);
    sherd_status status;

    if (block == NULL) {
        return SHERD_E_NOMEM;
    }
    status = sherdi_host_touch(host, block, len_bytes);
    if (status == SHERD_OK && is_pinned(pinned_for)) {
        status = pinned_for->device->pin(pinned_for, block, len_bytes);
    }
    if (status != SHERD_OK) {
        sherdi_free(block);
        return status;
    }
    *out = block;
    return SHERD_OK;
}

void sherdi_host_free(sherdi_backend *pinned_for, void *memory)
{
    if (memory != NULL && is_pinned(pinned_for)) {
        pinned_for->device->unpin(pinned_for, memory);
    }
    sherdi_free(memory);
}
