/* The settings of modules, a line each: the type, the name, its dimensions, and the values of a file
 * that does not set them. SHERDI_UPDATE_OF: among those of the update. config.h has the structs'
 * members from this list, and settings.c the values. A build has the lines of its modules
 * (modules.txt). */
#include "sherd_build.h"

#ifndef SHERDI_UPDATE_OF
#define SHERDI_UPDATE_OF(...)
#endif
#ifndef SHERDI_SETTINGS_OF
#define SHERDI_SETTINGS_OF(...)
#endif
/* clang-format off */
#ifdef SHERDI_MODULE_JSON
#include "engine/optimizers/groups.h"
SHERDI_UPDATE_OF(sherdi_group_settings, groups, [SHERDI_MAX_GROUPS], {{{0}}})
#endif
#ifdef SHERDI_MODULE_SCHEDULES
#include "engine/optimizers/schedule.h"
SHERDI_UPDATE_OF(sherdi_schedule_params, schedule, , {0})
#endif
#ifdef SHERDI_MODULE_OPTIONS
#include "engine/config/options.h"
SHERDI_UPDATE_OF(sherdi_lamb_settings, lamb, , {.max_coeff = 10, .min_coeff = 0.01})
SHERDI_UPDATE_OF(sherdi_muon_settings, muon, , {.steps = 5})
SHERDI_UPDATE_OF(int, master_encoding, , 0) /* sherdi_master_encoding */
SHERDI_UPDATE_OF(int, moment_encoding, , 0) /* sherdi_moment_encoding */
SHERDI_SETTINGS_OF(sherdi_checkpoint_settings, checkpoint, , {0})
SHERDI_SETTINGS_OF(sherdi_io_settings, io, , {.block_bytes = 1048576, .depth = 8, .drive_tbw = 600})
SHERDI_SETTINGS_OF(sherdi_monitor_settings, monitors, [SHERDI_MONITORS], {{0}})
#endif
/* clang-format on */
#undef SHERDI_UPDATE_OF
#undef SHERDI_SETTINGS_OF
