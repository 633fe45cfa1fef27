/* The kernel tables of the CPU, one per instruction set; variant_list.h lists them, and backend.c
 * chooses one. */
#ifndef SHERDI_KERNELS_CPU_VARIANTS_H
#define SHERDI_KERNELS_CPU_VARIANTS_H

#include "kernels/backend.h"

#define SHERDI_CPU_VARIANT(table, can_run)                                                         \
    extern const sherdi_kernel_ops table;                                                          \
    int                            can_run(void);
#include "kernels/cpu/variant_list.h"
#undef SHERDI_CPU_VARIANT

#endif
