/* What exporting and importing share: an engine as the model that maps are held against. */
#ifndef SHERDI_CHECKPOINT_EXPORT_H
#define SHERDI_CHECKPOINT_EXPORT_H

#include "engine/checkpoint/weights.h"
#include "engine/run/engine_impl.h"

/** Borrows the engine. */
sherdi_weights_model sherdi_weights_model_of(const sherd_engine *engine);
/** What a map's value stands for; of NULL the weights, by what the parameter has. */
sherd_value sherdi_weights_value_of(const sherd_engine *engine, int param, const char *value);
/** sherdi_agree_status of the engine that is `ctx`. */
sherd_status sherdi_weights_agree(void *ctx, sherd_status own);
/** E_STATE before seal. */
sherd_status sherdi_weights_check_phase(const sherd_engine *engine);

#endif
