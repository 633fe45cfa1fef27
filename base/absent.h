/* Calls of modules that a build does not have (tools/absent.py makes them). */
#ifndef SHERDI_BASE_ABSENT_H
#define SHERDI_BASE_ABSENT_H

#include "base/status.h"

/** Returns E_NOTSUP; the message names the call and the module. */
sherd_status sherdi_absent(const char *module, const char *call);

#endif
