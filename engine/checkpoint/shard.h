/* The data that a rank saves: rank r saves the r-th slice of every segment, at every stage, so the
 * ranks divide the work and no element is written twice. These functions are pure and depend only
 * on plan and model. Saving uses them, and loading for the ranges of a block. */
#ifndef SHERDI_ENGINE_CHECKPOINT_SHARD_H
#define SHERDI_ENGINE_CHECKPOINT_SHARD_H

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/plan/plan.h"
#include "engine/run/blobs.h"

/* Consecutive elements of one parameter in a block. */
typedef struct sherdi_shard_range {
    size_t param;
    size_t first, count; /* row-major, in the parameter */
    size_t offset_elems; /* of the first element in the block's parts */
} sherdi_shard_range;

/* An iterator over the ranges of a block: all of them, or those that this rank saves. */
typedef struct sherdi_shard_ranges {
    const sherdi_plan  *plan;
    const sherdi_model *model;
    const sherdi_block *block;
    size_t              begin, end; /* elements of the whole segment */
    size_t              next;       /* the next span */
} sherdi_shard_ranges;

/** Returns whether this rank saves values: those of the first replica do, since the others have the
 *  same. Blobs are saved by every rank. */
static inline int sherdi_shard_is_saver(const sherdi_plan *plan)
{
    return plan->replica == 0;
}

sherdi_shard_ranges sherdi_shard_saved(const sherdi_plan *plan, const sherdi_model *model,
                                       const sherdi_block *block);
sherdi_shard_ranges sherdi_shard_all(const sherdi_plan *plan, const sherdi_model *model,
                                     const sherdi_block *block);
/** Gives the next range and returns 1; 0: there are no more. */
int sherdi_shard_next(sherdi_shard_ranges *ranges, sherdi_shard_range *out);

/** Returns the range of a frozen parameter that this rank saves: [*first, *first + count). Returns
 *  count; 0 for a trainable parameter. */
size_t sherdi_shard_frozen(const sherdi_plan *plan, const sherdi_model *model, size_t param,
                           size_t *first);

/** Returns "NAME:PART:FIRST", in memory of the account, which the caller frees; NULL: E_NOMEM. */
char *sherdi_shard_tensor_name(sherdi_mem *mem, const char *param, const char *part, size_t first);

/** Adds the tensors of this rank's data file to its header, in the order of their bytes.
 *  E_NOMEM. */
sherd_status sherdi_shard_add(const sherdi_plan *plan, const sherdi_model *model,
                              sherdi_data_file which, sherdi_safetensors_builder *builder);
/** Returns the prefix of the name of a blob in a data file; its key follows. */
const char *sherdi_shard_blob_prefix(sherdi_blob_kind kind, int is_large);
/** Adds the blobs that this rank saves: its own, and on rank 0 those of the run. E_NOMEM. */
sherd_status sherdi_shard_add_blobs(const sherdi_blobs *blobs, int rank,
                                    sherdi_safetensors_builder *builder);
/** Returns the next of these blobs, from index *at of the list on; NULL: there are no more. */
const sherdi_blob *sherdi_shard_next_blob(const sherdi_blobs *blobs, int rank, size_t *at);

/** Returns the bytes of the tensors that sherdi_shard_add adds. */
uint64_t sherdi_shard_bytes(const sherdi_plan *plan, const sherdi_model *model,
                            sherdi_data_file which);

#endif
