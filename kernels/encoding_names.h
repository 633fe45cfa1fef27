/* What the encodings of state are called, and how much each loses. */
#ifndef SHERDI_KERNELS_ENCODING_NAMES_H
#define SHERDI_KERNELS_ENCODING_NAMES_H

#include "kernels/encoding.h"

#include <string.h>

/** Returns the name in configurations and manifests: "fp32", "bf16", "bf16_beside" (BESIDE and
 *  BESIDE_PLANE) or "fp8" (FP8 and UFP8). */
static inline const char *sherdi_encoding_name(sherdi_encoding encoding)
{
    static const char *const NAMES[SHERDI_ENCODINGS] = {"fp32",        "bf16", "bf16_beside",
                                                        "bf16_beside", "fp8",  "fp8"};

    return NAMES[encoding];
}

/** Returns how much the encoding of this name loses: a rank for comparisons, 0 for nothing; -1:
 *  there is no such name. */
static inline int sherdi_encoding_loss(const char *name)
{
    static const char *const NAMES[]  = {"fp32", "bf16_beside", "bf16", "fp8"};
    static const int         LOSSES[] = {0, 0, 1, 2};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (strcmp(NAMES[i], name) == 0) {
            return LOSSES[i];
        }
    }
    return -1;
}

#endif
