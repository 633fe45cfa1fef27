/* Counted memory. A small header before each block holds account, purpose and size, so that free
 * needs nothing else. The header lies in the gap that alignment leaves. Large blocks are mapped,
 * each by itself: a huge page then holds no bytes of another block, and locking a block locks only
 * this block. */
#include "base/mem.h"

#include "base/checked.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct block_header {
    sherdi_mem        *mem;
    void              *start; /* of what aligned_alloc or mmap returned */
    size_t             len_bytes;
    size_t             map_bytes; /* 0: it is not mapped */
    sherdi_mem_purpose purpose;
} block_header;

/* Small blocks have the header in a cache line before them, large blocks in a page. */
#define SMALL_ALIGN_BYTES 64

static _Thread_local int    forbid_depth;
static _Thread_local size_t fail_countdown;
static _Thread_local size_t allocations_here;

#define PURPOSE_NAME(id, name) name,
static const char *const PURPOSE_NAMES[] = {SHERDI_MEM_LIST(PURPOSE_NAME)};
#undef PURPOSE_NAME

void sherdi_mem_init(sherdi_mem *mem)
{
    for (int i = 0; i < SHERDI_MEM_PURPOSES; i++) {
        atomic_init(&mem->held_bytes[i], 0);
        atomic_init(&mem->peak_bytes[i], 0);
    }
    atomic_init(&mem->allocations, 0);
}

const char *sherdi_mem_purpose_name(sherdi_mem_purpose purpose)
{
    return PURPOSE_NAMES[purpose];
}

size_t sherdi_mem_held(const sherdi_mem *mem, sherdi_mem_purpose purpose)
{
    return atomic_load(&mem->held_bytes[purpose]);
}

size_t sherdi_mem_held_all(const sherdi_mem *mem)
{
    size_t sum = 0;

    for (int i = 0; i < SHERDI_MEM_PURPOSES; i++) {
        sum += atomic_load(&mem->held_bytes[i]);
    }
    return sum;
}

void sherdi_mem_note(sherdi_mem *mem, sherdi_mem_purpose purpose, int64_t bytes)
{
    size_t held = atomic_fetch_add(&mem->held_bytes[purpose], (size_t)bytes) + (size_t)bytes;
    size_t peak = atomic_load(&mem->peak_bytes[purpose]);

    while (bytes > 0 && held > peak &&
           !atomic_compare_exchange_weak(&mem->peak_bytes[purpose], &peak, held)) {
    }
}

static int fault_is_due(void)
{
    allocations_here++;
    return fail_countdown > 0 && --fail_countdown == 0;
}

static void *none_left(sherdi_mem_purpose purpose, size_t len_bytes)
{
    (void)sherdi_fail(SHERD_E_NOMEM, "no memory for %zu bytes of %s", len_bytes,
                      PURPOSE_NAMES[purpose]);
    return NULL;
}

/* Writes the header before `block` and counts the block. */
static void *block_enter(sherdi_mem *mem, void *block, const block_header *header)
{
    *((block_header *)block - 1) = *header;
    sherdi_mem_note(mem, header->purpose, (int64_t)header->len_bytes);
    (void)atomic_fetch_add(&mem->allocations, 1);
    return block;
}

/* Maps a page for the header, the block, and a page that faults. The block lies at a multiple of
 * SHERDI_HUGE_BYTES; the excess mapping is unmapped. NULL: there is no room. */
