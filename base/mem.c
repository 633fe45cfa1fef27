/* Counted memory. A small header before each block holds account, purpose and size, so that free needs nothing else. The
 * header lies in the gap that alignment leaves. */
#include "base/mem.h"

#include "base/checked.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct block_header {
    sherdi_mem        *mem;
    void              *start; /* what aligned_alloc returned */
    size_t             len_bytes;
    sherdi_mem_purpose purpose;
} block_header;

/* Small blocks have the header in a cache line before them, large blocks in a page. */
#define SMALL_ALIGN_BYTES 64
/* Blocks from this size on ask the kernel for huge pages. */
#define HUGE_BYTES ((size_t)8 << 20)

static _Thread_local int    forbid_depth;
static _Thread_local size_t fail_countdown;
static _Thread_local size_t allocations_here;

static const char *const PURPOSE_NAMES[SHERDI_MEM_PURPOSES] = {
    "control", "params",      "grads",      "state",      "gather",       "transient",
    "staging", "host params", "host grads", "host state", "host staging", "transport",
};

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

void *sherdi_alloc(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes)
{
    size_t         align = len_bytes >= SHERD_ALIGN_BYTES ? SHERD_ALIGN_BYTES : SMALL_ALIGN_BYTES;
    size_t         total;
    unsigned char *start;
    block_header  *header;

    assert(forbid_depth == 0 && "allocation inside acquire, release or step");
    if (fault_is_due() || !sherdi_add_fits(len_bytes, 2 * align, &total)) {
        start = NULL;
    } else {
        start = aligned_alloc(align, sherdi_round_up(total - align, align));
    }
    if (start == NULL) {
        (void)sherdi_fail(SHERD_E_NOMEM, "no memory for %zu bytes of %s", len_bytes,
                          PURPOSE_NAMES[purpose]);
        return NULL;
    }
    if (len_bytes >= HUGE_BYTES) {
        (void)madvise(start, len_bytes, MADV_HUGEPAGE); /* a hint; bench adam shows its effect */
    }
    memset(start + align, 0, len_bytes);
    header            = (block_header *)(void *)(start + align) - 1;
    header->mem       = mem;
    header->start     = start;
    header->len_bytes = len_bytes;
    header->purpose   = purpose;
    sherdi_mem_note(mem, purpose, (int64_t)len_bytes);
    (void)atomic_fetch_add(&mem->allocations, 1);
    return start + align;
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
    free(header->start);
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
