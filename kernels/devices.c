/* The kinds of devices other than the CPU, by name. A new kind takes a folder of its own and a line
 * in KINDS. */
#include "kernels/devices.h"

#include "base/api.h"
#include "kernels/lanes.h"

#include <stdio.h>
#include <string.h>

static const sherdi_device_kind *const KINDS[] = {&sherdi_device_kind_cuda};

static const sherdi_device_kind *kind_find(const char *name)
{
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        if (strcmp(KINDS[i]->name, name) == 0) {
            return KINDS[i];
        }
    }
    return NULL;
}

int sherdi_backend_device_count(const char *kind, char *why, size_t why_bytes)
{
    const sherdi_device_kind *found = kind_find(kind);

    if (why_bytes > 0) {
        why[0] = '\0';
    }
    if (found == NULL) {
        (void)snprintf(why, why_bytes, "there is no kind of device called \"%s\"", kind);
        return 0;
    }
    return found->count(why, why_bytes);
}

sherd_status sherdi_backend_device_create(const char *kind, int index, sherdi_mem *mem,
                                          sherdi_backend **out)
{
    const sherdi_device_kind *found = kind_find(kind);
    char                      why[256];
    int                       count;

    if (found == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "there is no backend \"%s\"; there are cpu and cuda",
                           kind);
    }
    count = found->count(why, sizeof(why));
    if (count == 0) {
        return sherdi_fail(SHERD_E_NOTSUP, "backend %s: %s", kind, why);
    }
    if (index < 0 || index >= count) {
        return sherdi_fail(SHERD_E_INVAL, "backend %s: there is no device %d; there are 0 to %d",
                           kind, index, count - 1);
    }
    return found->create(index, mem, out);
}

void sherdi_backend_device_describe(const char *kind, int index, char *text, size_t text_bytes)
{
    const sherdi_device_kind *found = kind_find(kind);

    if (text_bytes > 0) {
        text[0] = '\0';
    }
    if (found != NULL && index >= 0 && index < found->count(NULL, 0)) {
        found->describe(index, text, text_bytes);
    }
}

uint64_t sherdi_backend_device_identity(const char *kind, int index)
{
    const sherdi_device_kind *found = kind_find(kind);

    return found != NULL && index >= 0 && index < found->count(NULL, 0) ? found->identity(index)
                                                                        : 0;
}

int sherd_device_count(const char *backend)
{
    char why[256];
    int  count;

    if (backend == NULL) {
        (void)sherdi_api_need(0, "sherd_device_count", "backend");
        return 0;
    }
    count = sherdi_backend_device_count(backend, why, sizeof(why));
    if (count == 0) {
        (void)sherdi_fail(SHERD_E_NOTSUP, "backend %s: %s", backend, why);
    }
    return count;
}

static int is_pinned(const sherdi_backend *lane)
{
    return lane != NULL && sherdi_lanes_of(lane)->pin != NULL;
}

sherd_status sherdi_pin(sherdi_backend *lane, void *memory, size_t len_bytes)
{
    return is_pinned(lane) ? sherdi_lanes_of(lane)->pin(lane, memory, len_bytes) : SHERD_OK;
}

void sherdi_unpin(sherdi_backend *lane, void *memory)
{
    if (memory != NULL && is_pinned(lane)) {
        sherdi_lanes_of(lane)->unpin(lane, memory);
    }
}

sherd_status sherdi_pinned_alloc(const sherdi_backend *host, sherdi_backend *lane, sherdi_mem *mem,
                                 sherdi_mem_purpose purpose, size_t len_bytes, void **out)
{
    void        *block = NULL;
    sherd_status status;

    SHERDI_TRY(sherdi_host_alloc(host, mem, purpose, len_bytes, &block));
    status = sherdi_pin(lane, block, len_bytes);
    if (status != SHERD_OK) {
        sherdi_free(block);
        return status;
    }
    *out = block;
    return SHERD_OK;
}

void sherdi_pinned_free(sherdi_backend *lane, void *memory)
{
    sherdi_unpin(lane, memory);
    sherdi_free(memory);
}
