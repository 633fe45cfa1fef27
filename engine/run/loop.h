/* The window, and the gathered units. */
#ifndef SHERDI_ENGINE_RUN_LOOP_H
#define SHERDI_ENGINE_RUN_LOOP_H

#include "engine/plan/plan.h"

/** Returns "forward", "backward" or "eval". */
const char *sherdi_pass_name(sherd_pass pass);
/** Loses the window: a rank cannot keep a gradient, or an activation. The step returns the first
 *  failure; this returns it, too. */
sherd_status sherdi_loop_lose(sherd_engine *engine, sherd_status status);
/** Ends a micro-batch: completes the gradients that are open, in the order of the plan. */
sherd_status sherdi_loop_micro_batch_end(sherd_engine *engine);
/** Begins a window, after the last one is over or dropped. */
void sherdi_loop_window_begin(sherd_engine *engine);
/** Returns whether the window is over after this number of micro-batches. */
int sherdi_loop_ends_after(const sherd_engine *engine, int micro_batches);
/** Reads parameters ahead for the next training pass. */
void sherdi_loop_fetch_ahead(sherd_engine *engine);
/** Returns a parameter's memory (the trainer's own, if it is bound). Its unit must be held. */
unsigned char *sherdi_loop_param(sherd_engine *engine, size_t param);

#endif
