/* Writes headers of safetensors files. See safetensors.h. */
#include "engine/checkpoint/safetensors.h"

#include "base/checked.h"
#include "base/json_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"

typedef struct note {
    char  *key;
    size_t value_at;    /* position of the reserved value's first quote in the finished header */
    size_t value_bytes; /* reserved bytes without quotes; 0: not reserved */
} note;

/* The members of the two JSON objects are written when they are added, each with a comma after it.
 * finish joins them. */
struct sherdi_safetensors_builder {
    sherdi_mem *mem;
    size_t      align_bytes, data_bytes;
    sherdi_text tensors, metadata, header;
    char      **names; /* of the tensors: finish looks for equal ones */
    size_t      num_names, names_capacity;
    note       *notes;
    size_t      num_notes, notes_capacity;
};

sherd_status sherdi_safetensors_begin(sherdi_mem *mem, size_t align_bytes,
                                      sherdi_safetensors_builder **out)
{
    sherdi_safetensors_builder *b = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*b));

    assert(align_bytes >= 8 && (align_bytes & (align_bytes - 1)) == 0);
    if (b == NULL) {
        return SHERD_E_NOMEM;
    }
    b->mem         = mem;
    b->align_bytes = align_bytes;
    sherdi_text_init(&b->tensors, mem);
    sherdi_text_init(&b->metadata, mem);
    sherdi_text_init(&b->header, mem);
    *out = b;
    return SHERD_OK;
}

void sherdi_safetensors_builder_destroy(sherdi_safetensors_builder *builder)
{
    if (builder == NULL) {
        return;
    }
    for (size_t i = 0; i < builder->num_names; i++) {
        sherdi_free(builder->names[i]);
    }
    for (size_t i = 0; i < builder->num_notes; i++) {
        sherdi_free(builder->notes[i].key);
    }
    sherdi_free(builder->names);
    sherdi_free(builder->notes);
    sherdi_text_fini(&builder->tensors);
    sherdi_text_fini(&builder->metadata);
    sherdi_text_fini(&builder->header);
    sherdi_free(builder);
}

static void spaces_put(sherdi_text *text, size_t count)
{
    for (; count > 0; count--) {
        sherdi_text_put(text, " ", 1);
    }
}

/* ---- tensors ---- */

static sherd_status name_keep(sherdi_safetensors_builder *b, const char *name)
{
    SHERDI_TRY(sherdi_grow(b->mem, SHERDI_MEM_CONTROL, (void **)&b->names, &b->names_capacity,
                           b->num_names + 1, sizeof(*b->names)));
    b->names[b->num_names] = sherdi_strdup(b->mem, name);
    if (b->names[b->num_names] == NULL) {
        return SHERD_E_NOMEM;
    }
    b->num_names++;
    return SHERD_OK;
}

static sherd_status bytes_of(const char *name, sherdi_tensor_dtype dtype, int ndim,
                             const size_t *shape, size_t *out)
{
    size_t bytes = sherdi_tensor_dtype_bytes(dtype);

    if (ndim < 0 || ndim > SHERD_MAX_NDIM) {
        return sherdi_fail(SHERD_E_INVAL, "tensor %.200s has %d dimensions; at most %d can be",
                           name, ndim, SHERD_MAX_NDIM);
    }
    for (int i = 0; i < ndim; i++) {
        if (!sherdi_mul_fits(bytes, shape[i], &bytes)) {
            return sherdi_fail(SHERD_E_INVAL, "the shape of tensor %.200s has too many elements",
                               name);
        }
    }
    *out = bytes;
    return SHERD_OK;
}

