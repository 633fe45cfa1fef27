/* The lanes of a build: the name of their table. engine_impl.h declares it from this list. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_LANES
SHERDI_LANES_TABLE(sherdi_lanes_table)
#endif
