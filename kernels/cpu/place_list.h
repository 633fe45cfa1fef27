/* The tables that decide where threads run, a line each, best first. places.h declares them from
 * this list, and places.c has the first one asked. A build has the lines of its modules
 * (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_BINDING
SHERDI_PLACES(sherdi_places_bound)
#endif
SHERDI_PLACES(sherdi_places_anywhere)
