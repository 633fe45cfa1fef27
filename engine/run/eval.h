/* Evaluation in many passes. */
#ifndef SHERDI_ENGINE_RUN_EVAL_H
#define SHERDI_ENGINE_RUN_EVAL_H

#include "base/status.h"

/** Does the same as sherd_eval_end, except for gathered units. */
void sherdi_eval_drop(sherd_engine *engine);

#endif
