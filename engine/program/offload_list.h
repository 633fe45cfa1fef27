/* What offloads in a build: the name of the program's table, which offload.h declares from this
 * list. */
#include "sherd_build.h"

SHERDI_IN_OFFLOAD(SHERDI_OFFLOAD(sherdi_program_rings))
