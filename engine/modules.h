/* The functions of a module in the life of an engine. The core calls the tables of module_list.h at
 * these points, and knows none of them by name. A module whose calls the trainer makes itself, and
 * that does nothing else, has no table. */
#ifndef SHERDI_ENGINE_MODULES_H
#define SHERDI_ENGINE_MODULES_H

#include "engine/plan/plan.h"

struct sherdi_program;
struct sherdi_fill_source;

/* An argument that must be equal on all ranks. */
typedef struct sherdi_argument {
    const char *name;
    uint64_t    value;
} sherdi_argument;

/* Every function may be NULL. */
typedef struct sherdi_module {
    /* The engine's object was made, and has its settings: makes the module's state. E_NOMEM. */
    sherd_status (*create)(sherd_engine *engine);
    /* The object is about to be freed. Also after a `create` that failed or was not made. */
    void (*destroy)(sherd_engine *engine);
    /* The limits of this process's memory, by sherdi_memory_bound; SIZE_MAX: not limited. */
    void (*memory_bounds)(size_t *bounds);
    /* The machine of this rank was measured: corrects it. Collective. */
    sherd_status (*machine)(sherd_world *world, sherdi_machine *machine);
    /* The model is declared, or a plan of what was declared so far is asked for: completes the
     * model. A second call changes nothing. */
    sherd_status (*declared)(sherd_engine *engine);
    /* A segment of a plan is known, and nothing is laid out yet: changes it. */
    void (*segment_made)(const sherdi_plan *plan, sherdi_segment *segment);
    /* Units, segments and schedule of a plan are known: checks them, and lays out what the module
     * adds. */
    sherd_status (*lay_out)(sherdi_plan *plan, const sherdi_model *model);
    /* A plan was made: adds the module's numbers to it. E_NOMEM. */
    sherd_status (*planned)(sherdi_plan *plan, const sherdi_model *model);
    /* The ranks differ: name how, by a failure. The calls or their arguments, which the core compares
     * by hash; the models; what was used in a window. Collective. */
    sherd_status (*calls_differ)(sherd_engine *engine, const char *call,
                                 const sherdi_argument *arguments, size_t count);
    sherd_status (*models_differ)(const sherd_engine *engine);
    sherd_status (*uses_differ)(sherd_engine *engine);
    /* The engine is about to carry its plan out: whether it may. */
    sherd_status (*check)(const sherd_engine *engine);
    /* Makes the module's objects for the time in which the engine is sealed. */
    sherd_status (*open)(sherd_engine *engine);
    /* The engine is sealed. */
    void (*sealed)(sherd_engine *engine);
    /* A parameter was filled from its source; and all are, and the training begins. The second is
     * collective. */
    sherd_status (*param_filled)(sherd_engine *engine, struct sherdi_fill_source *source);
    sherd_status (*filled)(sherd_engine *engine);
    /* A unit is about to be acquired, was acquired, and is about to be released. */
    sherd_status (*unit_acquiring)(sherd_engine *engine, int unit, sherd_pass pass);
    sherd_status (*unit_acquired)(sherd_engine *engine, int unit, sherd_pass pass);
    sherd_status (*unit_releasing)(sherd_engine *engine, int unit, sherd_pass pass);
    /* The outermost acquire of a unit for a pass is about to end, by a release or otherwise. */
    void (*unit_let_go)(sherd_engine *engine, int unit, sherd_pass pass);
    /* A unit was released: emits the operations of the module that follow. */
    sherd_status (*unit_released)(const struct sherdi_program *program, int unit, sherd_pass pass);
    /* A micro-batch has ended, or was dropped. */
    void (*micro_batch_over)(const struct sherdi_program *program);
    /* A boundary has ended; its report may not be complete. */
    void (*boundary)(sherd_engine *engine);
    /* The step of a boundary is over. Collective. */
    sherd_status (*stepped)(sherd_engine *engine);
    /* The report of the last boundary is complete, or will not be. */
    void (*reported)(sherd_engine *engine);
    /* The window is dropped: numbers of the last boundary that were not written are discarded. */
    void (*dropped)(sherd_engine *engine);
    /* Abandon work in progress, before transfers are waited for; and end, before the engine's
     * memory is freed. Both are called after an `open` that failed or was not made, too. */
    void (*abandon)(sherd_engine *engine);
    void (*close)(sherd_engine *engine);
} sherdi_module;

#define SHERDI_MODULE(table) extern const sherdi_module table;
#include "engine/module_list.h"
#undef SHERDI_MODULE

/* Call the function of every module that has it. Functions with a status end at the first
 * failure. */
sherd_status sherdi_modules_create(sherd_engine *engine);
void         sherdi_modules_destroy(sherd_engine *engine);
void         sherdi_modules_memory_bounds(size_t *bounds);
sherd_status sherdi_modules_machine(sherd_world *world, sherdi_machine *machine);
sherd_status sherdi_modules_declared(sherd_engine *engine);
void         sherdi_modules_segment_made(const sherdi_plan *plan, sherdi_segment *segment);
sherd_status sherdi_modules_lay_out(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_modules_param_filled(sherd_engine *engine, struct sherdi_fill_source *source);
sherd_status sherdi_modules_filled(sherd_engine *engine);
sherd_status sherdi_modules_unit_acquiring(sherd_engine *engine, int unit, sherd_pass pass);
sherd_status sherdi_modules_unit_acquired(sherd_engine *engine, int unit, sherd_pass pass);
sherd_status sherdi_modules_unit_releasing(sherd_engine *engine, int unit, sherd_pass pass);
void         sherdi_modules_unit_let_go(sherd_engine *engine, int unit, sherd_pass pass);
sherd_status sherdi_modules_unit_released(const struct sherdi_program *program, int unit,
                                          sherd_pass pass);
void         sherdi_modules_micro_batch_over(const struct sherdi_program *program);
sherd_status sherdi_modules_stepped(sherd_engine *engine);
sherd_status sherdi_modules_planned(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_modules_calls_differ(sherd_engine *engine, const char *call,
                                         const sherdi_argument *arguments, size_t count);
sherd_status sherdi_modules_models_differ(const sherd_engine *engine);
sherd_status sherdi_modules_uses_differ(sherd_engine *engine);
sherd_status sherdi_modules_check(const sherd_engine *engine);
sherd_status sherdi_modules_open(sherd_engine *engine);
void         sherdi_modules_sealed(sherd_engine *engine);
void         sherdi_modules_boundary(sherd_engine *engine);
void         sherdi_modules_reported(sherd_engine *engine);
void         sherdi_modules_dropped(sherd_engine *engine);
void         sherdi_modules_abandon(sherd_engine *engine);
void         sherdi_modules_close(sherd_engine *engine);

#endif
