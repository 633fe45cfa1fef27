/* Definitions that vector.inc.c shares with avx2.c and avx512.c, which include it; their tables. */
#ifndef SHERDI_KERNELS_CPU_VECTOR_DEFS_H
#define SHERDI_KERNELS_CPU_VECTOR_DEFS_H

#include "base/checked.h"
#include "kernels/backend.h"

#include <immintrin.h>

extern const sherdi_kernel_ops sherdi_kernels_avx2;
extern const sherdi_kernel_ops sherdi_kernels_avx512;

/* Primitives are inlined in unoptimised builds too, so that vectors stay in registers. */
#define INLINE static inline __attribute__((always_inline))

#define CACHE_LINE_BYTES 64

/* Orders streaming stores before all later stores. */
INLINE void stream_fence(void)
{
    _mm_sfence();
}

#endif
