/* Random access to the extents of a tier through one buffer, for what does not run in order: filling,
 * a fingerprint of one parameter. The extent that was opened last stays until another is opened. */
#ifndef SHERDI_OFFLOAD_WINDOW_H
#define SHERDI_OFFLOAD_WINDOW_H

#include "offload/tier.h"

typedef struct sherdi_window {
    sherdi_tier *tier;
    void        *memory; /* as long as the longest extent; NULL on a memory tier */
    size_t       extent;
    int          is_open, is_dirty;
} sherdi_window;

/** The contents of an extent; with `is_write` they are written back when the window moves on. Blocks. E_IO. */
sherd_status sherdi_window_open(sherdi_window *window, size_t extent, int is_write,
                                void **memory_out);
/** Writes back what was changed and lets go of the buffer. */
sherd_status sherdi_window_close(sherdi_window *window);

#endif
