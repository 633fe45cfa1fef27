/* What offloads in a build, on one line: the names of the tables of the program, of storage and of
 * the updater. program/offload.h and run/offload.h declare them from this list. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_OFFLOAD
SHERDI_OFFLOAD(sherdi_program_rings, sherdi_storage_drive, sherdi_updater_thread)
#endif
