/* Declares an architecture (models/arch.h) on an engine: the part of the life cycle between create
 * and seal. */
#ifndef LLM_DECLARE_H
#define LLM_DECLARE_H

#include "models/arch.h"
#include "models/places.h"
#include "sherd.h"

/** Declares the model on an engine that has no units yet, so unit u gets the handle u, and
 *  parameter k the handle k. The last unit also reads parameter 0, because the head is tied to it.
 *  The passes keep their default orders. */
SHERD_MUST_USE sherd_status arch_declare(const arch *model, sherd_engine *engine);

/** Declares the activations of the layers that are moved, on an engine that has the model and is
 *  not sealed. */
SHERD_MUST_USE sherd_status activations_declare(const arch *model, const layer_places *places,
                                                size_t length, sherd_engine *engine);

#endif
