/* Evaluation in many passes. */
#ifndef SHERDI_ENGINE_RUN_EVAL_H
#define SHERDI_ENGINE_RUN_EVAL_H

#include "base/status.h"

/** Does what sherd_eval_end does, except for what is gathered. */
void sherdi_eval_drop(sherd_engine *engine);

#endif
