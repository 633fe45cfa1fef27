/* Functions of engine.c, info.c and machine.c. */
#ifndef SHERDI_ENGINE_ENGINE_H
#define SHERDI_ENGINE_ENGINE_H

#include "collectives/world.h"
#include "engine/plan/plan.h"

/** Makes a lane of the stream the compute lane, and destroys the lane before it. */
sherd_status sherdi_engine_lane(sherd_engine *engine, void *stream);
/** Makes a buffer of the plan in memory of this host. E_NOMEM. */
sherd_status sherdi_engine_buffer_open(sherd_engine *engine, const sherdi_plan_buffer *buffer,
                                       void **out);
/** Measures this host for the plan; the results are the same on all ranks. Collective. */
sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out);
/** Makes this rank's plan for a machine, from the declarations. */
sherd_status sherdi_engine_plan_make(sherd_engine *engine, const sherdi_machine *machine,
                                     sherdi_plan **out);

/** Make the plan and open all it needs, a collective call; close it, also after a failure. */
sherd_status sherdi_engine_parts_open(sherd_engine *engine, const sherdi_machine *machine);
void         sherdi_engine_parts_close(sherd_engine *engine);

/** Check a call that asks for a fingerprint, and give the sum of the shares of the ranks; if every
 *  rank has everything (`is_shared_out` 0), one share is all. Collective. */
sherd_status sherdi_fingerprint_check(sherd_engine *engine, const void *out, const char *call);
sherd_status sherdi_fingerprint_sum(sherd_engine *engine, sherd_status status, uint64_t share,
                                    int is_shared_out, uint64_t *out);

#endif
