/* Functions of engine.c for the calls that report on a plan, and for modules. */
#ifndef SHERDI_ENGINE_ENGINE_H
#define SHERDI_ENGINE_ENGINE_H

#include "engine/plan/plan.h"

/** Finds the optimizer that a group names. E_NOTSUP: there is none of that name. E_INVAL: it does
 *  not go with the engine's own. */
sherd_status sherdi_engine_find_optimizer(const sherd_engine *engine, const char *group,
                                          const char *name, const sherdi_optimizer **out);
/** Makes this rank's plan for a machine, from the declarations. */
sherd_status sherdi_engine_plan_make(sherd_engine *engine, const sherdi_machine *machine,
                                     sherdi_plan **out);

/** Returns the sealed plan, or one that is made for this call from the declarations so far. The
 *  second call gives it back. */
sherd_status sherdi_engine_plan_borrow(sherd_engine *engine, const char *call, sherdi_plan **out);
void         sherdi_engine_plan_return(const sherd_engine *engine, sherdi_plan *plan);

/** Allocates the tables that the loop needs, because the loop itself allocates nothing. A dry
 *  engine (dry.h) has none of the messages about other ranks. E_NOMEM. */
sherd_status sherdi_engine_tables_open(sherd_engine *engine, int is_dry);
/** Frees them; accepts tables that were not opened. */
void sherdi_engine_tables_close(sherd_engine *engine);

#endif
