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

/* Limits for descriptions: no more stripes than a configuration can name folders, and more bytes than any set has. */
#define MOST_STRIPES SHERDI_MAX_FOLDERS
#define MOST_BYTES   ((size_t)1 << 60)

#define NOTHING_READ SIZE_MAX

/* Elements that are decoded at once; a multiple of the chunk. */
#define DECODED_ELEMS ((size_t)4096)

/* The names of encodings in the description: how parts are stored, not what a configuration asks for. */
static const char *const ENCODINGS[SHERDI_ENCODINGS] = {"F32",          "BF16", "BESIDE",
                                                        "BESIDE_PLANE", "FP8",  "UFP8"};

/* An extent in memory that has room for the largest one. */
typedef struct read_extent {
    unsigned char *memory;
    size_t         number; /* NOTHING_READ: none */
} read_extent;

struct sherdi_kept {
    sherdi_mem             *mem;
    sherdi_json            *json; /* owns the names of tensors */
    char                   *label;
    sherdi_state_slots_file file;
    sherdi_state_slot      *slots;
    size_t                  num_slots, cap_slots;
    sherdi_kept_tensor     *tensors;
    size_t                  num_tensors, cap_tensors;

    sherdi_ioq  *queue;
    sherdi_file *open;
    int          rank;          /* that saved it */
    read_extent  state, values; /* bf16 values of encoded masters may lie in another extent */
    float       *decoded;
};

