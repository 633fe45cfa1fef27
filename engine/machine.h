/* The properties of the machine for the plan. */
#ifndef SHERDI_ENGINE_MACHINE_H
#define SHERDI_ENGINE_MACHINE_H

#include "collectives/world.h"
#include "engine/plan/plan.h"

/** Measures this host; the results are the same on all ranks. Collective. */
sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out);

#endif
