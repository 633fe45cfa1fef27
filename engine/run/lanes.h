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
/** Copies bytes of the host to memory of a space; `src` may change after it returns. */
void sherdi_space_put(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                      size_t len_bytes);
/** Copies bytes of a space to the host. Blocks. */
sherd_status sherdi_space_get(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                              size_t len_bytes);

/* Returns the scalars that the kernels on memory of a space read and add to. */
static inline const sherdi_scalars *sherdi_space_scalars(const sherd_engine *engine,
                                                         sherdi_space        space)
{
    return space == SHERDI_SPACE_DEVICE ? &engine->kernel_data.device
                                        : &engine->kernel_data.on_host;
}

#endif
