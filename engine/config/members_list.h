/* The settings of modules among those of the update, a line each: the type, and the name. config.h
 * has the structs' members from this list. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_JSON
#include "engine/optimizers/groups.h"
SHERDI_SETTINGS_OF(sherdi_group_settings, groups[SHERDI_MAX_GROUPS])
#endif
#ifdef SHERDI_MODULE_SCHEDULES
#include "engine/optimizers/schedule.h"
SHERDI_SETTINGS_OF(sherdi_schedule_params, schedule)
#endif
