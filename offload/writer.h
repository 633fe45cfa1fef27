/* Buffers of a ring that are filled by their user and written to a tier behind him, one after the other: the
 * way of what comes out of order or is not read before. */
#ifndef SHERDI_OFFLOAD_WRITER_H
#define SHERDI_OFFLOAD_WRITER_H

#include "offload/tier.h"

typedef struct sherdi_writer {
    sherdi_tier   *tier;
    unsigned char *memory;
    size_t         buffer_bytes;
    int            count, next;
    sherdi_io     *ios;     /* [count] */
    int           *is_busy; /* [count] */
    size_t        *extents; /* [count] */
} sherdi_writer;

/** Over `ring_bytes` / `buffer_bytes` buffers of the caller's memory, each as long as the longest extent that is
 *  written. E_NOMEM. */
sherd_status sherdi_writer_open(sherdi_writer *writer, sherdi_tier *tier, unsigned char *memory,
                                size_t buffer_bytes, size_t ring_bytes, sherdi_mem *mem);
/** Waits for what is in flight. Accepts one that was never opened. */
void sherdi_writer_close(sherdi_writer *writer);
/** The next buffer, when it is free. Blocks. E_IO of its last write. */
sherd_status sherdi_writer_begin(sherdi_writer *writer, void **memory_out);
/** Starts to write the buffer that was begun. Never blocks; a failure is told by a later begin or wait. */
void sherdi_writer_put(sherdi_writer *writer, size_t extent);
/** For all writes; the first failure of any. */
sherd_status sherdi_writer_wait(sherdi_writer *writer);
/** ... for the writes of one extent. */
sherd_status sherdi_writer_wait_for(sherdi_writer *writer, size_t extent);

#endif
