/* The kernel tables of the CPU, one per instruction set, best first: the table, and the function
 * that says whether this machine can run it. variants.h declares them from this list, and backend.c
 * chooses one. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_AVX
SHERDI_CPU_VARIANT(sherdi_kernels_avx512, sherdi_machine_has_avx512) /* F, BW, DQ, VL */
SHERDI_CPU_VARIANT(sherdi_kernels_avx2, sherdi_machine_has_avx2)     /* with FMA and F16C */
#endif
SHERDI_CPU_VARIANT(sherdi_kernels_scalar, sherdi_machine_has_all)
