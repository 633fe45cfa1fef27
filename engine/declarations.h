/* Declarations of groups and of the order of passes. */
#ifndef SHERDI_ENGINE_DECLARATIONS_H
#define SHERDI_ENGINE_DECLARATIONS_H

#include "engine/optimizers/optimizer.h"

sherd_status sherdi_model_add_group(sherdi_model *model, const sherd_group_params *params,
                                    int *out);
sherd_status sherdi_model_add_pass(sherdi_model *model, sherd_pass pass, int unit,
                                   size_t held_acquires);
/** Finds the optimizer that a group names. E_NOTSUP: there is none of that name. E_INVAL: it does
 *  not go with the engine's own. */
sherd_status sherdi_engine_find_optimizer(const sherd_engine *engine, const char *group,
                                          const char *name, const sherdi_optimizer **out);

#endif
