/* See kept.h. */
#include "engine/checkpoint/kept.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/text.h"
#include "engine/checkpoint/shard.h"
#include "offload/checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More stripes than a configuration can name folders, and more bytes than a set can have. */
#define MOST_STRIPES SHERDI_MAX_FOLDERS
#define MOST_BYTES   ((size_t)1 << 60)

#define NOTHING_READ SIZE_MAX

struct sherdi_kept {
    sherdi_mem            *mem;
    sherdi_json           *json; /* has the names */
    char                  *label;
    sherdi_tier_slots_file file;
    sherdi_tier_slot      *slots;
    size_t                 num_slots, cap_slots;
    sherdi_kept_tensor    *tensors;
    size_t                 num_tensors, cap_tensors;

    sherdi_ioq    *queue;
    sherdi_file   *open;
    int            rank;   /* whose it is */
    unsigned char *memory; /* room for the largest extent */
    size_t         loaded; /* the extent in it */
};

void sherdi_kept_name(int rank, int world_size, char out[SHERDI_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(out, SHERDI_CHECKPOINT_NAME_BYTES, "slots-%05d-of-%05d", rank, world_size);
}

/* ------------------------------------------------------------------- describing -- */

static void slots_print(sherdi_text *text, const sherdi_plan *plan, const sherdi_tier *tier)
{
    sherdi_text_print(text, "\"extents\": [");
    for (size_t e = 0; e < plan->num_extents[SHERDI_SPACE_STORAGE]; e++) {
        sherdi_tier_slot slot;

        sherdi_tier_state_describe(tier, e, &slot);
        sherdi_text_print(text, "%s[%zu, %zu, \"%016" PRIx64 "\"]", e == 0 ? "" : ", ",
                          slot.offset_bytes, slot.len_bytes, slot.is_written ? slot.checksum : 0);
    }
    sherdi_text_print(text, "], ");
}

static sherd_status range_print(sherdi_text *text, const sherdi_plan *plan,
                                const sherdi_model *model, const sherdi_block *block,
                                const sherdi_shard_range *range, int *is_first)
{
    const sherdi_segment *segment = &plan->segments[block->segment];

    for (int part = 0; part < sherdi_segment_parts(segment); part++) {
        size_t at =
            block->state_offset + sherdi_plan_part_offset(plan, block, part, range->offset_elems);
        char *name = sherdi_shard_tensor_name(text->mem, model->params[range->param].name,
                                              segment->optimizer->parts[part].name, range->first);

        if (name == NULL) {
            return SHERD_E_NOMEM;
        }
        sherdi_text_print(text, *is_first ? "[" : ", [");
        sherdi_text_quote(text, name);
        sherdi_text_print(text, ", %zu, %zu, %zu]", range->count, block->extent, at);
        sherdi_free(name);
        *is_first = 0;
    }
    return SHERD_OK;
}

static sherd_status tensors_print(sherdi_text *text, const sherdi_plan *plan,
                                  const sherdi_model *model)
{
    int is_first = 1;

    sherdi_text_print(text, "\"tensors\": [");
    for (size_t b = 0; b < plan->num_blocks; b++) {
        sherdi_shard_ranges ranges = sherdi_shard_saved(plan, model, &plan->blocks[b]);
        sherdi_shard_range  range;

        while (sherdi_shard_next(&ranges, &range)) {
            SHERDI_TRY(range_print(text, plan, model, &plan->blocks[b], &range, &is_first));
        }
    }
    sherdi_text_print(text, "]}");
    return text->status;
}

sherd_status sherdi_kept_describe(const sherdi_plan *plan, const sherdi_model *model,
                                  const sherdi_tier *tier, sherdi_mem *mem, char **out)
{
    sherdi_tier_slots_file file;
    sherdi_text            text;
    sherd_status           status;

    sherdi_text_init(&text, mem);
    sherdi_tier_state_describe_file(tier, &file);
    sherdi_text_print(&text, "{\"bytes\": %zu, \"stripe_bytes\": %zu, \"stripes\": %d, ",
                      file.len_bytes, file.stripe_bytes, file.num_stripes);
    slots_print(&text, plan, tier);
    status = tensors_print(&text, plan, model);
    *out   = status == SHERD_OK ? sherdi_strdup(mem, text.bytes) : NULL;
    sherdi_text_fini(&text);
    return status == SHERD_OK && *out == NULL ? SHERD_E_NOMEM : status;
}

/* ---------------------------------------------------------------------- reading -- */

static sherd_status damaged(const sherdi_kept *kept, const char *what)
{
    return sherdi_fail(SHERD_E_INVAL,
                       "%s: its description of kept state is damaged: %s; load another checkpoint",
                       kept->label, what);
}

static int size_of(const sherdi_json_node *node, size_t *out)
{
    int64_t value = -1;

    if (node == NULL || node->kind != SHERDI_JSON_NUMBER ||
        sherdi_json_integer(node, &value) != SHERDI_JSON_FITS || value < 0 ||
        (size_t)value > MOST_BYTES) {
        return 0;
    }
    *out = (size_t)value;
    return 1;
}

static const sherdi_json_node *array_of(const sherdi_json_node *object, const char *key)
{
    const sherdi_json_node *node = sherdi_json_find(object, key);

    return node == NULL || node->kind != SHERDI_JSON_ARRAY ? NULL : node;
}

static int hash_of(const sherdi_json_node *node, uint64_t *out)
{
    char *end = NULL;

    if (node == NULL || node->kind != SHERDI_JSON_STRING || strlen(node->string) != 16 ||
        strspn(node->string, "0123456789abcdef") != 16) {
        return 0;
    }
    *out = strtoull(node->string, &end, 16);
    return *end == '\0';
}

static sherd_status file_read(sherdi_kept *kept, const sherdi_json_node *root)
{
    size_t stripes;

    if (!size_of(sherdi_json_find(root, "bytes"), &kept->file.len_bytes) ||
        !size_of(sherdi_json_find(root, "stripe_bytes"), &kept->file.stripe_bytes) ||
        !size_of(sherdi_json_find(root, "stripes"), &stripes) || stripes < 1 ||
        stripes > MOST_STRIPES || kept->file.stripe_bytes == 0 ||
        kept->file.stripe_bytes % SHERD_ALIGN_BYTES != 0) {
        return damaged(kept, "its file cannot be as it says");
    }
    kept->file.num_stripes = (int)stripes;
    return SHERD_OK;
}

static sherd_status slots_read(sherdi_kept *kept, const sherdi_json_node *root)
{
    const sherdi_json_node *all = array_of(root, "extents");
    size_t                  end;

    if (all == NULL) {
        return damaged(kept, "it has no list of extents");
    }
    for (const sherdi_json_node *n = sherdi_json_first(all); n != NULL; n = sherdi_json_next(n)) {
        const sherdi_json_node *offset = sherdi_json_first(n);
        const sherdi_json_node *len    = offset == NULL ? NULL : sherdi_json_next(offset);
        sherdi_tier_slot       *slot;

        SHERDI_TRY(sherdi_grow(kept->mem, SHERDI_MEM_CONTROL, (void **)&kept->slots,
                               &kept->cap_slots, kept->num_slots + 1, sizeof(*kept->slots)));
        slot = &kept->slots[kept->num_slots++];
        if (!size_of(offset, &slot->offset_bytes) || !size_of(len, &slot->len_bytes) ||
            !hash_of(sherdi_json_next(len), &slot->checksum) ||
            slot->offset_bytes % SHERD_ALIGN_BYTES != 0 ||
            slot->len_bytes % SHERD_ALIGN_BYTES != 0 ||
            !sherdi_add_fits(slot->offset_bytes, slot->len_bytes, &end) ||
            end > kept->file.len_bytes) {
            return damaged(kept, "an extent lies outside of its file");
        }
        slot->is_written = slot->checksum != 0;
    }
    return SHERD_OK;
}

static sherd_status tensor_read(sherdi_kept *kept, const sherdi_json_node *node)
{
    const sherdi_json_node *name   = sherdi_json_first(node);
    const sherdi_json_node *count  = name == NULL ? NULL : sherdi_json_next(name);
    const sherdi_json_node *extent = count == NULL ? NULL : sherdi_json_next(count);
    const sherdi_json_node *at     = extent == NULL ? NULL : sherdi_json_next(extent);
    sherdi_kept_tensor     *tensor;
    size_t                  bytes;
    size_t                  end;

    SHERDI_TRY(sherdi_grow(kept->mem, SHERDI_MEM_CONTROL, (void **)&kept->tensors,
                           &kept->cap_tensors, kept->num_tensors + 1, sizeof(*kept->tensors)));
    tensor = &kept->tensors[kept->num_tensors++];
    if (name == NULL || name->kind != SHERDI_JSON_STRING || !size_of(count, &tensor->count) ||
        !size_of(extent, &tensor->extent) || !size_of(at, &tensor->at) ||
        tensor->extent >= kept->num_slots || tensor->at % sizeof(float) != 0 ||
        !sherdi_mul_fits(tensor->count, sizeof(float), &bytes) ||
        !sherdi_add_fits(tensor->at, bytes, &end) || end > kept->slots[tensor->extent].len_bytes) {
        return damaged(kept, "a tensor lies outside of its extent");
    }
    tensor->name = name->string;
    return SHERD_OK;
}

static sherd_status root_read(sherdi_kept *kept, const char *text)
{
    const sherdi_json_node *all;

    SHERDI_TRY(sherdi_json_parse(kept->mem, kept->label, text, strlen(text), &kept->json));
    SHERDI_TRY(file_read(kept, sherdi_json_root(kept->json)));
    SHERDI_TRY(slots_read(kept, sherdi_json_root(kept->json)));
    all = array_of(sherdi_json_root(kept->json), "tensors");
    if (all == NULL) {
        return damaged(kept, "it has no list of tensors");
    }
    for (const sherdi_json_node *n = sherdi_json_first(all); n != NULL; n = sherdi_json_next(n)) {
        SHERDI_TRY(tensor_read(kept, n));
    }
    return SHERD_OK;
}

sherd_status sherdi_kept_parse(sherdi_mem *mem, const char *label, const char *text,
                               sherdi_kept **out)
{
    sherdi_kept *kept = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*kept));
    sherd_status status;

    if (kept == NULL) {
        return SHERD_E_NOMEM;
    }
    kept->mem    = mem;
    kept->loaded = NOTHING_READ;
    kept->label  = sherdi_strdup(mem, label);
    status       = kept->label == NULL ? SHERD_E_NOMEM : root_read(kept, text);
    if (status != SHERD_OK) {
        sherdi_kept_destroy(kept);
        return status;
    }
    *out = kept;
    return SHERD_OK;
}

