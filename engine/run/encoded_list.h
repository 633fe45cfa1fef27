/* The kernel of fingerprints of blocks whose master is stored in an encoding: of a module, or NULL
 * in a build without it. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_ENCODINGS
void sherdi_kernel_fingerprint_encoded(sherd_engine *engine, const sherdi_backend *lane,
                                       const sherdi_op *op);
#define SHERDI_FINGERPRINT_ENCODED sherdi_kernel_fingerprint_encoded
#else
#define SHERDI_FINGERPRINT_ENCODED NULL
#endif
