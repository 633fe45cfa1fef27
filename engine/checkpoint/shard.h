/* What a rank saves: of every segment the slice of its number, whatever the stage, so that the ranks share the work and
 * no element is written twice. Pure: from plan and model alone. */
#ifndef SHERDI_ENGINE_CHECKPOINT_SHARD_H
#define SHERDI_ENGINE_CHECKPOINT_SHARD_H

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/plan/plan.h"
#include "engine/run/blobs.h"

/* Elements of one parameter that lie one behind the other in a block. */
typedef struct sherdi_shard_range {
    size_t param;
    size_t first, count; /* row-major, in the parameter */
    size_t offset_elems; /* of the first in the block's parts */
} sherdi_shard_range;

/* Goes over the ranges of a block: all of them, or those that this rank saves. */
typedef struct sherdi_shard_ranges {
    const sherdi_plan  *plan;
    const sherdi_model *model;
    const sherdi_block *block;
    size_t              begin, end; /* of the segment's whole */
    size_t              next;       /* span */
} sherdi_shard_ranges;

sherdi_shard_ranges sherdi_shard_saved(const sherdi_plan *plan, const sherdi_model *model,
                                       const sherdi_block *block);
sherdi_shard_ranges sherdi_shard_all(const sherdi_plan *plan, const sherdi_model *model,
                                     const sherdi_block *block);
/** 0: there is none any more. */
int sherdi_shard_next(sherdi_shard_ranges *ranges, sherdi_shard_range *out);

/** What this rank saves of a frozen parameter: [*first, *first + count). Returns count, 0 of a trainable one. */
size_t sherdi_shard_frozen(const sherdi_plan *plan, const sherdi_model *model, size_t param,
                           size_t *first);

/** "NAME:PART:FIRST"; in memory of the account. NULL: E_NOMEM. */
char *sherdi_shard_tensor_name(sherdi_mem *mem, const char *param, const char *part, size_t first);

/** Adds the tensors of this rank's data file in the order in which their bytes follow. E_NOMEM. */
sherd_status sherdi_shard_add(const sherdi_plan *plan, const sherdi_model *model,
                              sherdi_data_file which, sherdi_safetensors_builder *builder);
/** What a blob is called in a data file: these, and its key. */
#define SHERDI_BLOB_TENSOR         "blob:"
#define SHERDI_BLOB_OF_RANK_TENSOR "blob-of-rank:"
/** Adds the blobs that this rank saves: its own, and rank 0 the run's. E_NOMEM. */
sherd_status sherdi_shard_add_blobs(const sherdi_blobs *blobs, int rank,
                                    sherdi_safetensors_builder *builder);
/** The next one of them, from index *at of the list on; NULL: there are no more. */
const sherdi_blob *sherdi_shard_next_blob(const sherdi_blobs *blobs, int rank, size_t *at);

/** Bytes of these tensors. */
uint64_t sherdi_shard_bytes(const sherdi_plan *plan, const sherdi_model *model,
                            sherdi_data_file which);

#endif
