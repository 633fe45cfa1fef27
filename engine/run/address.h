/* Where parameters and gradients are. */
#ifndef SHERDI_ENGINE_RUN_ADDRESS_H
#define SHERDI_ENGINE_RUN_ADDRESS_H

#include "engine/run/engine_impl.h"

/** The address of parameters without elements; nobody reads or writes it. */
extern unsigned char sherdi_no_elements[];
/** Returns the bytes before a parameter in its segment. */
size_t sherdi_param_offset(const sherd_engine *engine, sherd_param param);
/** Gives the gradient of a parameter of the segment. E_STATE: it is frozen. */
sherd_status sherdi_param_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                   sherd_param param, void **out);

#endif
