/* The before-image: a copy of the state as it was before the last update, where others find it
 * (sherd.redundancy "host"). Ranks make an update by whole matrices (Muon) together, so survivors
 * cannot end that of a lost rank: all undo it, and make the step again. */
#ifndef SHERDI_ENGINE_ELASTIC_IMAGE_H
#define SHERDI_ENGINE_ELASTIC_IMAGE_H

#include "engine/run/engine_impl.h"

/** Returns the bytes of the before-image, a multiple of 64; 0: no update is undone. */
size_t sherdi_image_bytes(const sherdi_plan *plan);
/** Copies state and parameters of this rank to `image`, in memory of the host. E_DEVICE. */
sherd_status sherdi_image_take(const sherd_engine *engine, unsigned char *image);
/** Copies them back; without `has_own` all but the parameters in SHERDI_BUFFER_PARAMS. E_DEVICE. */
sherd_status sherdi_image_restore(const sherd_engine *engine, unsigned char *image, int has_own);

#endif
