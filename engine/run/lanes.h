/* The lanes of an engine, and copies from one kind of memory to the other. */
#ifndef SHERDI_ENGINE_RUN_LANES_H
#define SHERDI_ENGINE_RUN_LANES_H

#include "engine/run/engine_impl.h"

/** Open and close the marks, and the lanes of this build. E_NOMEM, E_DEVICE. */
sherd_status sherdi_lanes_open(sherd_engine *engine);
void         sherdi_lanes_close(sherd_engine *engine);
/** Returns whether device memory is separate from the host's. */
static inline int sherdi_has_device(const sherd_engine *engine)
{
    return engine->backend->device->is_async;
}
/** Returns a lane whose kernels work on memory of a space. */
static inline const sherdi_backend *sherdi_space_lane(const sherd_engine *engine,
                                                      sherdi_space        space)
{
    return space == SHERDI_SPACE_DEVICE ? engine->backend : engine->host;
}

/* Returns the scalars that the kernels on memory of a space read and add to. */
static inline const sherdi_scalars *sherdi_space_scalars(const sherd_engine *engine,
                                                         sherdi_space        space)
{
    return space == SHERDI_SPACE_DEVICE ? &engine->kernel_data.device
                                        : &engine->kernel_data.on_host;
}

#endif
