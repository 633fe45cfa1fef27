/* Log lines: the rank first, in lower case. The step loop logs at level trace only. */
#ifndef SHERDI_BASE_LOG_H
#define SHERDI_BASE_LOG_H

#include "base/status.h"

/** Logs a line. `rank` is -1 where there is no rank yet. Formats nothing when nobody listens at
 *  this level. */
void sherdi_log(sherd_log_level level, int rank, const char *fmt, ...) SHERDI_PRINTF(3, 4);

/** Returns whether somebody listens, so that a caller need not make an expensive line in vain. */
int sherdi_log_is_on(sherd_log_level level);

/** Returns whether this thread is inside the program's function of the log, where it logs
 *  nothing. */
int sherdi_log_is_telling(void);

#endif
