/* Calls of modules that a build does not have (tools/absent.py makes them). */
#ifndef SHERDI_BASE_ABSENT_H
#define SHERDI_BASE_ABSENT_H

#include "base/status.h"

#include <stddef.h>

/** Returns E_NOTSUP; the message names the call and the module. */
sherd_status sherdi_absent(const char *module, const char *call);
/** Sets a struct of the API to zero, and its struct_size; NULL: does nothing. */
void sherdi_absent_init(void *given, size_t size);

#endif