static unsigned char *block_map(size_t room_bytes, size_t map_bytes)
{
    unsigned char *map =
        mmap(NULL, map_bytes + SHERDI_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *block;
    size_t         lead;

    if (map == MAP_FAILED) {
        return NULL;
    }
    lead = (SHERDI_HUGE_BYTES - ((uintptr_t)map + SHERD_ALIGN_BYTES) % SHERDI_HUGE_BYTES) %
           SHERDI_HUGE_BYTES;
    block = map + lead + SHERD_ALIGN_BYTES;
    if (lead > 0) {
        (void)munmap(map, lead);
    }
    (void)munmap(map + lead + map_bytes, SHERDI_HUGE_BYTES - lead);
    if (mprotect(block - SHERD_ALIGN_BYTES, SHERD_ALIGN_BYTES + room_bytes,
                 PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(map + lead, map_bytes);
        return NULL;
    }
    (void)madvise(block, room_bytes,
                  MADV_HUGEPAGE); /* a hint; bench memory --touch shows its effect */
    return block;
}

void *sherdi_alloc_pages(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes)
{
    const size_t   page_bytes = SHERD_ALIGN_BYTES;
    block_header   header     = {.mem = mem, .len_bytes = len_bytes, .purpose = purpose};
    unsigned char *block      = NULL;

    assert(forbid_depth == 0 && "allocation inside acquire, release or step");
    if (!fault_is_due() &&
        sherdi_add_fits(len_bytes, 4 * page_bytes + SHERDI_HUGE_BYTES, &header.map_bytes)) {
        header.map_bytes = sherdi_round_up(len_bytes, page_bytes) + 2 * page_bytes;
        block            = block_map(header.map_bytes - 2 * page_bytes, header.map_bytes);
    }
    if (block == NULL) {
        return none_left(purpose, len_bytes);
    }
    header.start = block - page_bytes;
    return block_enter(mem, block, &header);
}

int sherdi_pages_take(void *memory, size_t len_bytes)
{
    const size_t page_bytes = SHERD_ALIGN_BYTES;

    assert((uintptr_t)memory % page_bytes == 0);
    len_bytes = sherdi_round_up(len_bytes, page_bytes);
#if defined(MADV_POPULATE_WRITE)
    if (madvise(memory, len_bytes, MADV_POPULATE_WRITE) == 0) {
        return 0;
    }
    if (errno != EINVAL) {
        return errno;
    }
#endif
    for (size_t at = 0; at < len_bytes; at += page_bytes) { /* kernels before 5.14 */
        ((volatile unsigned char *)memory)[at] = 0;
    }
    return 0;
}

static void *pages_touched(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes)
{
    void *block = sherdi_alloc_pages(mem, purpose, len_bytes);

    if (block != NULL && sherdi_pages_take(block, len_bytes) != 0) {
        sherdi_free(block);
        return none_left(purpose, len_bytes);
    }
    return block;
}

/* Control data stay on the heap, where a sanitizer looks for pointers. */
void *sherdi_alloc(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes)
{
    size_t         align  = len_bytes >= SHERD_ALIGN_BYTES ? SHERD_ALIGN_BYTES : SMALL_ALIGN_BYTES;
    block_header   header = {.mem = mem, .len_bytes = len_bytes, .purpose = purpose};
    size_t         total;
    unsigned char *start = NULL;

    if (len_bytes >= SHERDI_HUGE_BYTES && purpose != SHERDI_MEM_CONTROL) {
        return pages_touched(mem, purpose, len_bytes);
    }
    assert(forbid_depth == 0 && "allocation inside acquire, release or step");
    if (!fault_is_due() && sherdi_add_fits(len_bytes, 2 * align, &total)) {
        start = aligned_alloc(align, sherdi_round_up(total - align, align));
    }
    if (start == NULL) {
        return none_left(purpose, len_bytes);
    }
    memset(start + align, 0, len_bytes);
    header.start = start;
    return block_enter(mem, start + align, &header);
}

void *sherdi_alloc_array(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t count,
                         size_t elem_bytes)
{
    size_t len_bytes;

    if (!sherdi_mul_fits(count, elem_bytes, &len_bytes)) {
        (void)sherdi_fail(SHERD_E_NOMEM, "%zu elements of %zu bytes are more than an address holds",
                          count, elem_bytes);
        return NULL;
    }
    return sherdi_alloc(mem, purpose, len_bytes);
}

sherd_status sherdi_grow(sherdi_mem *mem, sherdi_mem_purpose purpose, void **array,
                         size_t *capacity, size_t needed, size_t elem_bytes)
{
    size_t wanted;
    void  *grown;

    if (needed <= *capacity) {
        return SHERD_OK;
    }
    wanted = sherdi_max_size(needed, sherdi_max_size(8, *capacity * 2));
    grown  = sherdi_alloc_array(mem, purpose, wanted, elem_bytes);
    if (grown == NULL) {
        return SHERD_E_NOMEM;
    }
    if (*array != NULL) {
        memcpy(grown, *array, *capacity * elem_bytes);
        sherdi_free(*array);
    }
    *array    = grown;
    *capacity = wanted;
    return SHERD_OK;
}

char *sherdi_strdup(sherdi_mem *mem, const char *text)
{
    size_t len_bytes = strlen(text) + 1;
    char  *copy      = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes);

    if (copy != NULL) {
        memcpy(copy, text, len_bytes);
    }
    return copy;
}

void sherdi_free(void *memory)
{
    block_header *header;

    if (memory == NULL) {
        return;
    }
    header = (block_header *)memory - 1;
    assert(atomic_load(&header->mem->held_bytes[header->purpose]) >= header->len_bytes);
    sherdi_mem_note(header->mem, header->purpose, -(int64_t)header->len_bytes);
    if (header->map_bytes > 0) {
        (void)munmap(header->start, header->map_bytes);
    } else {
        free(header->start);
    }
}

void sherdi_mem_forbid_begin(void)
{
    forbid_depth++;
}

void sherdi_mem_forbid_end(void)
{
    forbid_depth--;
}

int sherdi_mem_forbid_set(int depth)
{
    int before = forbid_depth;

    forbid_depth = depth;
    return before;
}

size_t sherdi_mem_fail_nth(size_t n)
{
    size_t made = allocations_here;

    allocations_here = 0;
    fail_countdown   = n;
    return made;
}
