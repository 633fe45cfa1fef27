/* Blocks of a state in every mixture of encodings, with gradient and parameter, for tests of
 * updates: the master, m, v, and as many more parts as an update may have. */
#ifndef TESTS_KERNELS_ENCODED_BLOCKS_H
#define TESTS_KERNELS_ENCODED_BLOCKS_H

#include "tests/kernels/plain_parts.h"

typedef struct scheme {
    sherdi_encoding master, m, v;
    sherd_dtype     param_dtype;
    int             has_param;
} scheme;

#define NUM_SCHEMES 8
extern const scheme SCHEMES[NUM_SCHEMES];

/* Odd lengths with padding between, two groups, an index range over a multiple of 2^32, several
 * tiles. */
#define NUM_SPANS   5
#define BLOCK_ELEMS 9600
extern const sherdi_span SPANS[NUM_SPANS];

#define NUM_MORE (SHERDI_UPDATE_MOST_PARTS - 3)

typedef struct block {
    part_array master, m, v;
    part_array more[NUM_MORE]; /* stored as m is */
    guarded    grad, param;
} block;

/** Zeros. block_free. */
block block_make(const scheme *s);
void  block_free(block *b);
block block_clone(const scheme *s, const block *from);
/** Guards included. */
void block_check_equal(const block *want, const block *got);
/** Numbers that the encodings hold, with many ties among the masters; what is between spans stays
 *  zero. */
void block_fill(block *b, input_kind kind);
/** Without spans and coefficients. */
sherdi_update_args block_args(const scheme *s, block *b, uint64_t step, uint64_t *fingerprint);

#endif
