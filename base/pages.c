/* Large blocks are mapped, each by itself: a huge page then holds no bytes of another block, and
 * locking a block locks only this block. */
#include "base/pages.h"

#include "base/checked.h"
#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>

/* Maps a page for the header, the block, and a page that faults. The block lies at a multiple of
 * SHERDI_HUGE_BYTES; the excess mapping is unmapped. */
static unsigned char *pages_map(size_t len_bytes, size_t *map_bytes_out)
{
    size_t         room_bytes = SHERD_ALIGN_BYTES + sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES);
    size_t         map_bytes  = room_bytes + SHERD_ALIGN_BYTES;
    unsigned char *map =
        mmap(NULL, map_bytes + SHERDI_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t lead;

    if (map == MAP_FAILED) {
        return NULL;
    }
    lead = (SHERDI_HUGE_BYTES - ((uintptr_t)map + SHERD_ALIGN_BYTES) % SHERDI_HUGE_BYTES) %
           SHERDI_HUGE_BYTES;
    if (lead > 0) {
        (void)munmap(map, lead);
    }
    map += lead;
    (void)munmap(map + map_bytes, SHERDI_HUGE_BYTES - lead);
    if (mprotect(map, room_bytes, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(map, map_bytes);
        return NULL;
    }
    /* a hint; bench memory --touch shows its effect */
    (void)madvise(map + SHERD_ALIGN_BYTES, room_bytes - SHERD_ALIGN_BYTES, MADV_HUGEPAGE);
    *map_bytes_out = map_bytes;
    return map + SHERD_ALIGN_BYTES;
}

static void pages_unmap(unsigned char *block, size_t map_bytes)
{
    (void)munmap(block - SHERD_ALIGN_BYTES, map_bytes);
}

static _Thread_local int is_deferred;

int sherdi_pages_defer_set(int defers)
{
    int before = is_deferred;

    is_deferred = defers;
    return before;
}

int sherdi_pages_defers(void)
{
    return is_deferred;
}

static int pages_take(void *memory, size_t len_bytes)
{
    assert((uintptr_t)memory % SHERD_ALIGN_BYTES == 0);
    if (is_deferred) {
        return 0;
    }
    len_bytes = sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES);
#if defined(MADV_POPULATE_WRITE)
    if (madvise(memory, len_bytes, MADV_POPULATE_WRITE) == 0) {
        return 0;
    }
    if (errno != EINVAL) {
        return errno;
    }
#endif
    for (size_t at = 0; at < len_bytes; at += SHERD_ALIGN_BYTES) { /* kernels before 5.14 */
        ((volatile unsigned char *)memory)[at] = 0;
    }
    return 0;
}

void sherdi_pages_give_back(void *memory, size_t len_bytes)
{
    uintptr_t begin = sherdi_round_up((uintptr_t)memory, SHERD_ALIGN_BYTES);
    uintptr_t end   = ((uintptr_t)memory + len_bytes) / SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES;

    if (begin < end && madvise((void *)begin, end - begin, MADV_REMOVE) != 0) {
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* it is not shared */
    }
}

const sherdi_pages_ops sherdi_pages = {.map = pages_map, .unmap = pages_unmap, .take = pages_take};
