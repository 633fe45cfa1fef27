/* Inputs and buffers of the bit-equality tests. */
#ifndef TESTS_KERNELS_BITS_H
#define TESTS_KERNELS_BITS_H

#include "kernels/backend.h"
#include "tests/lib/check.h"

/* Guard bytes on both sides of every array. */
#define GUARD_BYTES 256
#define GUARD_BYTE  0xa5

/* What the numbers of an input are like. */
typedef enum input_kind {
    INPUT_TAME, /* in (-1, 1) */
    INPUT_WILD, /* any bits: NaN, Inf, denormal, huge, zeros of both signs, ties */
    INPUT_KINDS,
} input_kind;

/* An array with guards; `first` points at element 0, which stands `shift` elements after a
 * page's start. */
typedef struct guarded {
    unsigned char *start;
    size_t         total_bytes;
    unsigned char *first;
    sherd_dtype    dtype;
    size_t         count_elems;
} guarded;

guarded guarded_make(sherd_dtype dtype, size_t count_elems, size_t shift);
void    guarded_fill(guarded *array, input_kind kind, uint64_t *seed);
/* Chunks of magnitudes that change now and then, over the whole range of fp32; among them zeros,
 * single denormals, the largest there are, and an Inf. */
void  guarded_fill_scaled(guarded *array, uint64_t *seed);
void  guarded_copy(guarded *to, const guarded *from); /* guards too; same shape */
void  guarded_free(guarded *array);
float guarded_get(const guarded *array, size_t i);

/** A backend of `threads` threads that runs the kernels of `isa`; its kernels are NULL where the
 *  machine lacks those. To be ended with backend_destroy. */
sherdi_backend backend_make(const char *isa, int threads);
void           backend_destroy(sherdi_backend *backend);

/* All bytes, guards included. */
#define CHECK_GUARDED(want, got)                                                                   \
    test_check_bytes(__FILE__, __LINE__, #got, (want)->start, (got)->start, (want)->total_bytes)

#endif
