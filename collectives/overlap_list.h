/* The threads on which the calls of worlds overlap with their caller: one table, or none.
 * world_impl.h declares it from this list, and tickets.c takes the first. A build has the lines of
 * its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_OVERLAP
SHERDI_WORLD_THREAD(sherdi_world_overlapped)
#endif
