/* The tables of the CPU, one per instruction set; backend.c chooses. */
#ifndef SHERDI_KERNELS_CPU_VARIANTS_H
#define SHERDI_KERNELS_CPU_VARIANTS_H

#include "kernels/backend.h"

extern const sherdi_kernel_ops sherdi_kernels_scalar;
#if defined(__x86_64__)
extern const sherdi_kernel_ops sherdi_kernels_avx2;   /* with FMA and F16C */
extern const sherdi_kernel_ops sherdi_kernels_avx512; /* F, BW, DQ, VL */

/** How far ahead of their loads loops that update in place, reductions and copies fill the
 *  caches. Intel's cores gain a tenth from 1 KiB; AMD's lose as much, and get 0: the line
 *  itself, which costs nothing. */
size_t sherdi_cpu_in_place_ahead_bytes(void);
#endif

#endif
