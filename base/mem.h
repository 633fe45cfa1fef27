/* Counted memory. Every allocation of the library names its purpose and is made
 * from an account; the engine's account is what tests hold against the plan, and
 * it must read zero at the end. Buffers that a world or a backend allocates are
 * entered in the account by hand (sherdi_mem_note). */
#ifndef SHERDI_BASE_MEM_H
#define SHERDI_BASE_MEM_H

#include "base/status.h"

#ifndef __cplusplus
#include <stdatomic.h>
#endif

typedef enum sherdi_mem_purpose {
    SHERDI_MEM_CONTROL = 0, /* handles, tables, names */
    SHERDI_MEM_PARAMS,
    SHERDI_MEM_GRADS,
    SHERDI_MEM_STATE,
    SHERDI_MEM_GATHER,
    SHERDI_MEM_TRANSIENT,
    SHERDI_MEM_STAGING,
    SHERDI_MEM_HOST_PARAMS, /* of offload: in host memory, which on the CPU is the same memory */
    SHERDI_MEM_HOST_GRADS,
    SHERDI_MEM_HOST_STATE,
    SHERDI_MEM_HOST_STAGING,
    SHERDI_MEM_TRANSPORT, /* a world's own segments and bounce buffers */
    SHERDI_MEM_PURPOSES,
} sherdi_mem_purpose;

#ifdef __cplusplus /* .cu files pass accounts on and look into none */
typedef struct sherdi_mem sherdi_mem;
#else
typedef struct sherdi_mem {
    atomic_size_t held_bytes[SHERDI_MEM_PURPOSES];
    atomic_size_t peak_bytes[SHERDI_MEM_PURPOSES];
    atomic_size_t allocations; /* since the account was made */
} sherdi_mem;
#endif

void        sherdi_mem_init(sherdi_mem *mem);
const char *sherdi_mem_purpose_name(sherdi_mem_purpose purpose);
size_t      sherdi_mem_held(const sherdi_mem *mem, sherdi_mem_purpose purpose);
size_t      sherdi_mem_held_all(const sherdi_mem *mem);

/** Zeroed memory at a multiple of SHERD_ALIGN_BYTES when len_bytes is at least that,
 *  of 64 otherwise. NULL with last error set when there is none, or by fault
 *  injection (sherdi_mem_fail_nth). len_bytes 0 gives a valid pointer. */
void *sherdi_alloc(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes);
/** For arrays: count * elem_bytes, checked. */
void *sherdi_alloc_array(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t count,
                         size_t elem_bytes);
/** Grows an array to at least `needed` elements, doubling; old contents kept, the rest zero. */
sherd_status sherdi_grow(sherdi_mem *mem, sherdi_mem_purpose purpose, void **array,
                         size_t *capacity, size_t needed, size_t elem_bytes);
char        *sherdi_strdup(sherdi_mem *mem, const char *text);
/** Accepts NULL. The account and purpose are those of the allocation. */
void sherdi_free(void *memory);

/** Enters (positive) or leaves (negative) bytes that somebody else allocates. */
void sherdi_mem_note(sherdi_mem *mem, sherdi_mem_purpose purpose, int64_t bytes);

/** While the depth of this thread is above 0, a debug build aborts on allocation. */
void sherdi_mem_forbid_begin(void);
void sherdi_mem_forbid_end(void);

/** Test hook: on this thread the n-th allocation from now (1: the next) fails once;
 *  0: none. Returns how many allocations this thread made since the last call. */
size_t sherdi_mem_fail_nth(size_t n);

#endif
