/* The settings of modules, a line each: the member, and its value in a file that does not set it, if
 * that is not 0. config.h has the members of sherdi_settings from this list, and settings.c the
 * values. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifndef SHERDI_SETTINGS_OF
#define SHERDI_SETTINGS_OF(...)
#endif
/* clang-format off */
#ifdef SHERDI_MODULE_JSON
#include "engine/optimizers/groups.h"
SHERDI_SETTINGS_OF(sherdi_group_settings groups[SHERDI_MAX_GROUPS],)
#endif
#ifdef SHERDI_MODULE_SCHEDULES
#include "engine/optimizers/schedule.h"
SHERDI_SETTINGS_OF(sherdi_schedule_params schedule,)
#endif
#ifdef SHERDI_MODULE_OPTIONS
#include "engine/config/options.h"
#include "engine/config/options_list.h"
#endif
/* clang-format on */
#undef SHERDI_SETTINGS_OF
