/* Frozen parameters: they have no state, and stand in data files of their own. */
#ifndef SHERDI_ENGINE_CHECKPOINT_FROZEN_H
#define SHERDI_ENGINE_CHECKPOINT_FROZEN_H

#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/writer.h"
#include "engine/run/engine_impl.h"

/** What this rank saves of them, in the order of its data file's tensors. Local. */
sherd_status sherdi_frozen_save(sherd_engine *engine, sherdi_writer *writer);
/** All that this rank holds of them comes from a checkpoint; `found` by parameter, below 0: keeps what it has. *sum_out
 *  is their fingerprint over all ranks. Collective. */
sherd_status sherdi_frozen_load(sherd_engine *engine, sherdi_reader *reader, const int64_t *found,
                                uint64_t *sum_out);

#endif
