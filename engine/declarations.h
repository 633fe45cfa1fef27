/* Declarations of groups and of the order of passes. */
#ifndef SHERDI_ENGINE_DECLARATIONS_H
#define SHERDI_ENGINE_DECLARATIONS_H

#include "engine/model.h"

sherd_status sherdi_model_add_group(sherdi_model *model, const sherd_group_params *params,
                                    int *out);
sherd_status sherdi_model_add_pass(sherdi_model *model, sherd_pass pass, int unit,
                                   size_t held_acquires);

#endif
