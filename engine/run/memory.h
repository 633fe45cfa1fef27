/* Memory of the trainer that is bound to parameters, and addresses that stay. */
#ifndef SHERDI_ENGINE_RUN_MEMORY_H
#define SHERDI_ENGINE_RUN_MEMORY_H

#include "engine/run/engine_impl.h"

/** Binds memory to a parameter of the model. E_INVAL: the parameter does not exist, or cannot have
 *  this memory. */
sherd_status sherdi_model_bind(sherdi_model *model, int param, void *data, void *grad);
/** Like sherd_param_address and sherd_param_grad_address, with a status; messages name
 *  `call`. */
sherd_status sherdi_param_locate(sherd_engine *engine, const char *call, sherd_param param,
                                 void **out);
sherd_status sherdi_param_locate_grad(sherd_engine *engine, const char *call, sherd_param param,
                                      void **out);

#endif
