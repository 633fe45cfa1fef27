/* The optimizers, a line each: its "optimizer.type" in a configuration, and its table. optimizer.h declares
 * them from here, table.c lists them. First those that work element by element, whose lines are kernels/updates/list.h. */
#define SHERDI_ELEMENTWISE(table, type, update, fields)                                            \
    SHERDI_OPTIMIZER(type, sherdi_optimizer_##table)
#include "kernels/updates/rows.h"
SHERDI_OPTIMIZER("Lamb", sherdi_optimizer_lamb)
SHERDI_OPTIMIZER("Muon", sherdi_optimizer_muon)
SHERDI_OPTIMIZER("none", sherdi_optimizer_none)
