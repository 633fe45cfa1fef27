/* The functions of a module in the life of an engine. The core calls the tables of module_list.h at
 * these points, and knows none of them by name. A module whose calls the trainer makes itself, and
 * that does nothing else, has no table. */
#ifndef SHERDI_ENGINE_MODULES_H
#define SHERDI_ENGINE_MODULES_H

#include "collectives/world.h"
#include "engine/plan/plan.h"

struct sherdi_program;
struct sherdi_schedule_walk;
struct sherdi_range;
struct sherdi_value_range;
struct sherdi_progress;
struct sherdi_fill_source;
struct sherdi_scaler;

/* A table of hook_list.h. Every function may be NULL. */
typedef struct sherdi_module {
#define SHERDI_TRIED(name, parameters, arguments)  sherd_status(*name) parameters;
#define SHERDI_CALLED(name, parameters, arguments) void(*name) parameters;
#include "engine/hook_list.h"
#undef SHERDI_TRIED
#undef SHERDI_CALLED
} sherdi_module;

#define SHERDI_MODULE(table) extern const sherdi_module table;
#include "engine/module_list.h"
#undef SHERDI_MODULE

/* sherdi_modules_<name>: call the function of every module that has it. Functions with a status end
 * at the first failure. */
#define SHERDI_TRIED(name, parameters, arguments)  sherd_status sherdi_modules_##name parameters;
#define SHERDI_CALLED(name, parameters, arguments) void sherdi_modules_##name parameters;
#include "engine/hook_list.h"
#undef SHERDI_TRIED
#undef SHERDI_CALLED

#endif
