/* The CPU as a device: its memory is the host's, and its one lane is the calling thread. Every call of the CPU has ended when it returns, so following and waiting do
 * nothing, and all lanes are the same handle, which counts them. */
#include "kernels/cpu/team.h"

#include <string.h>

/* Its address stands for every event: all are done. */
static char always_done;

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

static void cpu_lane_follow(const sherdi_backend *lane, const sherdi_backend *other)
{
    (void)lane;
    (void)other;
}

static sherd_status cpu_lane_wait(const sherdi_backend *lane)
{
    (void)lane;
    return SHERD_OK;
}

static sherd_status cpu_event_create(sherdi_backend *lane, int is_timed, sherdi_event **out)
{
    (void)lane;
    (void)is_timed;
    *out = (sherdi_event *)&always_done;
    return SHERD_OK;
}

static void cpu_event_destroy(sherdi_event *event)
{
    (void)event;
}

static void cpu_event_record(sherdi_event *event, const sherdi_backend *lane)
{
    (void)event;
    (void)lane;
}

static void cpu_lane_follow_event(const sherdi_backend *lane, const sherdi_event *event)
{
    (void)lane;
    (void)event;
}

static int cpu_event_is_done(const sherdi_event *event)
{
    (void)event;
    return 1;
}

static sherd_status cpu_event_wait(const sherdi_event *event)
{
    (void)event;
    return SHERD_OK;
}

static int64_t cpu_event_ns(const sherdi_event *event)
{
    (void)event;
    return 0;
}

static void cpu_fill(const sherdi_backend *lane, void *dst, int byte, size_t len_bytes)
{
    (void)lane;
    memset(dst, byte, len_bytes);
}

static void *cpu_lane_stream(const sherdi_backend *lane)
{
    (void)lane;
    return NULL;
}

static size_t cpu_free_bytes(const sherdi_backend *lane, size_t *total_out)
{
    (void)lane;
    if (total_out != NULL) {
        *total_out = 0;
    }
    return 0;
}

const sherdi_device_ops sherdi_device_cpu = {
    .struct_size       = sizeof(sherdi_device_ops),
    .name              = "cpu",
    .is_async          = 0,
    .alloc             = cpu_alloc,
    .free              = cpu_free,
    .lane_create       = cpu_lane_create,
    .lane_destroy      = cpu_lane_destroy,
    .lane_follow       = cpu_lane_follow,
    .lane_wait         = cpu_lane_wait,
    .event_create      = cpu_event_create,
    .event_destroy     = cpu_event_destroy,
    .event_record      = cpu_event_record,
    .lane_follow_event = cpu_lane_follow_event,
    .event_is_done     = cpu_event_is_done,
    .event_wait        = cpu_event_wait,
    .event_ns          = cpu_event_ns,
    .fill              = cpu_fill,
    .lane_stream       = cpu_lane_stream,
    .free_bytes        = cpu_free_bytes,
};
