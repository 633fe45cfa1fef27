/* Decodes and encodes parts of a state (kernels/encoding.h), element by element: any chunk of any
 * encoding. The scalar kernels use this, and the vector files where they have nothing faster. */
#ifndef SHERDI_KERNELS_CPU_ENCODED_H
#define SHERDI_KERNELS_CPU_ENCODED_H

#include "kernels/codecs.h"

/* How values are rounded: to nearest, or at random, by the seed of the step and the part. */
typedef struct sherdi_rounding {
    int           is_random;
    sherdi_random random;
    uint64_t      first_index; /* global index of the first element */
} sherdi_rounding;

/** Decodes elements [first, first + count) of a block's part to fp32. `takes`: the caller will
 *  write them again. Where the part is a BESIDE master, this clears its ties in the signs of the
 *  other part. */
void sherdi_part_decode(float *out, const sherdi_encoded *part, size_t first, size_t count,
                        int takes);
/** Encodes the same elements. A master comes after the part whose signs are its ties. */
void sherdi_part_encode(const sherdi_encoded *part, size_t first, size_t count, const float *x,
                        const sherdi_rounding *how);

#endif
