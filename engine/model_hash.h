/* What ranks, and states, compare of a model. */
#ifndef SHERDI_ENGINE_MODEL_HASH_H
#define SHERDI_ENGINE_MODEL_HASH_H

#include "engine/model.h"

/** Return how many items the ranks compare of the model, and an item's hash. */
size_t   sherdi_model_num_items(const sherdi_model *model);
uint64_t sherdi_model_item_hash(const sherdi_model *model, size_t item);
/** The same without the properties that may differ when a run continues from its state: how often
 *  backward uses a unit, whether gradients are retained, its activation, and whose memory a
 *  parameter is in. */
uint64_t sherdi_model_item_state_hash(const sherdi_model *model, size_t item);

#endif
