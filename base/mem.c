/* Counted memory. A small header before each block holds account, purpose and size, so that free
 * needs nothing else. The header lies in the gap that alignment leaves. The module pages maps large
 * blocks. */
#include "base/mem.h"

#include "base/checked.h"
#include "base/module_list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct block_header {
    sherdi_mem        *mem;
    void              *start; /* of what aligned_alloc returned */
    size_t             len_bytes;
    size_t             map_bytes; /* 0: it is not mapped */
    sherdi_mem_purpose purpose;
} block_header;

/* Small blocks have the header in a cache line before them, large blocks in a page. */
#define SMALL_ALIGN_BYTES 64

static const sherdi_pages_ops *const PAGES = SHERDI_PAGES;

static _Thread_local int    forbid_depth;
static _Thread_local size_t fail_countdown;
static _Thread_local size_t allocations_here;

#define PURPOSE_NAME(id, name) name,
static const char *const PURPOSE_NAMES[] = {SHERDI_MEM_LIST(PURPOSE_NAME)};
#undef PURPOSE_NAME

void sherdi_mem_init(sherdi_mem *mem)
{
    *mem = (sherdi_mem){0};
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

/* Takes a block with room for its header from the heap. */
static unsigned char *block_allocate(size_t len_bytes, void **start)
{
    size_t align = len_bytes >= SHERD_ALIGN_BYTES ? SHERD_ALIGN_BYTES : SMALL_ALIGN_BYTES;

    *start = aligned_alloc(align, sherdi_round_up(len_bytes + align, align));
    return *start == NULL ? NULL : memset((unsigned char *)*start + align, 0, len_bytes);
}

static void *block_make(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes,
                        int is_mapped)
{
    block_header   header = {.mem = mem, .len_bytes = len_bytes, .purpose = purpose};
    unsigned char *block  = NULL;
    size_t         most;

    assert(forbid_depth == 0 && "allocation inside acquire, release or step");
    if (!fault_is_due() &&
        sherdi_add_fits(len_bytes, 4 * SHERD_ALIGN_BYTES + SHERDI_HUGE_BYTES, &most)) {
        block = is_mapped ? PAGES->map(len_bytes, &header.map_bytes)
                          : block_allocate(len_bytes, &header.start);
    }
    if (block == NULL) {
        return none_left(purpose, len_bytes);
    }
    *((block_header *)(void *)block - 1) = header;
    sherdi_mem_note(mem, purpose, (int64_t)len_bytes);
    (void)atomic_fetch_add(&mem->allocations, 1);
    return block;
}

void *sherdi_alloc_pages(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes)
{
    return block_make(mem, purpose, len_bytes, PAGES != NULL);
}

int sherdi_pages_take(void *memory, size_t len_bytes)
{
    return PAGES == NULL ? 0 : PAGES->take(memory, len_bytes);
}

/* Control data stay on the heap, where a sanitizer looks for pointers. */
void *sherdi_alloc(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes)
{
    int is_mapped =
        PAGES != NULL && len_bytes >= SHERDI_HUGE_BYTES && purpose != SHERDI_MEM_CONTROL;
    void *block = block_make(mem, purpose, len_bytes, is_mapped);

    if (block != NULL && is_mapped && PAGES->take(block, len_bytes) != 0) {
        sherdi_free(block);
        return none_left(purpose, len_bytes);
    }
    return block;
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
        PAGES->unmap(memory, header->map_bytes);
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
