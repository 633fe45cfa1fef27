/* A dynamic loss scale in the life of an engine. */
#include "engine/modules.h"
#include "engine/optimizers/scaling.h"

const sherdi_module sherdi_module_scaling = {.scaler_update = sherdi_scaler_update};
