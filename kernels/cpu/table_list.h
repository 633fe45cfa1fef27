/* The parts of a kernel table that belong to modules, a line each. Each file has two faces.
 * table.inc.c includes this list for their functions, and, with TABLE_SLOTS defined, for the slots
 * that these fill; the others stay NULL. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_DETERMINISTIC
#include "kernels/cpu/table_fixed.inc.c"
#endif
#ifdef SHERDI_MODULE_ENCODINGS
#include "kernels/cpu/table_encoded.inc.c"
#endif
#ifdef SHERDI_MODULE_LAMB
#include "kernels/cpu/table_lamb.inc.c"
#endif
#ifdef SHERDI_MODULE_MUON
#include "kernels/cpu/table_product.inc.c"
#endif
