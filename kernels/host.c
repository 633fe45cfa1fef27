/* Host memory for buffers: on huge pages, touched by all threads of a team, and locked if a device
 * copies from and to it. */
#include "kernels/backend.h"
#include "kernels/cpu/parallel.h"

#include "base/checked.h"

#include <string.h>
#include <sys/mman.h>

typedef struct host_touch {
    unsigned char *memory;
    size_t         len_bytes;
    atomic_int     error;
} host_touch;

static void part_touch(void *ctx, int task, int tasks)
{
    host_touch *t     = ctx;
    size_t      units = sherdi_div_up(t->len_bytes, SHERDI_HUGE_BYTES);
    size_t      first = units * (size_t)task / (size_t)tasks * SHERDI_HUGE_BYTES;
    size_t      end   = units * ((size_t)task + 1) / (size_t)tasks * SHERDI_HUGE_BYTES;
    int error = sherdi_pages_take(t->memory + first, sherdi_min_size(end, t->len_bytes) - first);

    if (error != 0) {
        atomic_store(&t->error, error);
    }
}

/* Fresh memory costs the kernel's clearing of its pages, which runs on the thread that touches them
 * first. */
sherd_status sherdi_host_touch(const sherdi_backend *host, void *memory, size_t len_bytes)
{
    host_touch t = {.memory = memory, .len_bytes = len_bytes};
    char       buffer[128];
    int        error;

    atomic_init(&t.error, 0);
    sherdi_parallel_run(
        host, sherdi_split_of(host, sherdi_div_up(len_bytes, SHERDI_HUGE_BYTES), SHERDI_HUGE_BYTES),
        part_touch, &t);
    error = atomic_load(&t.error);
    return error == 0 ? SHERD_OK
                      : sherdi_fail(SHERD_E_NOMEM, "no memory for %zu bytes: %s", len_bytes,
                                    strerror_r(error, buffer, sizeof(buffer)));
}

static int is_pinned(const sherdi_backend *pinned_for)
{
    return pinned_for != NULL && pinned_for->device->pin != NULL;
}

/* A child of fork would get a copy of every locked page at once; it has no use for them. */
static sherd_status block_pin(sherdi_backend *lane, void *block, size_t len_bytes)
{
    (void)madvise(block, sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES), MADV_DONTFORK);
    return lane->device->pin(lane, block, len_bytes);
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
        status = block_pin(pinned_for, block, len_bytes);
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
