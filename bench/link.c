/* See link.h. */
#include "bench/link.h"

#include "base/clock.h"
#include "kernels/devices.h"

#include <string.h>

#define MEMORY_BYTES (BENCH_LINK_PORTIONS * BENCH_LINK_PORTION)

static sherd_status device_make(bench_link *link, unsigned char **out)
{
    void        *memory = NULL;
    sherd_status status = link->down->device->alloc(link->down, &link->mem, SHERDI_MEM_STAGING,
                                                    MEMORY_BYTES, &memory);

    *out = memory;
    return status;
}

static sherd_status host_make(bench_link *link, unsigned char **out)
{
    void        *memory = NULL;
    sherd_status status = sherdi_pinned_alloc(link->host, link->down, &link->mem,
                                              SHERDI_MEM_STAGING, MEMORY_BYTES, &memory);

    *out = memory;
    return status;
}

sherd_status bench_link_open(bench_link *link, int device)
{
    sherd_status status;

    memset(link, 0, sizeof(*link));
    sherdi_mem_init(&link->mem);
    status = sherdi_backend_cpu_create_with(
        &(sherdi_cpu_params){.threads = 1, .shares = 1, .rank = -1}, &link->mem, &link->host);
    if (status != SHERD_OK) {
        return status;
    }
    status = sherdi_backend_device_create("cuda", device, &link->mem, &link->down);
    if (status == SHERD_OK) {
        status = link->down->device->lane_create(link->down, "up", NULL, &link->up);
    }
    if (status == SHERD_OK) {
        status = device_make(link, &link->from);
    }
    if (status == SHERD_OK) {
        status = device_make(link, &link->to);
    }
    if (status == SHERD_OK) {
        status = host_make(link, &link->host_down);
    }
    return status == SHERD_OK ? host_make(link, &link->host_up) : status;
}

/* The copy that begins at byte `done`; none begins after the last byte. */
static void portion_copy(const sherdi_backend *lane, unsigned char *dst, const unsigned char *src,
                         uint64_t done, uint64_t bytes)
{
    size_t at  = (size_t)(done / BENCH_LINK_PORTION % BENCH_LINK_PORTIONS) * BENCH_LINK_PORTION;
    size_t len = bytes - done < BENCH_LINK_PORTION ? (size_t)(bytes - done) : BENCH_LINK_PORTION;

    if (done < bytes) {
        lane->kernels->copy(lane, dst + at, src + at, len);
    }
}

sherd_status bench_link_run(const bench_link *link, uint64_t down_bytes, uint64_t up_bytes,
                            double *seconds_out)
{
    int64_t      start_ns = sherdi_now_ns();
    uint64_t     most     = down_bytes > up_bytes ? down_bytes : up_bytes;
    sherd_status status;

    for (uint64_t done = 0; done < most; done += BENCH_LINK_PORTION) {
        portion_copy(link->down, link->host_down, link->from, done, down_bytes);
        portion_copy(link->up, link->to, link->host_up, done, up_bytes);
    }
    status = sherdi_lane_wait(link->down);
    if (status == SHERD_OK) {
        status = sherdi_lane_wait(link->up);
    }
    *seconds_out = (double)(sherdi_now_ns() - start_ns) * 1e-9;
    return status;
}

void bench_link_close(bench_link *link)
{
    if (link->down != NULL) {
        link->down->device->free(link->down, link->from);
        link->down->device->free(link->down, link->to);
        sherdi_pinned_free(link->down, link->host_down);
        sherdi_pinned_free(link->down, link->host_up);
    }
    sherdi_backend_destroy(link->up);
    sherdi_backend_destroy(link->down);
    sherdi_backend_destroy(link->host);
}
