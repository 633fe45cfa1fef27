/* Folders of files that are written. */
#ifndef SHERDI_BASE_FOLDER_H
#define SHERDI_BASE_FOLDER_H

#include "base/status.h"

/** Makes the folder and those above it that are not there; `what` is for the sentence: "the folder of checkpoints". E_INVAL
 *  (no name, or more than 4095 bytes), E_IO. */
sherd_status sherdi_folders_make(const char *path, const char *what);

#endif
