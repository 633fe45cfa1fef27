/* See linked.h. */
#include "engine/checkpoint/linked.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/json_text.h"
#include "engine/checkpoint/fields.h"
#include "engine/checkpoint/shard.h"
#include "kernels/codecs.h"
#include "offload/checksum.h"
#include "engine/plan/offload.h"

#include <stdio.h>
#include <string.h>

/* Limits for descriptions: no more stripes than a configuration can name folders, and more bytes
 * than any set has. */
#define MOST_STRIPES SHERDI_MAX_FOLDERS
#define MOST_BYTES   ((size_t)1 << 60)

#define NOTHING_READ SIZE_MAX

/* The description of a part whose signs are ties, in place of the extent of its bf16 values. */
#define TIES SIZE_MAX

/* Elements that are decoded at once; a multiple of the chunk. */
#define DECODED_ELEMS ((size_t)4096)

/* The names of encodings in the description: how parts are stored, not the words of a
 * configuration. */
static const char *const ENCODINGS[SHERDI_ENCODINGS] = {"F32",          "BF16", "BESIDE",
                                                        "BESIDE_PLANE", "FP8",  "UFP8"};

/* An extent in memory that has room for the largest one. */
typedef struct read_extent {
    unsigned char *memory;
    size_t         number; /* NOTHING_READ: none */
} read_extent;

struct sherdi_linked {
    sherdi_mem             *mem;
    sherdi_json            *json; /* owns the names of tensors */
    char                   *label;
    sherdi_state_slots_file file;
    sherdi_state_slot      *slots;
    size_t                  num_slots, cap_slots;
    sherdi_linked_tensor   *tensors;
    size_t                  num_tensors, cap_tensors;

    sherdi_ioq  *queue;
    sherdi_file *open;
    int          rank;          /* that saved it */
    read_extent  state, values; /* bf16 values of encoded masters may lie in another extent */
    float       *decoded;
};

static const char *encoding_name(const void *root, int encoding)
{
    (void)root;
    return encoding < SHERDI_ENCODINGS ? ENCODINGS[encoding] : NULL;
}

static const char *ties_name(const void *root, int number)
{
    (void)root;
    return number == 0 ? "ties" : NULL;
}

static const sherdi_field SLOT[] = {
    SHERDI_FIELD(NUMBER, "offset", sherdi_state_slot, offset_bytes),
    SHERDI_FIELD(NUMBER, "length", sherdi_state_slot, len_bytes),
    SHERDI_FIELD(HASH, "checksum", sherdi_state_slot, checksum),
    SHERDI_FIELD_END,
};

#define PLACE                                                                                      \
    SHERDI_FIELD(STRING, "name", sherdi_linked_tensor, name),                                      \
        SHERDI_FIELD(NUMBER, "count", sherdi_linked_tensor, count),                                \
        SHERDI_FIELD(NUMBER, "extent", sherdi_linked_tensor, extent),                              \
        SHERDI_FIELD(NUMBER, "at", sherdi_linked_tensor, at)

/* Plain fp32. */
static const sherdi_field PLAIN[] = {PLACE, SHERDI_FIELD_END};

static const sherdi_field ENCODED[] = {
    PLACE,
    SHERDI_FIELD(NAME, "encoding", sherdi_linked_tensor, encoding, .name = encoding_name),
    SHERDI_FIELD_IF(has_more, NUMBER, "extent of its bf16 values", sherdi_linked_tensor,
                    values_extent, .name = ties_name),
    SHERDI_FIELD_IF(has_values, NUMBER, "place of its bf16 values", sherdi_linked_tensor,
                    values_at),
    SHERDI_FIELD_IF(has_ties_at, NUMBER, "place of its ties", sherdi_linked_tensor, ties_at),
    SHERDI_FIELD_IF(has_ties_at, NAME, "encoding of its ties", sherdi_linked_tensor, ties_encoding,
                    .name = encoding_name),
    SHERDI_FIELD_END,
};

static const sherdi_field KEPT_FILE[] = {
    SHERDI_FIELD(NUMBER, "bytes", sherdi_linked, file.len_bytes, .most = MOST_BYTES),
    SHERDI_FIELD(NUMBER, "stripe_bytes", sherdi_linked, file.stripe_bytes, .least = 1),
    SHERDI_FIELD(NUMBER, "stripes", sherdi_linked, file.num_stripes, .least = 1,
                 .most = MOST_STRIPES),
    SHERDI_FIELD_END,
};

