/* What engine.c has for the calls that report on a plan. */
#ifndef SHERDI_ENGINE_ENGINE_H
#define SHERDI_ENGINE_ENGINE_H

#include "engine/plan/plan.h"

/** Makes this rank's plan for a machine, from what is declared. */
sherd_status sherdi_engine_plan_make(sherd_engine *engine, const sherdi_machine *machine,
                                     sherdi_plan **out);

#endif
