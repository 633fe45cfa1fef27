/* Where traces go: the table of a module, or NULL in a build without it. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_TRACE
extern const struct sherdi_trace_ops sherdi_trace_to_file;
#define SHERDI_TRACE (&sherdi_trace_to_file)
#else
#define SHERDI_TRACE NULL
#endif
