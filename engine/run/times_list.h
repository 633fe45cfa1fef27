/* What becomes of marks: the name of the table of a build. times.h declares it from this list. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_TRACE
SHERDI_TIMES(sherdi_times_marks)
#endif
