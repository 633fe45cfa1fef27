/* An architecture on an engine: the part of the life cycle between create and seal. */
#ifndef LLM_DECLARE_H
#define LLM_DECLARE_H

#include "models/arch.h"
#include "sherd.h"

/** Declares the model on an engine that has no units yet: so the handle of unit u is u, that of
 *  parameter k is k. The last unit reads parameter 0, the tied head; passes keep their
 *  default orders. */
SHERD_MUST_USE sherd_status arch_declare(const arch *model, sherd_engine *engine);

#endif
