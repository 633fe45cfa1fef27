/* Plain files, read and written in the calling thread: what is small, what comes from elsewhere, and what one rank
 * writes as a stream. Large transfers of all ranks go through offload/io.h. */
#ifndef SHERDI_CHECKPOINT_BYTES_H
#define SHERDI_CHECKPOINT_BYTES_H

#include "base/mem.h"

/** Reads all of it; a file that ends before is E_IO. The descriptor's offset is neither used nor moved. */
sherd_status sherdi_bytes_read(const char *label, int fd, size_t at, void *out, size_t len_bytes);
/** Writes all of it at the descriptor's offset. E_IO. */
sherd_status sherdi_bytes_write(const char *label, int fd, const void *bytes, size_t len_bytes);
/** Opens a regular file for reading; pipes and devices are not waited for. E_IO, E_INVAL (something else). */
sherd_status sherdi_bytes_open(const char *path, int *fd_out, size_t *len_bytes_out);
/** A whole file from elsewhere, whose path may be a link (of a checkpoint's own files see sherdi_checkpoint_get), of at most `most_bytes`, with a NUL behind it; sherdi_free. E_IO, E_INVAL (longer), E_NOMEM. */
sherd_status sherdi_bytes_load(sherdi_mem *mem, const char *path, size_t most_bytes, char **out,
                               size_t *len_bytes_out);

#endif
