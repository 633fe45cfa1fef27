/* What makes calls of worlds overlap with their caller: the function of a module, or NULL in a build
 * without it. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_OVERLAP
sherd_status sherdi_world_overlapped(sherd_world *world);
#define SHERDI_WORLD_OVERLAP sherdi_world_overlapped
#else
#define SHERDI_WORLD_OVERLAP NULL
#endif
