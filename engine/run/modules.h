/* What a module does in the life of an engine. The core calls the tables of module_list.h at these
 * points, and knows none of them by name. A module whose calls the trainer makes itself, and that
 * does nothing beside them, has no table. */
#ifndef SHERDI_ENGINE_RUN_MODULES_H
#define SHERDI_ENGINE_RUN_MODULES_H

#include "engine/plan/plan.h"

/* Every function may be NULL. */
typedef struct sherdi_module {
    /* A plan was made: adds what the module tells of it. E_NOMEM. */
    sherd_status (*planned)(sherdi_plan *plan, const sherdi_model *model);
    /* The engine is about to carry its plan out: whether it may. */
    sherd_status (*check)(const sherd_engine *engine);
    /* Makes what the module needs while the engine is sealed. */
    sherd_status (*open)(sherd_engine *engine);
    /* The engine is sealed. */
    void (*sealed)(sherd_engine *engine);
    /* A boundary has ended; its report may not be complete. */
    void (*boundary)(sherd_engine *engine);
    /* The report of the last boundary is complete, or will not be. */
    void (*told)(sherd_engine *engine);
    /* The window is dropped: what was not told of the last boundary is forgotten. */
    void (*dropped)(sherd_engine *engine);
    /* Give up what runs, before transfers are waited for; and end, before the engine's memory is
     * freed. Both are called after an `open` that failed or was not made, too. */
    void (*abandon)(sherd_engine *engine);
    void (*close)(sherd_engine *engine);
} sherdi_module;

#define SHERDI_MODULE(table) extern const sherdi_module table;
#include "engine/run/module_list.h"
#undef SHERDI_MODULE

/* Call the function of every module that has it. Those with a status end at the first failure. */
sherd_status sherdi_modules_planned(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_modules_check(const sherd_engine *engine);
sherd_status sherdi_modules_open(sherd_engine *engine);
void         sherdi_modules_sealed(sherd_engine *engine);
void         sherdi_modules_boundary(sherd_engine *engine);
void         sherdi_modules_told(sherd_engine *engine);
void         sherdi_modules_dropped(sherd_engine *engine);
void         sherdi_modules_abandon(sherd_engine *engine);
void         sherdi_modules_close(sherd_engine *engine);

#endif