sherd_status sherdi_safetensors_add(sherdi_safetensors_builder *builder, const char *name,
                                    sherdi_tensor_dtype dtype, int ndim, const size_t *shape,
                                    size_t *offset_out)
{
    sherdi_text *text  = &builder->tensors;
    size_t       begin = builder->data_bytes;
    size_t       bytes = 0, end;

    if (strcmp(name, METADATA) == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "no tensor of a safetensors file can be called " METADATA);
    }
    SHERDI_TRY(bytes_of(name, dtype, ndim, shape, &bytes));
    if (!sherdi_add_fits(begin, bytes, &end)) {
        return sherdi_fail(SHERD_E_INVAL, "tensor %.200s makes the file too large", name);
    }
    SHERDI_TRY(name_keep(builder, name));
    sherdi_text_quote(text, name);
    sherdi_text_print(text, ":{\"dtype\":\"%s\",\"shape\":[", sherdi_tensor_dtype_name(dtype));
    for (int i = 0; i < ndim; i++) {
        sherdi_text_print(text, "%s%zu", i == 0 ? "" : ",", shape[i]);
    }
    sherdi_text_print(text, "],\"data_offsets\":[%zu,%zu]},", begin, end);
    SHERDI_TRY(text->status);
    builder->data_bytes = end;
    if (offset_out != NULL) {
        *offset_out = begin;
    }
    return SHERD_OK;
}

size_t sherdi_safetensors_data_bytes(const sherdi_safetensors_builder *builder)
{
    return builder->data_bytes;
}

/* ---- metadata ---- */

/* Writes a key and the text up to its value. */
static sherd_status note_begin(sherdi_safetensors_builder *b, const char *key, note **out)
{
    note *added;

    SHERDI_TRY(sherdi_grow(b->mem, SHERDI_MEM_CONTROL, (void **)&b->notes, &b->notes_capacity,
                           b->num_notes + 1, sizeof(*b->notes)));
    added      = &b->notes[b->num_notes];
    added->key = sherdi_strdup(b->mem, key);
    if (added->key == NULL) {
        return SHERD_E_NOMEM;
    }
    b->num_notes++;
    sherdi_text_quote(&b->metadata, key);
    sherdi_text_put(&b->metadata, ":", 1);
    *out = added;
    return SHERD_OK;
}

sherd_status sherdi_safetensors_metadata(sherdi_safetensors_builder *builder, const char *key,
                                         const char *value)
{
    note *added;

    SHERDI_TRY(note_begin(builder, key, &added));
    sherdi_text_quote(&builder->metadata, value);
    sherdi_text_put(&builder->metadata, ",", 1);
    return builder->metadata.status;
}

/* The closing quote follows the value directly; spaces fill the rest of the room. */
static void value_write(char *at, size_t room_bytes, const char *value)
{
    size_t bytes = strlen(value);

    memset(at, ' ', room_bytes + 2);
    at[0] = '"';
    memcpy(at + 1, value, bytes);
    at[1 + bytes] = '"';
}

sherd_status sherdi_safetensors_reserve(sherdi_safetensors_builder *builder, const char *key,
                                        size_t value_bytes)
{
    sherdi_text *text = &builder->metadata;
    note        *added;

    SHERDI_TRY(note_begin(builder, key, &added));
    added->value_at    = text->len_bytes;
    added->value_bytes = value_bytes;
    spaces_put(text, value_bytes + 2);
    sherdi_text_put(text, ",", 1);
    SHERDI_TRY(text->status);
    value_write(text->bytes + added->value_at, value_bytes, "");
    return SHERD_OK;
}

/* Returns whether a value needs no escapes, which would change its length. Values hold checksums
 * and the like. */
static int is_plain(const char *value)
{
    for (; *value != '\0'; value++) {
        if (*value < ' ' || *value > '~' || *value == '"' || *value == '\\') {
            return 0;
        }
    }
    return 1;
}

sherd_status sherdi_safetensors_set(sherdi_safetensors_builder *builder, const char *key,
                                    const char *value)
{
    for (size_t i = 0; i < builder->num_notes; i++) {
        const note *found = &builder->notes[i];

        if (found->value_bytes == 0 || strcmp(found->key, key) != 0) {
            continue;
        }
        if (strlen(value) > found->value_bytes || !is_plain(value)) {
            return sherdi_fail(SHERD_E_INVAL,
                               "the metadata key %.200s has room for %zu plain characters, which "
                               "\"%.100s\" is not",
                               key, found->value_bytes, value);
        }
        value_write(builder->header.bytes + found->value_at, found->value_bytes, value);
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL, "no room was reserved for the metadata key %.200s", key);
}

