/* The kernel tables of the CPU, one per instruction set; backend.c chooses one. */
#ifndef SHERDI_KERNELS_CPU_VARIANTS_H
#define SHERDI_KERNELS_CPU_VARIANTS_H

#include "kernels/backend.h"

extern const sherdi_kernel_ops sherdi_kernels_scalar;
#if defined(__x86_64__)
extern const sherdi_kernel_ops sherdi_kernels_avx2;   /* with FMA and F16C */
extern const sherdi_kernel_ops sherdi_kernels_avx512; /* F, BW, DQ, VL */
#endif

#endif
