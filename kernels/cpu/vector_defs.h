/* Definitions that vector.inc.c shares with avx2.c and avx512.c, which include it. */
#ifndef SHERDI_KERNELS_CPU_VECTOR_DEFS_H
#define SHERDI_KERNELS_CPU_VECTOR_DEFS_H

#include "base/checked.h"

#include <immintrin.h>

/* Primitives are inlined in unoptimised builds too, so that vectors stay in registers. */
#define INLINE static inline __attribute__((always_inline))

#define CACHE_LINE_BYTES 64

/* Orders streaming stores before all later stores. */
INLINE void stream_fence(void)
{
    _mm_sfence();
}

#endif
