/* Reads plain files on the calling thread: small files, and files from elsewhere. (base/output.h
 * writes them.) Large transfers of all ranks go through offload/io.h. All calls block. */
#ifndef SHERDI_CHECKPOINT_BYTES_H
#define SHERDI_CHECKPOINT_BYTES_H

#include "base/mem.h"

/* Digits of a number of 64 bits that is written as "%016llx". */
#define SHERDI_HEX_DIGITS 16

/** Reads `len_bytes` bytes from byte `at` on. The descriptor's offset is neither used nor moved;
 *  `label` is for messages. E_IO, also if the file ends before. */
sherd_status sherdi_bytes_read(const char *label, int fd, size_t at, void *out, size_t len_bytes);
/** Opens a regular file for reading, without waiting for pipes or devices. E_IO, E_INVAL (not a
 *  regular file). */
sherd_status sherdi_bytes_open(const char *path, int *fd_out, size_t *len_bytes_out);
/** Reads a whole file of another program into memory of the account, with a NUL after it; the
 *  caller frees it with sherdi_free. The path may be a link (for a checkpoint's own files see
 *  sherdi_checkpoint_get). E_IO, E_INVAL (longer than `most_bytes`), E_NOMEM. */
sherd_status sherdi_bytes_load(sherdi_mem *mem, const char *path, size_t most_bytes, char **out,
                               size_t *len_bytes_out);

#endif
