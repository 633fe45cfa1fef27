/* The values of blocks, for checkpoints, and their progress. */
#ifndef SHERDI_ENGINE_RUN_BLOCKS_H
#define SHERDI_ENGINE_RUN_BLOCKS_H

#include "engine/run/run.h"

/** Copies `count` elements of a part of the operation's block to `out`; data in a device's memory
 *  is copied by the device. Call it from a sherdi_block_fn. E_DEVICE. */
sherd_status sherdi_run_block_get(sherd_engine *engine, const sherdi_op *op, int part,
                                  size_t offset_elems, size_t count, float *out);
/** Copies `values` into the part; they may change after it returns. */
void sherdi_run_block_put(sherd_engine *engine, const sherdi_op *op, int part, size_t offset_elems,
                          size_t count, const float *values);

/** Calls a `progress` that may be NULL, as a function of the program (failure.h). */
void sherdi_engine_progress(sherd_engine *engine, const char *call, sherd_progress_fn progress,
                            void *ctx, uint64_t done_bytes, uint64_t all_bytes);

#endif
