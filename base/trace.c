/* See trace.h. */
#include "base/trace.h"

#include "base/absent.h"

#define SHERDI_TRACE(table) &(table),
static const sherdi_trace_ops *const TABLES[] = {
#include "base/trace_list.h"
    NULL};
#undef SHERDI_TRACE

sherd_status sherdi_trace_open(const char *path, int rank, int world_size, sherdi_mem *mem,
                               sherdi_trace **out)
{
    return TABLES[0] == NULL ? sherdi_absent("trace", "SHERD_TRACE")
                             : TABLES[0]->open(path, rank, world_size, mem, out);
}
