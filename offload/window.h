/* Random access to the extents of a tier through a ring's buffers, for what does not run in order: filling, a
 * fingerprint of one parameter. An extent stays in its buffer until the buffer is needed for another: the one
 * that was used longest ago gives way, and first of all one that need not be written. */
#ifndef SHERDI_OFFLOAD_WINDOW_H
#define SHERDI_OFFLOAD_WINDOW_H

#include "offload/tier.h"

typedef struct sherdi_window_slot {
    sherdi_io io;     /* of its write, while is_writing */
    size_t    extent; /* only when is_open */
    uint64_t  used;   /* number of the last open */
    int       is_open, is_dirty, is_writing;
} sherdi_window_slot;

typedef struct sherdi_window {
    sherdi_tier        *tier;
    unsigned char      *memory;
    size_t              buffer_bytes;
    sherdi_window_slot *slots; /* [count]; NULL on a memory tier */
    size_t              count;
    uint64_t            opens;
} sherdi_window;

/** Over `ring_bytes` / `buffer_bytes` buffers of the caller's memory, each as long as the longest extent; on a
 *  memory tier over none. E_NOMEM. */
sherd_status sherdi_window_init(sherdi_window *window, sherdi_tier *tier, unsigned char *memory,
                                size_t buffer_bytes, size_t ring_bytes, sherdi_mem *mem);
/** Waits for what is in flight and writes nothing more. Accepts one that was never made. */
void sherdi_window_fini(sherdi_window *window);
/** The contents of an extent, there until another one is opened; with `is_write` they are written back later.
 *  Blocks. E_IO, also of the write that made room. */
sherd_status sherdi_window_open(sherdi_window *window, size_t extent, int is_write,
                                void **memory_out);
/** Starts to write an extent that is complete. Never blocks; a failure is told by a later open or close. */
void sherdi_window_put(sherdi_window *window, size_t extent);
/** Writes back what was changed, waits for all writes and lets go of the buffers. The first failure of any; what
 *  could not be written stays, and another close tries again. */
sherd_status sherdi_window_close(sherdi_window *window);

#endif
