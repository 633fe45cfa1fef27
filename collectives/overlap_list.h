/* The threads on which the calls of worlds overlap with their caller: the table of a module, or NULL
 * in a build without it. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_OVERLAP
extern const struct world_thread_ops sherdi_world_overlapped;
#define SHERDI_WORLD_THREAD (&sherdi_world_overlapped)
#else
#define SHERDI_WORLD_THREAD NULL
#endif
