/* Makes folders for files that will be written. */
#ifndef SHERDI_BASE_FOLDER_H
#define SHERDI_BASE_FOLDER_H

#include "base/status.h"

/** Makes the folder, and the folders above it, where they do not exist. `what` is for the message:
 *  "the folder of checkpoints". Errors: E_INVAL (no name, or more than 4095 bytes), E_IO. */
sherd_status sherdi_folders_make(const char *path, const char *what);

#endif