/* ---- the header ---- */

/* Checks that no name comes twice. It sorts the names, whose order nobody needs. */
static sherd_status names_check(char **names, size_t count, const char *what)
{
    if (count > 1) {
        qsort(names, count, sizeof(*names), sherdi_text_order);
    }
    for (size_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            return sherdi_fail(SHERD_E_INVAL, "two %s are called %.200s", what, names[i]);
        }
    }
    return SHERD_OK;
}

/* Does the same for keys. They are few, so each is compared with all. */
static sherd_status notes_check(const sherdi_safetensors_builder *b)
{
    for (size_t i = 0; i < b->num_notes; i++) {
        for (size_t k = 0; k < i; k++) {
            if (strcmp(b->notes[i].key, b->notes[k].key) == 0) {
                return sherdi_fail(SHERD_E_INVAL, "two metadata keys are called %.200s",
                                   b->notes[i].key);
            }
        }
    }
    return SHERD_OK;
}

/* Writes the members without their last comma. */
static void members_put(sherdi_text *header, const sherdi_text *members)
{
    if (members->len_bytes > 0) {
        sherdi_text_put(header, members->bytes, members->len_bytes - 1);
    }
}

static void prefix_write(unsigned char *at, uint64_t len_bytes)
{
    for (size_t i = 0; i < SHERDI_SAFETENSORS_PREFIX_BYTES; i++) {
        at[i] = (unsigned char)(len_bytes >> (8 * i));
    }
}

static sherd_status header_write(sherdi_safetensors_builder *b)
{
    static const char OPENING[] = "{\"" METADATA "\":{";
    sherdi_text      *header    = &b->header;
    size_t            before    = SHERDI_SAFETENSORS_PREFIX_BYTES + sizeof(OPENING) - 1;

    spaces_put(header, SHERDI_SAFETENSORS_PREFIX_BYTES);
    sherdi_text_put(header, OPENING, b->num_notes > 0 ? sizeof(OPENING) - 1 : 1);
    members_put(header, &b->metadata);
    if (b->num_notes > 0) {
        sherdi_text_put(header, "},", b->num_names > 0 ? 2 : 1);
    }
    members_put(header, &b->tensors);
    sherdi_text_put(header, "}", 1);
    spaces_put(header, sherdi_round_up(header->len_bytes, b->align_bytes) - header->len_bytes);
    for (size_t i = 0; i < b->num_notes; i++) {
        b->notes[i].value_at += before;
    }
    return header->status;
}

sherd_status sherdi_safetensors_finish(sherdi_safetensors_builder *builder, const char **bytes_out,
                                       size_t *len_bytes_out)
{
    sherdi_text *header = &builder->header;

    assert(header->bytes == NULL); /* finish is called once */
    SHERDI_TRY(names_check(builder->names, builder->num_names, "tensors"));
    SHERDI_TRY(notes_check(builder));
    SHERDI_TRY(header_write(builder));
    if (header->len_bytes - SHERDI_SAFETENSORS_PREFIX_BYTES > SHERDI_SAFETENSORS_MAX_HEADER_BYTES) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%zu tensors need a header of %zu bytes, and the longest that a "
                           "safetensors file can have is %zu; use more files",
                           builder->num_names, header->len_bytes,
                           SHERDI_SAFETENSORS_MAX_HEADER_BYTES);
    }
    prefix_write((unsigned char *)header->bytes,
                 header->len_bytes - SHERDI_SAFETENSORS_PREFIX_BYTES);
    *bytes_out     = header->bytes;
    *len_bytes_out = header->len_bytes;
    return SHERD_OK;
}
