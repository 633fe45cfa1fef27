/* The pipeline: extents of a tier pass through a fixed ring of buffers in memory, in a given order,
 * read ahead of use and written back behind it. The user computes on one extent while the next
 * ones are read and the last ones are written. On a memory tier nothing moves: the buffer is where the
 * extent is.
 *
 *   start(order)                      reads begin, as many as there are buffers
 *   for each extent of the order:     take: waits for its read
 *                                     give: written back, or dropped; the buffer reads the next
 *   finish                            waits for the last writes
 */
#ifndef SHERDI_OFFLOAD_PIPELINE_H
#define SHERDI_OFFLOAD_PIPELINE_H

#include "offload/tier.h"

typedef struct sherdi_pipeline sherdi_pipeline;

/* What the user of the pipeline stood still for, since it was last asked. */
typedef struct sherdi_pipeline_waits {
    int64_t read_ns;  /* in take, for the extent's read */
    int64_t write_ns; /* in take, give or finish, for a buffer that is still written */
} sherdi_pipeline_waits;

typedef struct sherdi_pipeline_params {
    sherdi_tier *tier;
    void  *memory; /* buffer_count x buffer_bytes, SHERD_ALIGN_BYTES aligned, the caller's; NULL
                            on a memory tier */
    size_t buffer_bytes;    /* at least the longest extent of any order */
    int    buffer_count;    /* at least 1 */
    int    is_read_ahead;   /* 0: an extent is read when it is taken */
    int    is_write_behind; /* 0: give waits until it is written */
} sherdi_pipeline_params;

sherd_status sherdi_pipeline_create(const sherdi_pipeline_params *params, sherdi_mem *mem,
                                    sherdi_pipeline **out);
/** Waits for what is in flight. Accepts NULL. */
void sherdi_pipeline_destroy(sherdi_pipeline *pipe);

/** Begins to pass extents order[0 .. count) (NULL: 0, 1, 2, ... count - 1); borrowed until finish. An order may
 *  repeat an extent: it is read again when it was written back. Never blocks. Must not be running. */
void sherdi_pipeline_start(sherdi_pipeline *pipe, const uint32_t *order, size_t count);
int  sherdi_pipeline_is_running(const sherdi_pipeline *pipe);
/** Position in the order of the extent that is taken next. */
size_t sherdi_pipeline_position(const sherdi_pipeline *pipe);

/** The next extent of the order: *memory_out holds it. Blocks until it is read. Several may be taken before
 *  one is given back, at most as many as there are buffers (then nothing is read ahead); the same extent not
 *  twice. E_STATE: that, or none is left. E_IO: this read, or a write before, has failed: nothing more can be
 *  taken, the pass goes on being running, and finish ends it. */
sherd_status sherdi_pipeline_take(sherdi_pipeline *pipe, size_t *extent_out, void **memory_out);
/** Gives back the one taken longest ago. is_written: its new contents go to the tier. E_IO: this write, or
 *  one before it, has failed; the buffer is given back all the same. E_STATE: none is taken. */
sherd_status sherdi_pipeline_give(sherdi_pipeline *pipe, int is_written);
/** Ends the pass wherever it is: reads ahead are dropped, writes are waited for. The first failure of
 *  any transfer of the pass that take or give did not tell already. */
sherd_status sherdi_pipeline_finish(sherdi_pipeline *pipe);

/** And sets them to zero. */
sherdi_pipeline_waits sherdi_pipeline_waits_take(sherdi_pipeline *pipe);

#endif
