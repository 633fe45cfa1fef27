/* See shard.h. */
#include "engine/plan/checkpoint.h"
#include "engine/checkpoint/shard.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

static sherdi_shard_ranges ranges_of(const sherdi_plan *plan, const sherdi_model *model,
                                     const sherdi_block *block, size_t begin, size_t end)
{
    return (sherdi_shard_ranges){
        .plan = plan, .model = model, .block = block, .begin = begin, .end = end};
}

sherdi_shard_ranges sherdi_shard_saved(const sherdi_plan *plan, const sherdi_model *model,
                                       const sherdi_block *block)
{
    size_t slice = sherdi_block_segment(plan, block)->slice_elems;
    size_t begin = (size_t)plan->rank * slice;

    return ranges_of(plan, model, block, begin,
                     sherdi_shard_is_saver(plan) ? begin + slice : begin);
}

sherdi_shard_ranges sherdi_shard_all(const sherdi_plan *plan, const sherdi_model *model,
                                     const sherdi_block *block)
{
    return ranges_of(plan, model, block, 0, SIZE_MAX);
}

int sherdi_shard_next(sherdi_shard_ranges *ranges, sherdi_shard_range *out)
{
    const sherdi_block *block = ranges->block;
    /* where the block begins in the whole segment */
    size_t first = sherdi_block_segment(ranges->plan, block)->own_first + block->offset_elems;

    while (ranges->next < block->num_spans) {
        const sherdi_span *span  = &ranges->plan->layout.spans[block->first_span + ranges->next++];
        size_t             begin = sherdi_max_size(ranges->begin, first + span->offset_elems);
        size_t end = sherdi_min_size(ranges->end, first + span->offset_elems + span->count_elems);

        if (begin < end) {
            out->param        = (size_t)span->param;
            out->offset_elems = begin - first;
            out->first =
                (size_t)(span->first_index - ranges->model->params[span->param].first_index) +
                (out->offset_elems - span->offset_elems);
            out->count = end - begin;
            return 1;
        }
    }
    return 0;
}

size_t sherdi_shard_frozen(const sherdi_plan *plan, const sherdi_model *model, size_t param,
                           size_t *first)
{
    const sherdi_segment *segment = &plan->layout.segments[plan->layout.params[param].segment];
    size_t                start   = plan->layout.params[param].offset_elems;
    size_t                begin   = segment->slice_first;
    size_t                end     = begin + segment->slice_elems;

    begin  = sherdi_max_size(begin, start);
    end    = sherdi_min_size(end, start + model->params[param].elems);
    *first = begin - start;
    return segment->kind == SHERDI_SEGMENT_FROZEN && begin < end && sherdi_shard_is_saver(plan)
               ? end - begin
               : 0;
}

char *sherdi_shard_tensor_name(sherdi_mem *mem, const char *param, const char *part, size_t first)
{
    size_t bytes = strlen(param) + strlen(part) + 32;
    char  *name  = sherdi_alloc(mem, SHERDI_MEM_CONTROL, bytes);

    if (name != NULL) {
        (void)snprintf(name, bytes, "%s:%s:%zu", param, part, first);
    }
    return name;
}

/* Adds a tensor. A whole parameter keeps its shape; a part of one has one dimension. */
static sherd_status tensor_add(const sherdi_plan *plan, const sherdi_model_param *param,
                               const char *part, sherdi_tensor_dtype dtype, size_t first,
                               size_t count, sherdi_safetensors_builder *builder)
{
    char        *name     = sherdi_shard_tensor_name(plan->mem, param->name, part, first);
    int          is_whole = count == param->elems;
    sherd_status status;

    if (name == NULL) {
        return SHERD_E_NOMEM;
    }
    status = sherdi_safetensors_add(builder, name, dtype, is_whole ? param->ndim : 1,
                                    is_whole ? param->shape : &count, NULL);
    sherdi_free(name);
    return status;
}

