/* See modules.h. */
#include "engine/modules.h"

/* A build without any of them has the last entry alone. */
#define SHERDI_MODULE(table) &(table),
static const sherdi_module *const TABLE[] = {
#include "engine/module_list.h"
    &(const sherdi_module){0}};
#undef SHERDI_MODULE

#define COUNT (sizeof(TABLE) / sizeof(TABLE[0]))

/* Calls a function of all modules that have it, up to the first failure. */
#define TRY_ALL(name, parameters, arguments)                                                       \
    sherd_status sherdi_modules_##name parameters                                                  \
    {                                                                                              \
        for (size_t i = 0; i < COUNT; i++) {                                                       \
            if (TABLE[i]->name != NULL) {                                                          \
                SHERDI_TRY(TABLE[i]->name arguments);                                              \
            }                                                                                      \
        }                                                                                          \
        return SHERD_OK;                                                                           \
    }

#define CALL_ALL(name, parameters, arguments)                                                      \
    void sherdi_modules_##name parameters                                                          \
    {                                                                                              \
        for (size_t i = 0; i < COUNT; i++) {                                                       \
            if (TABLE[i]->name != NULL) {                                                          \
                TABLE[i]->name arguments;                                                          \
            }                                                                                      \
        }                                                                                          \
    }

TRY_ALL(create, (sherd_engine * engine), (engine))
TRY_ALL(machine, (sherd_world * world, sherdi_machine *machine), (world, machine))
TRY_ALL(declared, (sherd_engine * engine), (engine))
TRY_ALL(lay_out, (sherdi_plan * plan, const sherdi_model *model), (plan, model))
TRY_ALL(planned, (sherdi_plan * plan, const sherdi_model *model), (plan, model))
TRY_ALL(calls_differ,
        (sherd_engine * engine, const char *call, const sherdi_argument *arguments, size_t count),
        (engine, call, arguments, count))
TRY_ALL(models_differ, (const sherd_engine *engine), (engine))
TRY_ALL(uses_differ, (sherd_engine * engine), (engine))
TRY_ALL(check, (const sherd_engine *engine), (engine))
TRY_ALL(open, (sherd_engine * engine), (engine))
TRY_ALL(param_filled, (sherd_engine * engine, struct sherdi_fill_source *source), (engine, source))
TRY_ALL(filled, (sherd_engine * engine), (engine))
TRY_ALL(unit_acquiring, (sherd_engine * engine, int unit, sherd_pass pass), (engine, unit, pass))
TRY_ALL(unit_acquired, (sherd_engine * engine, int unit, sherd_pass pass), (engine, unit, pass))
TRY_ALL(unit_releasing, (sherd_engine * engine, int unit, sherd_pass pass), (engine, unit, pass))
TRY_ALL(unit_released, (const struct sherdi_program *program, int unit, sherd_pass pass),
        (program, unit, pass))
TRY_ALL(stepped, (sherd_engine * engine), (engine))
CALL_ALL(memory_bounds, (size_t * bounds), (bounds))
CALL_ALL(segment_made, (const sherdi_plan *plan, sherdi_segment *segment), (plan, segment))
CALL_ALL(unit_let_go, (sherd_engine * engine, int unit, sherd_pass pass), (engine, unit, pass))
CALL_ALL(micro_batch_over, (const struct sherdi_program *program), (program))
CALL_ALL(sealed, (sherd_engine * engine), (engine))
CALL_ALL(boundary, (sherd_engine * engine), (engine))
CALL_ALL(reported, (sherd_engine * engine), (engine))
CALL_ALL(dropped, (sherd_engine * engine), (engine))
CALL_ALL(abandon, (sherd_engine * engine), (engine))
CALL_ALL(close, (sherd_engine * engine), (engine))
CALL_ALL(destroy, (sherd_engine * engine), (engine))
