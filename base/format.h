/* The formats in which calls of the tools print. */
#ifndef SHERDI_BASE_FORMAT_H
#define SHERDI_BASE_FORMAT_H

#include "base/status.h"

/** Returns E_INVAL for a format that does not exist. */
static inline sherd_status sherdi_api_check_format(sherd_plan_format format, const char *call)
{
    return format == SHERD_PLAN_TABLE || format == SHERD_PLAN_JSON
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_INVAL,
                     "%s: format %d does not exist; give SHERD_PLAN_TABLE or SHERD_PLAN_JSON", call,
                     (int)format);
}

#endif