size_t sherdi_kept_count(const sherdi_kept *kept)
{
    return kept->num_tensors;
}

const sherdi_kept_tensor *sherdi_kept_tensor_at(const sherdi_kept *kept, size_t index)
{
    return &kept->tensors[index];
}

size_t sherdi_kept_extents(const sherdi_kept *kept)
{
    return kept->num_slots;
}

size_t sherdi_kept_extent_bytes(const sherdi_kept *kept, size_t extent)
{
    return kept->slots[extent].len_bytes;
}

sherd_status sherdi_kept_open(sherdi_kept *kept, sherdi_ioq *queue, const char *folder, int rank,
                              int world_size)
{
    char               name[SHERDI_CHECKPOINT_NAME_BYTES];
    const char        *folders[MOST_STRIPES];
    sherdi_file_params params = {.folders        = folders,
                                 .num_folders    = kept->file.num_stripes,
                                 .name           = name,
                                 .capacity_bytes = kept->file.len_bytes,
                                 .stripe_bytes   = kept->file.stripe_bytes,
                                 .flags          = SHERDI_FILE_READ};

    sherdi_kept_name(rank, world_size, name);
    for (int i = 0; i < kept->file.num_stripes; i++) {
        folders[i] = folder;
    }
    kept->queue  = queue;
    kept->rank   = rank;
    kept->loaded = NOTHING_READ;
    return sherdi_file_open(queue, &params, &kept->open);
}

