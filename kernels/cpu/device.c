/* The CPU as a device: its memory is the host's, and its one lane is the calling thread. Every call
 * has ended when it returns, so waiting does nothing, and all lanes are the same handle, which
 * counts them. */
#include "kernels/cpu/team.h"

#include <string.h>

static sherd_status cpu_alloc(sherdi_backend *lane, sherdi_mem *mem, sherdi_mem_purpose purpose,
                              size_t len_bytes, void **out)
{
    void *memory = sherdi_alloc(mem, purpose, len_bytes);

    (void)lane;
    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    *out = memory;
    return SHERD_OK;
}

static void cpu_free(sherdi_backend *lane, void *memory)
{
    (void)lane;
    sherdi_free(memory);
}

static sherd_status cpu_lane_create(sherdi_backend *lane, const char *name, void *stream,
                                    sherdi_backend **out)
{
    (void)name;
    if (stream != NULL) {
        return sherdi_fail(SHERD_E_NOTSUP, "the CPU has no streams; the stream must be NULL");
    }
    lane->lanes++;
    *out = lane;
    return SHERD_OK;
}

static void cpu_lane_destroy(sherdi_backend *lane)
{
    if (lane != NULL && lane->lanes-- == 0) {
        if (lane->team != NULL) {
            lane->team->ops->destroy(lane->team);
        }
        sherdi_free(lane);
    }
}

static sherd_status cpu_lane_wait(const sherdi_backend *lane)
{
    (void)lane;
    return SHERD_OK;
}

static void cpu_fill(const sherdi_backend *lane, void *dst, int byte, size_t len_bytes)
{
    (void)lane;
    memset(dst, byte, len_bytes);
}

const sherdi_device_ops sherdi_device_cpu = {
    .struct_size  = sizeof(sherdi_device_ops),
    .name         = "cpu",
    .is_async     = 0,
    .alloc        = cpu_alloc,
    .free         = cpu_free,
    .lane_create  = cpu_lane_create,
    .lane_destroy = cpu_lane_destroy,
    .lane_wait    = cpu_lane_wait,
    .fill         = cpu_fill,
};
