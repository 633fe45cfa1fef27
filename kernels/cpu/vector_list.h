/* The loops over vectors that belong to modules, a line each; vector.inc.c includes this list at
 * its end. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_ENCODINGS
#include "kernels/cpu/vector_encoded.inc.c"
#endif
#ifdef SHERDI_MODULE_LAMB
#include "kernels/cpu/vector_lamb.inc.c"
#endif
#ifdef SHERDI_MODULE_MUON
#include "kernels/cpu/vector_product.inc.c"
#endif