void sherdi_kept_name(int rank, int world_size, char out[SHERDI_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(out, SHERDI_CHECKPOINT_NAME_BYTES, "slots-%05d-of-%05d", rank, world_size);
}

/* ------------------------------------------------------------------- describing -- */

static void slots_print(sherdi_text *text, const sherdi_plan *plan, const sherdi_state *state)
{
    sherdi_text_print(text, "\"extents\": [");
    for (size_t e = 0; e < sherdi_plan_stored(plan); e++) {
        sherdi_state_slot slot;

        sherdi_state_describe(state, e, &slot);
        sherdi_text_print(text, "%s[%zu, %zu, \"%016" PRIx64 "\"]", e == 0 ? "" : ", ",
                          slot.offset_bytes, slot.len_bytes, slot.is_written ? slot.checksum : 0);
    }
    sherdi_text_print(text, "], ");
}

/* A list that is printed: the parts that are plain fp32, or those that are not. */
typedef struct listing {
    sherdi_text        *text;
    const sherdi_plan  *plan;
    const sherdi_model *model;
    int                 is_encoded, is_first;
} listing;

static size_t part_at(const listing *l, const sherdi_block *block, int part, size_t offset_elems)
{
    return block->state_offset + sherdi_plan_part_offset(l->plan, block, part, offset_elems);
}

/* Prints, for a part that is not plain fp32, its encoding. A master beside its parameter follows with the extent and offset of
 * its bf16 values, then the offset of the part with its ties and the encoding of that part. A part whose signs are ties says so. */
static void encoding_print(const listing *l, const sherdi_block *block, int part,
                           size_t offset_elems)
{
    const sherdi_segment *segment = &l->plan->layout.segments[block->segment];
    sherdi_text          *text    = l->text;

    sherdi_text_print(text, ", \"%s\"", ENCODINGS[segment->encodings[part]]);
    if (part > 0) {
        sherdi_text_print(text, "%s", part == segment->ties_part ? ", \"ties\"" : "");
    } else if (sherdi_segment_is_beside(segment)) {
        size_t head    = l->plan->offload.extents[SHERDI_SPACE_STORAGE][block->extent].len_bytes;
        int    is_tail = block->value_offset >= head;
        size_t extent =
            block->extent + (is_tail ? l->plan->offload.num_extents[SHERDI_SPACE_STORAGE] : 0);

        sherdi_text_print(text, ", %zu, %zu", extent,
                          block->value_offset - (is_tail ? head : 0) +
                              offset_elems * sizeof(uint16_t));
        if (segment->ties_part > 0) {
            sherdi_text_print(text, ", %zu, \"%s\"",
                              part_at(l, block, segment->ties_part, offset_elems),
                              ENCODINGS[segment->encodings[segment->ties_part]]);
        }
    }
}

static sherd_status range_print(listing *l, const sherdi_block *block,
                                const sherdi_shard_range *range)
{
    const sherdi_segment *segment = &l->plan->layout.segments[block->segment];

    for (int part = 0; part < sherdi_segment_parts(segment); part++) {
        char *name;

        if (sherdi_segment_part_is_encoded(segment, part) != l->is_encoded) {
            continue;
        }
        name = sherdi_shard_tensor_name(l->text->mem, l->model->params[range->param].name,
                                        segment->optimizer->parts[part].name, range->first);
        if (name == NULL) {
            return SHERD_E_NOMEM;
        }
        sherdi_text_print(l->text, l->is_first ? "[" : ", [");
        sherdi_text_quote(l->text, name);
        sherdi_text_print(l->text, ", %zu, %zu, %zu", range->count, block->extent,
                          part_at(l, block, part, range->offset_elems));
        if (l->is_encoded) {
            encoding_print(l, block, part, range->offset_elems);
        }
        sherdi_text_print(l->text, "]");
        sherdi_free(name);
        l->is_first = 0;
    }
    return SHERD_OK;
}

static sherd_status list_print(listing *l, const char *key)
{
    l->is_first = 1;
    sherdi_text_print(l->text, "\"%s\": [", key);
    for (size_t b = 0; b < l->plan->layout.num_blocks; b++) {
        sherdi_shard_ranges ranges =
            sherdi_shard_saved(l->plan, l->model, &l->plan->layout.blocks[b]);
        sherdi_shard_range range;

        while (sherdi_shard_next(&ranges, &range)) {
            SHERDI_TRY(range_print(l, &l->plan->layout.blocks[b], &range));
        }
    }
    sherdi_text_print(l->text, "]");
    return l->text->status;
}

/* Encoded parts are in a list of their own, so a reader that does not know encodings does not find them. */
static sherd_status tensors_print(sherdi_text *text, const sherdi_plan *plan,
                                  const sherdi_model *model)
{
    listing l = {.text = text, .plan = plan, .model = model};

    SHERDI_TRY(list_print(&l, "tensors"));
    for (size_t s = 0; s < plan->layout.num_segments && !l.is_encoded; s++) {
        l.is_encoded = sherdi_segment_is_encoded(&plan->layout.segments[s]);
    }
    if (l.is_encoded) {
        sherdi_text_print(text, ", ");
        SHERDI_TRY(list_print(&l, "encoded"));
    }
    sherdi_text_print(text, "}");
    return text->status;
}

sherd_status sherdi_kept_describe(const sherdi_plan *plan, const sherdi_model *model,
                                  const sherdi_state *state, sherdi_mem *mem, char **out)
{
    sherdi_state_slots_file file;
    sherdi_text             text;
    sherd_status            status;

    sherdi_text_init(&text, mem);
    sherdi_state_describe_file(state, &file);
    sherdi_text_print(&text, "{\"bytes\": %zu, \"stripe_bytes\": %zu, \"stripes\": %d, ",
                      file.len_bytes, file.stripe_bytes, file.num_stripes);
    slots_print(&text, plan, state);
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
        sherdi_state_slot      *slot;

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

/* Returns whether `count` elements from `at` on lie inside an extent. */
static int lies_inside(const sherdi_kept *kept, size_t extent, size_t at, sherdi_encoding encoding,
                       size_t count)
{
    size_t chunks = sherdi_div_up(count, SHERD_CHUNK_ELEMS);
    size_t bytes;
    size_t end;

    return extent < kept->num_slots &&
           (encoding == SHERDI_ENCODING_F32 /* needs no whole chunks */
                ? sherdi_mul_fits(count, sizeof(float), &bytes)
                : sherdi_mul_fits(chunks, sherdi_encoding_chunk_bytes(encoding), &bytes)) &&
           sherdi_add_fits(at, bytes, &end) && end <= kept->slots[extent].len_bytes;
}

static int encoding_of(const sherdi_json_node *node, sherdi_encoding *out)
{
    for (int e = 0; e < SHERDI_ENCODINGS && node != NULL && node->kind == SHERDI_JSON_STRING; e++) {
        if (strcmp(node->string, ENCODINGS[e]) == 0) {
            *out = (sherdi_encoding)e;
            return 1;
        }
    }
    return 0;
}

static const sherdi_json_node *after(const sherdi_json_node *node)
{
    return node == NULL ? NULL : sherdi_json_next(node);
}

/* Reads where the bf16 values and the ties of a BESIDE or BESIDE_PLANE master are. */
static int beside_of(const sherdi_kept *kept, const sherdi_json_node *extent,
                     sherdi_kept_tensor *tensor)
{
    const sherdi_json_node *at   = after(extent);
    const sherdi_json_node *ties = after(at);

    if (!size_of(extent, &tensor->values_extent) || !size_of(at, &tensor->values_at) ||
        tensor->values_at % sizeof(uint16_t) != 0 ||
        !lies_inside(kept, tensor->values_extent, tensor->values_at, SHERDI_ENCODING_BF16,
                     tensor->count)) {
        return 0;
    }
    if (tensor->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        return 1;
    }
    return size_of(ties, &tensor->ties_at) && encoding_of(after(ties), &tensor->ties_encoding) &&
           (tensor->ties_encoding == SHERDI_ENCODING_F32
                ? tensor->ties_at % sizeof(float) == 0
                : tensor->ties_encoding == SHERDI_ENCODING_BF16 &&
                      tensor->ties_at % sizeof(uint16_t) == 0) &&
           lies_inside(kept, tensor->extent, tensor->ties_at, tensor->ties_encoding, tensor->count);
}

/* Reads what the description of an encoded tensor has behind its offset. */
static sherd_status encoding_read(sherdi_kept *kept, const sherdi_json_node *node,
                                  sherdi_kept_tensor *tensor)
{
    static const size_t     ALIGN_BYTES[SHERDI_ENCODINGS] = {4, 2, 2, 8, 4, 4};
    const sherdi_json_node *next                          = after(node);

    if (!encoding_of(node, &tensor->encoding)) {
        return damaged(kept, "a tensor has an encoding that this version does not know");
    }
    tensor->has_ties = next != NULL && next->kind == SHERDI_JSON_STRING;
    if (tensor->at % ALIGN_BYTES[tensor->encoding] != 0 ||
        !lies_inside(kept, tensor->extent, tensor->at, tensor->encoding, tensor->count) ||
        (sherdi_encoding_is_beside(tensor->encoding) && !beside_of(kept, next, tensor))) {
        return damaged(kept, "a tensor lies outside of its extent");
    }
    return SHERD_OK;
}

static sherd_status tensor_read(sherdi_kept *kept, const sherdi_json_node *node, int is_encoded)
{
    const sherdi_json_node *name   = sherdi_json_first(node);
    const sherdi_json_node *count  = after(name);
    const sherdi_json_node *extent = after(count);
    const sherdi_json_node *at     = after(extent);
    sherdi_kept_tensor     *tensor;

    SHERDI_TRY(sherdi_grow(kept->mem, SHERDI_MEM_CONTROL, (void **)&kept->tensors,
                           &kept->cap_tensors, kept->num_tensors + 1, sizeof(*kept->tensors)));
    tensor  = &kept->tensors[kept->num_tensors++];
    *tensor = (sherdi_kept_tensor){0};
    if (name == NULL || name->kind != SHERDI_JSON_STRING || !size_of(count, &tensor->count) ||
        !size_of(extent, &tensor->extent) || !size_of(at, &tensor->at)) {
        return damaged(kept, "a tensor lies outside of its extent");
    }
    tensor->name = name->string;
    if (is_encoded) {
        return encoding_read(kept, after(at), tensor);
    }
    if (tensor->at % sizeof(float) != 0 ||
        !lies_inside(kept, tensor->extent, tensor->at, SHERDI_ENCODING_F32, tensor->count)) {
        return damaged(kept, "a tensor lies outside of its extent");
    }
    return SHERD_OK;
}

static sherd_status tensors_read(sherdi_kept *kept, const sherdi_json_node *list, int is_encoded)
{
    for (const sherdi_json_node *n = sherdi_json_first(list); n != NULL; n = sherdi_json_next(n)) {
        SHERDI_TRY(tensor_read(kept, n, is_encoded));
    }
    return SHERD_OK;
}

static sherd_status root_read(sherdi_kept *kept, const char *text)
{
    const sherdi_json_node *all;
    const sherdi_json_node *encoded;

    SHERDI_TRY(sherdi_json_parse(kept->mem, kept->label, text, strlen(text), &kept->json));
    SHERDI_TRY(file_read(kept, sherdi_json_root(kept->json)));
    SHERDI_TRY(slots_read(kept, sherdi_json_root(kept->json)));
    all = array_of(sherdi_json_root(kept->json), "tensors");
    if (all == NULL) {
        return damaged(kept, "it has no list of tensors");
    }
    SHERDI_TRY(tensors_read(kept, all, 0));
    encoded = array_of(sherdi_json_root(kept->json), "encoded");
    return encoded == NULL ? SHERD_OK : tensors_read(kept, encoded, 1);
}

sherd_status sherdi_kept_parse(sherdi_mem *mem, const char *label, const char *text,
                               sherdi_kept **out)
{
    sherdi_kept *kept = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*kept));
    sherd_status status;

    if (kept == NULL) {
        return SHERD_E_NOMEM;
    }
    kept->mem          = mem;
    kept->state.number = kept->values.number = NOTHING_READ;
    kept->label                              = sherdi_strdup(mem, label);
    status = kept->label == NULL ? SHERD_E_NOMEM : root_read(kept, text);
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
    kept->queue = queue;
    kept->rank  = rank;
    return sherdi_file_open(queue, &params, &kept->open);
}

