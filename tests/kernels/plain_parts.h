/* Parts of a state in every encoding, by plain loops over encoding.h: what the kernels are held
 * against. */
#ifndef TESTS_KERNELS_PLAIN_PARTS_H
#define TESTS_KERNELS_PLAIN_PARTS_H

#include "kernels/codecs.h"
#include "tests/kernels/bits.h"

/* An encoded part of a block with guards; of a split master, its parameter and ties are others. */
typedef struct part_array {
    guarded        bytes; /* as words of 16 bits */
    sherdi_encoded part;
} part_array;

/** Zeros. */
part_array part_make(sherdi_encoding encoding, size_t block_elems);
float      plain_get(const sherdi_encoded *part, size_t i);
/** `index` of the first element, `random` of the step and part; NULL: to nearest. */
void plain_encode(const sherdi_encoded *part, size_t first, const float *x, size_t count,
                  const sherdi_random *random, uint64_t index);

/** Runs body on every instruction set of the machine, with 1 and 3 threads. */
void every_backend(void (*body)(const sherdi_backend *tested));

#endif
