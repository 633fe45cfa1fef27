/* Where traces go, a line each: the first one is opened. trace.h declares them from this list. A
 * build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_TRACE
SHERDI_TRACE(sherdi_trace_to_file)
#endif