/* Returns the name of the first tensor that has bytes in an extent. */
static const char *extent_tensor(const sherdi_kept *kept, size_t extent)
{
    for (size_t t = 0; t < kept->num_tensors; t++) {
        if (sherdi_kept_tensor_lies_in(&kept->tensors[t], extent)) {
            return kept->tensors[t].name;
        }
    }
    return "none";
}

static sherd_status memory_take(sherdi_kept *kept, read_extent *into)
{
    size_t most = SHERD_ALIGN_BYTES;

    for (size_t e = 0; e < kept->num_slots && into->memory == NULL; e++) {
        most = sherdi_max_size(most, kept->slots[e].len_bytes);
    }
    if (into->memory == NULL) {
        into->memory = sherdi_alloc(kept->mem, SHERDI_MEM_HOST_STAGING, most);
    }
    return into->memory == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static sherd_status extent_read(sherdi_kept *kept, size_t extent, read_extent *into)
{
    const sherdi_state_slot *slot = &kept->slots[extent];
    sherdi_io                io   = {.file         = kept->open,
                                     .offset_bytes = slot->offset_bytes,
                                     .len_bytes    = slot->len_bytes,
                                     .what         = "kept state",
                                     .number       = extent};

    SHERDI_TRY(memory_take(kept, into));
    if (into->number == extent) {
        return SHERD_OK;
    }
    into->number = NOTHING_READ;
    if (!slot->is_written) {
        memset(into->memory, 0, slot->len_bytes);
        into->number = extent;
        return SHERD_OK;
    }
    io.memory = into->memory;
    sherdi_io_start(kept->queue, &io);
    SHERDI_TRY(sherdi_io_wait(kept->queue, &io));
    if (sherdi_checksum(into->memory, slot->len_bytes) != slot->checksum) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s: extent %zu of rank %d's state does not match its checksum; tensor %s "
            "or one that follows it is damaged; load another checkpoint, or copy the file "
            "again",
            sherdi_file_path(kept->open), extent, kept->rank, extent_tensor(kept, extent));
    }
    into->number = extent;
    return SHERD_OK;
}

