/* Parts of a state between how they are stored (kernels/encoding.h) and fp32: element by element for whoever has no
 * better, any chunk of any encoding. */
#ifndef SHERDI_KERNELS_CPU_ENCODED_H
#define SHERDI_KERNELS_CPU_ENCODED_H

#include "kernels/backend.h"

/* How what does not fit is rounded: to nearest, or at random by the seed of the step and the part. */
typedef struct sherdi_rounding {
    int           is_random;
    sherdi_random random;
    uint64_t      first_index; /* global, of the first element */
} sherdi_rounding;

/** Elements [first, first + count) of a block's part as fp32. `takes`: its reader will write it again, so a master that is
 *  BESIDE leaves the signs of the other part clear. */
void sherdi_part_decode(float *out, const sherdi_encoded *part, size_t first, size_t count,
                        int takes);
/** ... and back; after the part whose signs are its ties. */
void sherdi_part_encode(const sherdi_encoded *part, size_t first, size_t count, const float *x,
                        const sherdi_rounding *how);

#endif
