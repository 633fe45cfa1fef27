/* What vector.h and the files of primitives before it share. */
#ifndef SHERDI_KERNELS_CPU_VECTOR_DEFS_H
#define SHERDI_KERNELS_CPU_VECTOR_DEFS_H

#include "base/checked.h"

#include <immintrin.h>

/* Primitives are inlined in unoptimised builds too: vectors stay in registers. */
#define INLINE static inline __attribute__((always_inline))

#define CACHE_LINE_BYTES 64

/* Streaming stores are done when later stores are seen. */
INLINE void stream_fence(void)
{
    _mm_sfence();
}

#endif
