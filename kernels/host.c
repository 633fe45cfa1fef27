/* Host memory for buffers: on huge pages, touched by all threads of a team. */
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

sherd_status sherdi_host_alloc(const sherdi_backend *host, sherdi_mem *mem,
                               sherdi_mem_purpose purpose, size_t len_bytes, void **out)
{
    void *block = sherdi_alloc_pages(mem, purpose, len_bytes);

    if (block == NULL || sherdi_host_touch(host, block, len_bytes) != SHERD_OK) {
        sherdi_free(block);
        return SHERD_E_NOMEM;
    }
    *out = block;
    return SHERD_OK;
}
