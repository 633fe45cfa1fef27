/* See trace.h. */
#include "base/trace.h"

#include "base/absent.h"

static const sherdi_trace_ops *const TRACE = SHERDI_TRACE;

sherd_status sherdi_trace_open(const char *path, int rank, int world_size, sherdi_mem *mem,
                               sherdi_trace **out)
{
    return TRACE == NULL ? sherdi_absent("trace", "SHERD_TRACE")
                         : TRACE->open(path, rank, world_size, mem, out);
}
