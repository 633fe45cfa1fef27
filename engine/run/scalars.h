/* The small data of kernels, and the results that they add to it. */
#ifndef SHERDI_ENGINE_RUN_SCALARS_H
#define SHERDI_ENGINE_RUN_SCALARS_H

#include "engine/run/engine_impl.h"

/** Returns the scalars of one side, at `memory`. */
sherdi_scalars sherdi_scalars_at(const sherdi_plan *plan, unsigned char *memory);
/** Returns the number of norms of tensors. */
static inline size_t sherdi_scalars_norms(const sherdi_plan *plan)
{
    return (plan->scalars.results_bytes - sizeof(sherdi_scalars_head)) / sizeof(sherdi_norm_acc);
}
/** Returns the scalars that the kernels on memory of a space read and add to. */
static inline const sherdi_scalars *sherdi_space_scalars(const sherd_engine *engine,
                                                         sherdi_space        space)
{
    return space == SHERDI_SPACE_DEVICE ? &engine->kernel_data.device
                                        : &engine->kernel_data.on_host;
}
sherd_status sherdi_scalars_open(sherd_engine *engine);
void         sherdi_scalars_close(sherd_engine *engine);
/** SHERDI_OP_COLLECT: puts the results of both sides together, or their fingerprint alone, into
 *  kernel_data.results, with norms normalised; adds the device's norms of tensors, which have come
 *  down, to the host's. */
void sherdi_kernel_collect(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op);

#endif
