/* Counted memory. Every allocation of the library names its purpose and is made from an account.
 * The tests compare the engine's account with the plan, and at the end the account must read zero.
 * Buffers that a world or a backend allocates are entered in an account by sherdi_mem_note. */
#ifndef SHERDI_BASE_MEM_H
#define SHERDI_BASE_MEM_H

#include "base/status.h"

#ifndef __cplusplus
#include <stdatomic.h>
#endif

/* Purposes: SHERDI_MEM_..., and the name for people. */
#define SHERDI_MEM_LIST(X)                                                                         \
    X(CONTROL, "control") /* handles, tables, names */                                             \
    X(PARAMS, "params")                                                                            \
    X(GRADS, "grads")                                                                              \
    X(STATE, "state")                                                                              \
    X(GATHER, "gather")                                                                            \
    X(TRANSIENT, "transient")                                                                      \
    X(STAGING, "staging")                                                                          \
    X(HOST_PARAMS, "host params") /* offload; on the CPU this is the same memory */                \
    X(HOST_GRADS, "host grads")                                                                    \
    X(HOST_STATE, "host state")                                                                    \
    X(HOST_STAGING, "host staging")                                                                \
    X(ACTIVATIONS, "activations")                                                                  \
    X(HOST_ACTIVATIONS, "host activations")                                                        \
    X(TRANSPORT, "transport") /* a world's own segments and bounce buffers */

#define SHERDI_MEM_ID(id, name) SHERDI_MEM_##id,
typedef enum sherdi_mem_purpose {
    SHERDI_MEM_LIST(SHERDI_MEM_ID) SHERDI_MEM_PURPOSES
} sherdi_mem_purpose;
#undef SHERDI_MEM_ID

/* Bytes of a huge page. */
#define SHERDI_HUGE_BYTES ((size_t)2 << 20)

#ifdef __cplusplus /* .cu files pass accounts on, and do not look into them */
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

/** Allocates zeroed memory, at a multiple of SHERD_ALIGN_BYTES when len_bytes is at least that,
 *  else of 64. Returns NULL with the last error set when there is no memory, or by fault injection
 *  (sherdi_mem_fail_nth). len_bytes 0 gives a valid pointer. */
void *sherdi_alloc(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes);
/** The same for an array: count * elem_bytes, checked for overflow. */
void *sherdi_alloc_array(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t count,
                         size_t elem_bytes);
/** Maps zeroed memory of whole pages for a buffer that is large or gets locked, at a multiple of
 *  SHERDI_HUGE_BYTES and, where the kernel has them, on huge pages. A byte after its last page
 *  faults. Nothing is touched yet: see sherdi_host_alloc. The rest is as in sherdi_alloc, which is
 *  what a build without the module pages does. */
void *sherdi_alloc_pages(sherdi_mem *mem, sherdi_mem_purpose purpose, size_t len_bytes);
/** Takes the pages of fresh memory, which begins at a page, from the system. Returns 0, or an
 *  errno. Without the module pages, the first access takes them. */
int sherdi_pages_take(void *memory, size_t len_bytes);

/* The module pages. */
typedef struct sherdi_pages_ops {
    /* Maps a block, with a page before it for the header; NULL: there is no room. */
    unsigned char *(*map)(size_t len_bytes, size_t *map_bytes_out);
    void (*unmap)(unsigned char *block, size_t map_bytes);
    int (*take)(void *memory, size_t len_bytes);
} sherdi_pages_ops;

/** Grows an array to at least `needed` elements, at least doubling it. Keeps the contents; the rest
 *  is zero. */
sherd_status sherdi_grow(sherdi_mem *mem, sherdi_mem_purpose purpose, void **array,
                         size_t *capacity, size_t needed, size_t elem_bytes);
/* The same for `array` of the owner's control data: room for one more element after `count`. */
#define SHERDI_GROW(mem, array, count, capacity)                                                   \
    sherdi_grow(mem, SHERDI_MEM_CONTROL, (void **)&(array), &(capacity), (count) + 1,              \
                sizeof(*(array)))
char *sherdi_strdup(sherdi_mem *mem, const char *text);
/** Frees memory and takes it out of the account from which it was allocated. Accepts NULL. */
void sherdi_free(void *memory);

/** Adds bytes that somebody else allocates to an account; negative: takes them out. */
void sherdi_mem_note(sherdi_mem *mem, sherdi_mem_purpose purpose, int64_t bytes);

/** Between begin and end (they nest) a debug build aborts if this thread allocates. */
void sherdi_mem_forbid_begin(void);
void sherdi_mem_forbid_end(void);
/** Sets how deep begin and end are nested, and returns how deep they were: 0 allows allocations,
 *  where a function of others is called. */
int sherdi_mem_forbid_set(int depth);

/** Test hook: the n-th allocation of this thread from now on (1: the next) fails once; 0: none
 *  does. Returns how many allocations this thread has made since the last call. */
size_t sherdi_mem_fail_nth(size_t n);

#endif
