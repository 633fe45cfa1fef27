/* A trace of what ran when, as a file for Chrome or Perfetto: one process per rank, one row per
 * lane. Intervals are stored in a buffer of fixed size, which is written out when it is full, and
 * at the end. Any thread may add intervals. With a trace that is NULL the calls do nothing. */
#ifndef SHERDI_BASE_TRACE_H
#define SHERDI_BASE_TRACE_H

#include "base/mem.h"

typedef enum sherdi_trace_lane {
    SHERDI_TRACE_COMPUTE = 0, /* the trainer, between acquire and release */
    SHERDI_TRACE_WAIT,        /* the trainer stood still: exposed time */
    SHERDI_TRACE_GATHER,
    SHERDI_TRACE_REDUCE,
    SHERDI_TRACE_DOWN, /* copies from the device to the host */
    SHERDI_TRACE_UP,
    SHERDI_TRACE_READ, /* from NVMe; several may overlap */
    SHERDI_TRACE_WRITE,
    SHERDI_TRACE_UPDATE,
    SHERDI_TRACE_STEP,
    SHERDI_TRACE_LANES,
} sherdi_trace_lane;

typedef struct sherdi_trace sherdi_trace;

/** Opens a trace at `path`. The rank replaces "%r" in it; without "%r", ranks above 0 insert their
 *  number before the last dot: trace.json, trace.1.json, ... Errors: E_INVAL, E_IO, E_NOMEM. */
sherd_status sherdi_trace_open(const char *path, int rank, int world_size, sherdi_mem *mem,
                               sherdi_trace **out);

/** Adds an interval, with times of sherdi_now_ns()'s clock. The names must live until close; `what`
 *  may be NULL. bytes 0: not known. Never allocates. */
void sherdi_trace_interval(sherdi_trace *trace, sherdi_trace_lane lane, const char *name,
                           const char *what, uint64_t bytes, int64_t start_ns, int64_t end_ns);

/** Writes the rest and closes. A file that could not be written completely is reported in the log.
 *  Accepts NULL. */
void sherdi_trace_close(sherdi_trace *trace);

#endif
