/* Shared by export.c and import.c: an engine as the model against which maps are checked. */
#ifndef SHERDI_CHECKPOINT_EXPORT_H
#define SHERDI_CHECKPOINT_EXPORT_H

#include "engine/checkpoint/weights.h"
#include "engine/run/engine_impl.h"

/** Returns the engine's parameters as a model; it borrows the engine. */
sherdi_weights_model sherdi_weights_model_of(const sherd_engine *engine);
/** Reads the params of an export and checks them. */
sherd_status sherdi_export_params_read(const sherd_export_params *params, sherd_export_params *out);
/** Returns the value that a map names. NULL is the weights: the compute value of a frozen
 *  parameter, else the master. */
sherd_value sherdi_weights_value_of(const sherd_engine *engine, int param, const char *value);

#endif