sherd_status sherdi_kept_read(sherdi_kept *kept, size_t extent, const unsigned char **out)
{
    SHERDI_TRY(extent_read(kept, extent, &kept->state));
    *out = kept->state.memory;
    return SHERD_OK;
}

/* Decodes elements of a tensor that is not plain fp32 to `decoded`. Its extent has been read. */
static sherd_status values_decode(sherdi_kept *kept, const sherdi_kept_tensor *tensor, size_t first,
                                  size_t count)
{
    int            is_apart  = tensor->values_extent != tensor->extent;
    read_extent   *values    = is_apart ? &kept->values : &kept->state;
    int            is_beside = sherdi_encoding_is_beside(tensor->encoding);
    sherdi_encoded part      = {.encoding = tensor->encoding, .has_ties = tensor->has_ties};

    if (kept->decoded == NULL) {
        kept->decoded =
            sherdi_alloc(kept->mem, SHERDI_MEM_HOST_STAGING, DECODED_ELEMS * sizeof(float));
    }
    if (kept->decoded == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(is_beside ? extent_read(kept, tensor->values_extent, values) : SHERD_OK);
    part.data = kept->state.memory + tensor->at;
    if (is_beside) {
        part.param         = (uint16_t *)(void *)(values->memory + tensor->values_at);
        part.ties          = kept->state.memory + tensor->ties_at;
        part.ties_encoding = tensor->ties_encoding;
    }
    sherdi_encoded_read(kept->decoded, &part, first, count);
    return SHERD_OK;
}

sherd_status sherdi_kept_values(sherdi_kept *kept, size_t index, size_t first, size_t *count,
                                const float **out)
{
    const sherdi_kept_tensor *tensor = &kept->tensors[index];

    SHERDI_TRY(extent_read(kept, tensor->extent, &kept->state));
    if (tensor->encoding == SHERDI_ENCODING_F32 && !tensor->has_ties) {
        *out = (const float *)(const void *)(kept->state.memory + tensor->at) + first;
        return SHERD_OK;
    }
    *count = sherdi_min_size(*count, DECODED_ELEMS);
    SHERDI_TRY(values_decode(kept, tensor, first, *count));
    *out = kept->decoded;
    return SHERD_OK;
}

void sherdi_kept_close(sherdi_kept *kept)
{
    sherdi_file_close(kept->open, 0);
    sherdi_free(kept->state.memory);
    sherdi_free(kept->values.memory);
    sherdi_free(kept->decoded);
    kept->open    = NULL;
    kept->decoded = NULL;
    kept->state = kept->values = (read_extent){.number = NOTHING_READ};
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