static sherd_status block_add(const sherdi_plan *plan, const sherdi_model *model,
                              const sherdi_block *block, sherdi_safetensors_builder *builder)
{
    const sherdi_segment *segment = sherdi_block_segment(plan, block);
    sherdi_shard_ranges   ranges  = sherdi_shard_saved(plan, model, block);
    sherdi_shard_range    range;

    while (sherdi_shard_next(&ranges, &range)) {
        for (int i = 0; i < sherdi_segment_parts(segment); i++) {
            SHERDI_TRY(tensor_add(plan, &model->params[range.param],
                                  segment->optimizer->parts[i].name, SHERDI_TENSOR_F32, range.first,
                                  range.count, builder));
        }
    }
    return SHERD_OK;
}

static sherd_status frozen_add(const sherdi_plan *plan, const sherdi_model *model,
                               sherdi_safetensors_builder *builder)
{
    static const sherdi_tensor_dtype DTYPES[] = {[SHERD_F32]  = SHERDI_TENSOR_F32,
                                                 [SHERD_BF16] = SHERDI_TENSOR_BF16,
                                                 [SHERD_F16]  = SHERDI_TENSOR_F16};

    for (size_t p = 0; p < model->num_params; p++) {
        size_t first;
        size_t count = sherdi_shard_frozen(plan, model, p, &first);

        if (count > 0) {
            SHERDI_TRY(tensor_add(plan, &model->params[p], SHERDI_FROZEN_PART,
                                  DTYPES[sherdi_param_segment(plan, p)->types.compute], first,
                                  count, builder));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_shard_add(const sherdi_plan *plan, const sherdi_model *model,
                              sherdi_data_file which, sherdi_safetensors_builder *builder)
{
    if (which == SHERDI_DATA_FROZEN) {
        return frozen_add(plan, model, builder);
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        SHERDI_TRY(block_add(plan, model, &plan->layout.blocks[b], builder));
    }
    return SHERD_OK;
}

#define BLOB_PREFIX_BYTES 24 /* most bytes of one */

const char *sherdi_shard_blob_prefix(sherdi_blob_kind kind, int is_large)
{
    static const char PREFIXES[SHERDI_BLOB_KINDS][2][BLOB_PREFIX_BYTES] = {
        [SHERDI_BLOB_GLOBAL]  = {"blob:", "large-blob:"},
        [SHERDI_BLOB_OF_RANK] = {"blob-of-rank:", "large-blob-of-rank:"}};

    return PREFIXES[kind][is_large];
}

const sherdi_blob *sherdi_shard_next_blob(const sherdi_blobs *blobs, int rank, size_t *at)
{
    while (*at < blobs->count) {
        const sherdi_blob *blob = &blobs->list[(*at)++];

        if (blob->kind == SHERDI_BLOB_GLOBAL ? rank == 0 : blob->rank == rank) {
            return blob;
        }
    }
    return NULL;
}

sherd_status sherdi_shard_add_blobs(const sherdi_blobs *blobs, int rank,
                                    sherdi_safetensors_builder *builder)
{
    char               name[BLOB_PREFIX_BYTES + SHERD_BLOB_KEY_BYTES];
    size_t             at = 0;
    const sherdi_blob *blob;

    while ((blob = sherdi_shard_next_blob(blobs, rank, &at)) != NULL) {
        (void)snprintf(name, sizeof(name), "%s%s",
                       sherdi_shard_blob_prefix(blob->kind, blob->is_large), blob->key);
        SHERDI_TRY(
            sherdi_safetensors_add(builder, name, SHERDI_TENSOR_U8, 1, &blob->len_bytes, NULL));
    }
    return SHERD_OK;
}

uint64_t sherdi_shard_bytes(const sherdi_plan *plan, const sherdi_model *model,
                            sherdi_data_file which)
{
    uint64_t bytes = 0;
    size_t   first;

    if (which == SHERDI_DATA_FROZEN) {
        for (size_t p = 0; p < model->num_params; p++) {
            bytes += sherdi_shard_frozen(plan, model, p, &first) *
                     sherdi_saved_bytes(sherdi_param_segment(plan, p));
        }
        return bytes;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_shard_ranges ranges = sherdi_shard_saved(plan, model, &plan->layout.blocks[b]);
        sherdi_shard_range  range;

        while (sherdi_shard_next(&ranges, &range)) {
            bytes += range.count * sherdi_saved_bytes(sherdi_param_segment(plan, range.param));
        }
    }
    return bytes;
}
