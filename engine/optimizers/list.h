/* The optimizers, a line each: the "optimizer.type" in a configuration, and the table. optimizer.h
 * declares the tables from this list, and table.c lists them. The element-wise optimizers come
 * first; kernels/updates/list.h has their lines. A build has the lines of its modules
 * (modules.txt). */
#include "sherd_build.h"

#define SHERDI_ELEMENTWISE(table, type, update, fields)                                            \
    SHERDI_OPTIMIZER(type, sherdi_optimizer_##table)
#include "kernels/updates/rows.h"
SHERDI_IN_LAMB(SHERDI_OPTIMIZER("Lamb", sherdi_optimizer_lamb))
SHERDI_IN_MUON(SHERDI_OPTIMIZER("Muon", sherdi_optimizer_muon))
SHERDI_IN_INFERENCE(SHERDI_OPTIMIZER("none", sherdi_optimizer_none))
