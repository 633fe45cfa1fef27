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
SHERDI_SETTINGS_OF(sherdi_offloads_settings offload,
                   .offload = {.state          = {&sherdi_tier_device, .buffer_count = 4,
                                                  .buffer_elems = 4194304, .pin_memory = 1},
                               .params         = {&sherdi_tier_device, .buffer_count = 5,
                                                  .buffer_elems = 100000000, .pin_memory = 1},
                               .activations    = {&sherdi_tier_device, .buffer_count = 2,
                                                  .pin_memory = 1},
                               .params_in_cpu  = 1000000000,
                               .ratio          = 1,
                               .pipeline_read  = 1,
                               .pipeline_write = 1,
                               .durable        = 1},)
SHERDI_SETTINGS_OF(sherdi_lamb_settings lamb, .lamb = {.max_coeff = 10, .min_coeff = 0.01},)
SHERDI_SETTINGS_OF(sherdi_muon_settings muon, .muon = {.steps = 5},)
SHERDI_SETTINGS_OF(int master_encoding,) /* sherdi_master_encoding */
SHERDI_SETTINGS_OF(int moment_encoding,) /* sherdi_moment_encoding */
SHERDI_SETTINGS_OF(sherdi_checkpoint_settings checkpoint,)
SHERDI_SETTINGS_OF(sherdi_io_settings io,
                   .io = {.block_bytes = 1048576, .depth = 8, .drive_tbw = 600},)
SHERDI_SETTINGS_OF(sherdi_monitor_settings monitors[SHERDI_MONITORS],)
#endif
/* clang-format on */
#undef SHERDI_SETTINGS_OF
