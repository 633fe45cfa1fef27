/* Saves and loads frozen parameters, which have no state and are in data files of their own.
 * save_data.c and load.c call this. */
#ifndef SHERDI_ENGINE_CHECKPOINT_FROZEN_H
#define SHERDI_ENGINE_CHECKPOINT_FROZEN_H

#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/writer.h"
#include "engine/run/engine_impl.h"

/** Writes this rank's share of the frozen parameters, in the order of the tensors in its data file.
 *  Local; blocks. */
sherd_status sherdi_frozen_save(sherd_engine *engine, sherdi_writer *writer);
/** Loads this rank's part of the frozen parameters. `found` has, by parameter, its number in the
 *  manifest; below 0, the parameter keeps its values. *sum_out is the fingerprint of all frozen
 *  parameters over all ranks. Collective. */
sherd_status sherdi_frozen_load(sherd_engine *engine, sherdi_reader *reader, const int64_t *found,
                                uint64_t *sum_out);

#endif