/* The first one that has bytes there. */
static const char *extent_tensor(const sherdi_kept *kept, size_t extent)
{
    for (size_t t = 0; t < kept->num_tensors; t++) {
        if (kept->tensors[t].extent == extent) {
            return kept->tensors[t].name;
        }
    }
    return "none";
}

static sherd_status memory_take(sherdi_kept *kept)
{
    size_t most = SHERD_ALIGN_BYTES;

    for (size_t e = 0; e < kept->num_slots && kept->memory == NULL; e++) {
        most = sherdi_max_size(most, kept->slots[e].len_bytes);
    }
    if (kept->memory == NULL) {
        kept->memory = sherdi_alloc(kept->mem, SHERDI_MEM_HOST_STAGING, most);
    }
    return kept->memory == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

sherd_status sherdi_kept_read(sherdi_kept *kept, size_t extent, const unsigned char **out)
{
    const sherdi_tier_slot *slot = &kept->slots[extent];
    sherdi_io               io   = {.file         = kept->open,
                                    .offset_bytes = slot->offset_bytes,
                                    .len_bytes    = slot->len_bytes,
                                    .what         = "kept state",
                                    .number       = extent};

    SHERDI_TRY(memory_take(kept));
    *out = kept->memory;
    if (kept->loaded == extent) {
        return SHERD_OK;
    }
    kept->loaded = NOTHING_READ;
    if (!slot->is_written) {
        memset(kept->memory, 0, slot->len_bytes);
        kept->loaded = extent;
        return SHERD_OK;
    }
    io.memory = kept->memory;
    sherdi_io_start(kept->queue, &io);
    SHERDI_TRY(sherdi_io_wait(kept->queue, &io));
    if (sherdi_checksum(kept->memory, slot->len_bytes) != slot->checksum) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s: extent %zu of rank %d's state is not what its checksum says; damaged "
            "is tensor %s or one that follows it; load another checkpoint, or copy the "
            "file again",
            sherdi_file_path(kept->open), extent, kept->rank, extent_tensor(kept, extent));
    }
    kept->loaded = extent;
    return SHERD_OK;
}

void sherdi_kept_close(sherdi_kept *kept)
{
    sherdi_file_close(kept->open, 0);
    sherdi_free(kept->memory);
    kept->open   = NULL;
    kept->memory = NULL;
    kept->loaded = NOTHING_READ;
}

void sherdi_kept_destroy(sherdi_kept *kept)
{
    if (kept == NULL) {
        return;
    }
    sherdi_kept_close(kept);
    sherdi_json_destroy(kept->json);
    sherdi_free(kept->slots);
    sherdi_free(kept->tensors);
    sherdi_free(kept->label);
    sherdi_free(kept);
}