/* Encoded parts are in a list of their own, so a reader that does not know encodings does not find
 * them. */
static const sherdi_field LISTS[] = {
    SHERDI_FIELD_LIST_AT("extents", sherdi_linked, slots, num_slots, cap_slots, SLOT),
    SHERDI_FIELD_LIST_AT("tensors", sherdi_linked, tensors, num_tensors, cap_tensors, PLAIN),
    SHERDI_FIELD_LIST_AT("encoded", sherdi_linked, tensors, num_tensors, cap_tensors, ENCODED,
                         .since = "2026-11-22"),
    SHERDI_FIELD_END,
};

void sherdi_linked_name(int rank, int world_size, char out[SHERDI_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(out, SHERDI_CHECKPOINT_NAME_BYTES, "slots-%05d-of-%05d", rank, world_size);
}

void sherdi_linked_stripe_name(int rank, int world_size, int stripe,
                               char out[SHERDI_CHECKPOINT_NAME_BYTES])
{
    size_t used;

    sherdi_linked_name(rank, world_size, out);
    used = strlen(out);
    if (stripe > 0) {
        (void)snprintf(out + used, SHERDI_CHECKPOINT_NAME_BYTES - used, ".%d", stripe);
    }
}

/* ------------------------------------------------------------------- describing -- */

static void slots_print(sherdi_text *text, const sherdi_plan *plan, const sherdi_state *state)
{
    sherdi_text_print(text, "\"extents\": [");
    for (size_t e = 0; e < sherdi_plan_stored(plan); e++) {
        sherdi_state_slot slot;

        sherdi_state_describe(state, e, &slot);
        slot.checksum = slot.is_written ? slot.checksum : 0;
        sherdi_text_print(text, e == 0 ? "[" : ", [");
        sherdi_fields_print(SLOT, &slot, 0, text);
        sherdi_text_print(text, "]");
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

/* Writes the encoding of a part that is not plain fp32 and, of a split master, the places of its
 * bf16 values and its ties. */
static void encoding_describe(const listing *l, const sherdi_block *block, int part,
                              size_t offset_elems, sherdi_linked_tensor *tensor)
{
    const sherdi_segment *segment = sherdi_block_segment(l->plan, block);
    size_t                extents = l->plan->rings[SHERDI_RING_STATE].num_extents;

    tensor->encoding = segment->encodings[part];
    if (part > 0) {
        tensor->has_more      = part == segment->ties_part;
        tensor->values_extent = TIES;
    } else if (sherdi_segment_is_beside(segment)) {
        size_t head    = l->plan->rings[SHERDI_RING_STATE].extents[block->extent].len_bytes;
        int    is_tail = block->value_offset >= head;

        tensor->has_more = tensor->has_values = 1;
        tensor->has_ties_at                   = segment->ties_part > 0;
        tensor->values_extent                 = block->extent + (is_tail ? extents : 0);
        tensor->values_at =
            block->value_offset - (is_tail ? head : 0) + offset_elems * sizeof(uint16_t);
        tensor->ties_at       = part_at(l, block, segment->ties_part, offset_elems);
        tensor->ties_encoding = segment->encodings[segment->ties_part];
    }
}

static sherd_status range_print(listing *l, const sherdi_block *block,
                                const sherdi_shard_range *range)
{
    const sherdi_segment *segment = sherdi_block_segment(l->plan, block);

    for (int part = 0; part < sherdi_segment_parts(segment); part++) {
        sherdi_linked_tensor tensor = {.count = range->count, .extent = block->extent};
        char                *name;

        if (sherdi_segment_part_is_encoded(segment, part) != l->is_encoded) {
            continue;
        }
        name = sherdi_shard_tensor_name(l->text->mem, l->model->params[range->param].name,
                                        segment->optimizer->parts[part].name, range->first);
        if (name == NULL) {
            return SHERD_E_NOMEM;
        }
        tensor.name = name;
        tensor.at   = part_at(l, block, part, range->offset_elems);
        if (l->is_encoded) {
            encoding_describe(l, block, part, range->offset_elems, &tensor);
        }
        sherdi_text_print(l->text, l->is_first ? "[" : ", [");
        sherdi_fields_print(l->is_encoded ? ENCODED : PLAIN, &tensor, 0, l->text);
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

static sherd_status tensors_print(sherdi_text *text, const sherdi_plan *plan,
                                  const sherdi_model *model)
{
    listing l = {.text = text, .plan = plan, .model = model};

    SHERDI_TRY(list_print(&l, "tensors"));
    for (size_t s = 0; s < plan->layout.num_segments && !l.is_encoded; s++) {
        l.is_encoded = sherdi_has_encoded(plan->layout.segments[s].encodings, SHERDI_MOST_PARTS);
    }
    if (l.is_encoded) {
        sherdi_text_print(text, ", ");
        SHERDI_TRY(list_print(&l, "encoded"));
    }
    sherdi_text_print(text, "}");
    return text->status;
}

sherd_status sherdi_linked_describe(const sherdi_plan *plan, const sherdi_model *model,
                                    const sherdi_state *state, sherdi_mem *mem, char **out)
{
    sherdi_linked linked;
    sherdi_text   text;
    sherd_status  status;

    sherdi_text_init(&text, mem);
    sherdi_state_describe_file(state, &linked.file);
    sherdi_text_print(&text, "{");
    sherdi_fields_print(KEPT_FILE, &linked, 1, &text);
    sherdi_text_print(&text, ", ");
    slots_print(&text, plan, state);
    status = tensors_print(&text, plan, model);
    *out   = status == SHERD_OK ? sherdi_strdup(mem, text.bytes) : NULL;
    sherdi_text_fini(&text);
    return status == SHERD_OK && *out == NULL ? SHERD_E_NOMEM : status;
}

/* ---------------------------------------------------------------------- reading -- */

static int slot_fits(const sherdi_linked *linked, sherdi_state_slot *slot)
{
    size_t end;

    slot->is_written = slot->checksum != 0;
    return slot->offset_bytes % SHERD_ALIGN_BYTES == 0 &&
           slot->len_bytes % SHERD_ALIGN_BYTES == 0 &&
           sherdi_add_fits(slot->offset_bytes, slot->len_bytes, &end) &&
           end <= linked->file.len_bytes;
}

/* Returns whether `count` elements from `at` on lie inside an extent. */
static int lies_inside(const sherdi_linked *linked, size_t extent, size_t at,
                       sherdi_encoding encoding, size_t count)
{
    size_t chunks = sherdi_div_up(count, SHERD_CHUNK_ELEMS);
    size_t bytes;
    size_t end;

    return extent < linked->num_slots &&
           (encoding == SHERDI_ENCODING_F32 /* needs no whole chunks */
                ? sherdi_mul_fits(count, sizeof(float), &bytes)
                : sherdi_mul_fits(chunks, sherdi_encoding_chunk_bytes(encoding), &bytes)) &&
           sherdi_add_fits(at, bytes, &end) && end <= linked->slots[extent].len_bytes;
}

/* Returns whether the bf16 values and the ties of a BESIDE or BESIDE_PLANE master have valid
 * places. */
static int beside_fits(const sherdi_linked *linked, const sherdi_linked_tensor *tensor)
{
    sherdi_encoding ties = tensor->ties_encoding;

    if (!tensor->has_values || tensor->values_at % sizeof(uint16_t) != 0 ||
        !lies_inside(linked, tensor->values_extent, tensor->values_at, SHERDI_ENCODING_BF16,
                     tensor->count)) {
        return 0;
    }
    return tensor->encoding == SHERDI_ENCODING_BESIDE_PLANE ||
           (tensor->has_ties_at && (ties == SHERDI_ENCODING_F32 || ties == SHERDI_ENCODING_BF16) &&
            tensor->ties_at % sherdi_encoding_elem_bytes(ties) == 0 &&
            lies_inside(linked, tensor->extent, tensor->ties_at, ties, tensor->count));
}

static int tensor_fits(const sherdi_linked *linked, sherdi_linked_tensor *tensor)
{
    static const size_t ALIGN_BYTES[SHERDI_ENCODINGS] = {4, 2, 2, 8, 4, 4};

    tensor->has_ties = tensor->has_more && tensor->values_extent == TIES;
    return tensor->at % ALIGN_BYTES[tensor->encoding] == 0 &&
           lies_inside(linked, tensor->extent, tensor->at, tensor->encoding, tensor->count) &&
           (!sherdi_encoding_is_beside(tensor->encoding) || beside_fits(linked, tensor));
}

static sherd_status root_read(sherdi_linked *linked, const char *text)
{
    sherdi_fields_reader r = {
        .mem      = linked->mem,
        .label    = linked->label,
        .sentence = "%s: its description of linked state is damaged: %s; load another checkpoint",
        .is_borrowed = 1};

    SHERDI_TRY(sherdi_json_parse(linked->mem, linked->label, text, strlen(text), &linked->json));
    SHERDI_TRY(sherdi_fields_read(&r, KEPT_FILE, sherdi_json_root(linked->json), linked));
    SHERDI_TRY(sherdi_fields_read(&r, LISTS, sherdi_json_root(linked->json), linked));
    if (linked->file.stripe_bytes % SHERD_ALIGN_BYTES != 0) {
        return sherdi_fields_damaged(&r, "its file cannot be as it says");
    }
    for (size_t s = 0; s < linked->num_slots; s++) {
        if (!slot_fits(linked, &linked->slots[s])) {
            return sherdi_fields_damaged(&r, "an extent lies outside of its file");
        }
    }
    for (size_t t = 0; t < linked->num_tensors; t++) {
        if (!tensor_fits(linked, &linked->tensors[t])) {
            return sherdi_fields_damaged(&r, "a tensor lies outside of its extent");
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_linked_parse(sherdi_mem *mem, const char *label, const char *text,
                                 sherdi_linked **out)
{
    sherdi_linked *linked = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*linked));
    sherd_status   status;

    if (linked == NULL) {
        return SHERD_E_NOMEM;
    }
    linked->mem          = mem;
    linked->state.number = linked->values.number = NOTHING_READ;
    linked->label                                = sherdi_strdup(mem, label);
    status = linked->label == NULL ? SHERD_E_NOMEM : root_read(linked, text);
    if (status != SHERD_OK) {
        sherdi_linked_destroy(linked);
        return status;
    }
    *out = linked;
    return SHERD_OK;
}

size_t sherdi_linked_count(const sherdi_linked *linked)
{
    return linked->num_tensors;
}

const sherdi_linked_tensor *sherdi_linked_tensor_at(const sherdi_linked *linked, size_t index)
{
    return &linked->tensors[index];
}

int sherdi_linked_stripes(const sherdi_linked *linked)
{
    return linked->file.num_stripes;
}

size_t sherdi_linked_extents(const sherdi_linked *linked)
{
    return linked->num_slots;
}

size_t sherdi_linked_extent_bytes(const sherdi_linked *linked, size_t extent)
{
    return linked->slots[extent].len_bytes;
}

sherd_status sherdi_linked_open(sherdi_linked *linked, sherdi_ioq *queue, const char *folder,
                                int rank, int world_size)
{
    char               name[SHERDI_CHECKPOINT_NAME_BYTES];
    const char        *folders[MOST_STRIPES];
    sherdi_file_params params = {.folders        = folders,
                                 .num_folders    = linked->file.num_stripes,
                                 .name           = name,
                                 .capacity_bytes = linked->file.len_bytes,
                                 .stripe_bytes   = linked->file.stripe_bytes,
                                 .flags          = SHERDI_FILE_READ};

    sherdi_linked_name(rank, world_size, name);
    for (int i = 0; i < linked->file.num_stripes; i++) {
        folders[i] = folder;
    }
    linked->queue = queue;
    linked->rank  = rank;
    return sherdi_file_open(queue, &params, &linked->open);
}

/* Returns the name of the first tensor that has bytes in an extent. */
static const char *extent_tensor(const sherdi_linked *linked, size_t extent)
{
    for (size_t t = 0; t < linked->num_tensors; t++) {
        if (sherdi_linked_tensor_lies_in(&linked->tensors[t], extent)) {
            return linked->tensors[t].name;
        }
    }
    return "none";
}

static sherd_status memory_take(sherdi_linked *linked, read_extent *into)
{
    size_t most = SHERD_ALIGN_BYTES;

    for (size_t e = 0; e < linked->num_slots && into->memory == NULL; e++) {
        most = sherdi_max_size(most, linked->slots[e].len_bytes);
    }
    if (into->memory == NULL) {
        into->memory = sherdi_alloc(linked->mem, SHERDI_MEM_HOST_STAGING, most);
    }
    return into->memory == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static sherd_status extent_read(sherdi_linked *linked, size_t extent, read_extent *into)
{
    const sherdi_state_slot *slot = &linked->slots[extent];
    sherdi_io                io   = {.file         = linked->open,
                                     .offset_bytes = slot->offset_bytes,
                                     .len_bytes    = slot->len_bytes,
                                     .what         = "linked state",
                                     .number       = extent};

    SHERDI_TRY(memory_take(linked, into));
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
    sherdi_io_start(linked->queue, &io);
    SHERDI_TRY(sherdi_io_wait(linked->queue, &io));
    if (sherdi_checksum(into->memory, slot->len_bytes) != slot->checksum) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s: extent %zu of rank %d's state does not match its checksum; tensor %s "
            "or one that follows it is damaged; load another checkpoint, or copy the file "
            "again",
            sherdi_file_path(linked->open), extent, linked->rank, extent_tensor(linked, extent));
    }
    into->number = extent;
    return SHERD_OK;
}

sherd_status sherdi_linked_read(sherdi_linked *linked, size_t extent, const unsigned char **out)
{
    SHERDI_TRY(extent_read(linked, extent, &linked->state));
    *out = linked->state.memory;
    return SHERD_OK;
}

/* Decodes elements of a tensor that is not plain fp32 to `decoded`. Its extent has been read. */
static sherd_status values_decode(sherdi_linked *linked, const sherdi_linked_tensor *tensor,
                                  size_t first, size_t count)
{
    int            is_apart  = tensor->values_extent != tensor->extent;
    read_extent   *values    = is_apart ? &linked->values : &linked->state;
    int            is_beside = sherdi_encoding_is_beside(tensor->encoding);
    sherdi_encoded part      = {.encoding = tensor->encoding, .has_ties = tensor->has_ties};

    if (linked->decoded == NULL) {
        linked->decoded =
            sherdi_alloc(linked->mem, SHERDI_MEM_HOST_STAGING, DECODED_ELEMS * sizeof(float));
    }
    if (linked->decoded == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(is_beside ? extent_read(linked, tensor->values_extent, values) : SHERD_OK);
    part.data = linked->state.memory + tensor->at;
    if (is_beside) {
        part.param         = (uint16_t *)(void *)(values->memory + tensor->values_at);
        part.ties          = linked->state.memory + tensor->ties_at;
        part.ties_encoding = tensor->ties_encoding;
    }
    sherdi_encoded_read(linked->decoded, &part, first, count);
    return SHERD_OK;
}

sherd_status sherdi_linked_values(sherdi_linked *linked, size_t index, size_t first, size_t *count,
                                  const float **out)
{
    const sherdi_linked_tensor *tensor = &linked->tensors[index];

    SHERDI_TRY(extent_read(linked, tensor->extent, &linked->state));
    if (tensor->encoding == SHERDI_ENCODING_F32 && !tensor->has_ties) {
        *out = (const float *)(const void *)(linked->state.memory + tensor->at) + first;
        return SHERD_OK;
    }
    *count = sherdi_min_size(*count, DECODED_ELEMS);
    SHERDI_TRY(values_decode(linked, tensor, first, *count));
    *out = linked->decoded;
    return SHERD_OK;
}

void sherdi_linked_close(sherdi_linked *linked)
{
    sherdi_file_close(linked->open, 0);
    sherdi_free(linked->state.memory);
    sherdi_free(linked->values.memory);
    sherdi_free(linked->decoded);
    linked->open    = NULL;
    linked->decoded = NULL;
    linked->state = linked->values = (read_extent){.number = NOTHING_READ};
}

void sherdi_linked_destroy(sherdi_linked *linked)
{
    if (linked == NULL) {
        return;
    }
    sherdi_linked_close(linked);
    sherdi_json_destroy(linked->json);
    sherdi_free(linked->slots);
    sherdi_free(linked->tensors);
    sherdi_free(linked->label);
    sherdi_free(linked);
}
