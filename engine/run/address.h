/* Where parameters and gradients are. */
#ifndef SHERDI_ENGINE_RUN_ADDRESS_H
#define SHERDI_ENGINE_RUN_ADDRESS_H

#include "base/status.h"

/** Like sherd_param_address and sherd_param_grad_address, with a status; messages name `call`. */
sherd_status sherdi_param_locate(sherd_engine *engine, const char *call, sherd_param param,
                                 void **out);
sherd_status sherdi_param_locate_grad(sherd_engine *engine, const char *call, sherd_param param,
                                      void **out);

#endif
