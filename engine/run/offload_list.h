/* Storage and updater of a build, on one line: the names of their tables. offload.h declares them
 * from this list. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_OFFLOAD
SHERDI_OFFLOAD(sherdi_storage_drive, sherdi_updater_thread)
#endif
