/* Kernels of modules that take the place of those in kernels.c, a line each: of which operations,
 * and the kernel. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

SHERDI_IN_ENCODINGS(SHERDI_INSTEAD(op->kind == SHERDI_OP_FINGERPRINT &&
                                       op->uses[SHERDI_USE_STATE].where != SHERDI_AT_NOWHERE,
                                   sherdi_kernel_fingerprint_encoded))
SHERDI_IN_STEPS(SHERDI_INSTEAD(engine->settings.batch.most_weight > 0 &&
                                   (op->kind == SHERDI_OP_CAST ||
                                    op->kind == SHERDI_OP_ACCUMULATE) &&
                                   op->uses[SHERDI_USE_SRC].where == SHERDI_BUFFER_TRANSIENT &&
                                   op->uses[SHERDI_USE_DST].where == SHERDI_BUFFER_GRADS,
                               sherdi_kernel_weighed))
SHERDI_IN_ELASTIC(SHERDI_INSTEAD(op->kind == SHERDI_OP_UPDATE, sherdi_kernel_update_noted))
SHERDI_IN_OFFLOAD(SHERDI_INSTEAD(op->flags &SHERDI_OP_MEASURES, sherdi_kernel_measured))
SHERDI_IN_OFFLOAD(SHERDI_INSTEAD(op->flags &SHERDI_OP_GAPS, sherdi_kernel_gaps))
