/* Log lines: rank first, lower case. Never called in the step loop above trace. */
#ifndef SHERDI_BASE_LOG_H
#define SHERDI_BASE_LOG_H

#include "base/status.h"

/** `rank` -1: no rank yet. Formats nothing when nobody listens at this level. */
void sherdi_log(sherd_log_level level, int rank, const char *fmt, ...) SHERDI_PRINTF(3, 4);

/** Whether somebody listens: to spare the making of an expensive line. */
int sherdi_log_is_on(sherd_log_level level);

#endif
