/* A trace of what ran when, as a Chrome/Perfetto file: one process per rank, one row per lane. Intervals are kept
 * in a buffer that is there from the start and written out when it is full and at the end. Any thread may add
 * intervals. A trace that is NULL takes them and does nothing. */
#ifndef SHERDI_BASE_TRACE_H
#define SHERDI_BASE_TRACE_H

#include "base/mem.h"

typedef enum sherdi_trace_lane {
    SHERDI_TRACE_COMPUTE = 0, /* the trainer, between acquire and release */
    SHERDI_TRACE_WAIT,        /* what it stood still for: exposed */
    SHERDI_TRACE_GATHER,
    SHERDI_TRACE_REDUCE,
    SHERDI_TRACE_DOWN, /* copies from the device to the host */
    SHERDI_TRACE_UP,
    SHERDI_TRACE_READ, /* from NVMe; several at once */
    SHERDI_TRACE_WRITE,
    SHERDI_TRACE_UPDATE,
    SHERDI_TRACE_STEP,
    SHERDI_TRACE_LANES,
} sherdi_trace_lane;

typedef struct sherdi_trace sherdi_trace;

/** Writes to `path`; "%r" in it is replaced by the rank, and with several ranks and no "%r" the rank stands
 *  before the last dot: trace.json, trace.1.json, ... E_IO, E_NOMEM. */
sherd_status sherdi_trace_open(const char *path, int rank, int world_size, sherdi_mem *mem,
                               sherdi_trace **out);
/** Names live until close. `what` may be NULL; bytes 0: not told. On sherdi_now_ns()'s clock. Never allocates. */
void sherdi_trace_interval(sherdi_trace *trace, sherdi_trace_lane lane, const char *name,
                           const char *what, uint64_t bytes, int64_t start_ns, int64_t end_ns);
/** Writes the rest; a file that could not be written whole is told to the log. Accepts NULL. */
void sherdi_trace_close(sherdi_trace *trace);

#endif
