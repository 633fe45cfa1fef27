/* The kinds of operations whose kernels are of modules, a line each: the kind, and the function.
 * kernels.c has those of every build. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

SHERDI_IN_DETERMINISTIC(SHERDI_KERNEL(WIDEN, sherdi_kernel_widen))
SHERDI_IN_ENCODINGS(SHERDI_KERNEL(ENCODE, sherdi_kernel_encode))
SHERDI_IN_ENCODINGS(SHERDI_KERNEL(DECODE, sherdi_kernel_decode))
SHERDI_IN_DEBUG(SHERDI_KERNEL(POISON, sherdi_kernel_poison))
SHERDI_IN_LAMB(SHERDI_KERNEL(RATIOS, sherdi_kernel_ratios))
SHERDI_IN_MUON(SHERDI_KERNEL(MATRIX, sherdi_kernel_matrix))
