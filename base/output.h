/* Files that are written atomically: under a temporary name in the same folder, synced, and
 * renamed. An existing file at the path has to be a regular file. Renaming would replace a device,
 * a pipe or a link by a file, for every process of the machine. sherd_output_check and
 * sherd_output_write (sherd_tools.h) are here too; the functions below are for what writes a file
 * as a stream. */
#ifndef SHERDI_BASE_OUTPUT_H
#define SHERDI_BASE_OUTPUT_H

#include "base/status.h"

/* `label` is the path that messages name. */

/** Creates the temporary file, which will be renamed. An existing file of this name remains from a
 *  killed process, or is a link; it is removed, and a link is not followed. Errors: E_IO. */
sherd_status sherdi_output_open(const char *label, const char *beside, int *fd_out);
/** Writes all bytes at the descriptor's offset. Errors: E_IO. */
sherd_status sherdi_output_put(const char *label, int fd, const void *bytes, size_t len_bytes);
/** Syncs and closes the file. The descriptor is closed after a failure too. Errors: E_IO. */
sherd_status sherdi_output_end(const char *label, int fd);

#endif
