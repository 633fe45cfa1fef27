/* See fields.h. */
#include "engine/checkpoint/fields.h"

#include "engine/checkpoint/bytes.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- members -- */

static void *member(const void *object, size_t offset)
{
    return (char *)object + offset;
}

static int64_t number_get(const sherdi_field *field, const void *at)
{
    return field->bytes == 0             ? field->least
           : field->bytes == sizeof(int) ? *(const int *)at
                                         : *(const int64_t *)at;
}

static void number_set(const sherdi_field *field, void *at, int64_t value)
{
    if (field->bytes == sizeof(int)) {
        *(int *)at = (int)value;
    } else if (field->bytes != 0) {
        *(int64_t *)at = value;
    }
}

static int is_there(const sherdi_field *field, const void *object)
{
    return field->has == 0 || *(const int *)member(object, field->has);
}

static size_t rows_count(const sherdi_field *list, const void *object)
{
    const void *count = member(object, list->count);

    return list->capacity == 0 ? (size_t) * (const int *)count : *(const size_t *)count;
}

static void *row_at(const sherdi_field *list, const void *object, size_t index)
{
    void *first = member(object, list->offset);

    return member(list->capacity == 0 ? first : *(void **)first, index * list->bytes);
}

/* ------------------------------------------------------------------- writing -- */

static json_t *value_json(const sherdi_field *field, const void *root, const void *object);

static json_t *list_json(const sherdi_field *list, const void *root, const void *object)
{
    json_t *json = json_array();

    for (size_t i = 0; i < rows_count(list, object); i++) {
        const void *row = row_at(list, object, i);

        (void)json_array_append_new(json, list->fields[1].key == NULL
                                              ? value_json(list->fields, root, row)
                                              : sherdi_fields_json(list->fields, root, row));
    }
    return json;
}

static json_t *value_json(const sherdi_field *field, const void *root, const void *object)
{
    const void *at = member(object, field->offset);
    char        text[SHERDI_HEX_DIGITS + 1];

    switch (field->type) {
    case SHERDI_FIELD_NUMBER:
        return field->name != NULL && number_get(field, at) == -1
                   ? json_string(field->name(root, 0))
                   : json_integer(number_get(field, at));
    case SHERDI_FIELD_FLAG:
        return json_boolean(*(const int *)at);
    case SHERDI_FIELD_REAL:
        return json_real(*(const double *)at);
    case SHERDI_FIELD_HASH:
        (void)snprintf(text, sizeof(text), "%016" PRIx64, *(const uint64_t *)at);
        return json_string(text);
    case SHERDI_FIELD_TEXT:
        return json_string(at);
    case SHERDI_FIELD_STRING:
        return json_string(*(const char *const *)at);
    case SHERDI_FIELD_NAME:
        return json_string(field->name(root, (int)number_get(field, at)));
    case SHERDI_FIELD_OBJECT:
        return sherdi_fields_json(field->fields, root, object);
    case SHERDI_FIELD_LIST:
        return list_json(field, root, object);
    }
    return NULL;
}

json_t *sherdi_fields_json(const sherdi_field *fields, const void *root, const void *object)
{
    json_t *json = json_object();

    for (const sherdi_field *f = fields; f->key != NULL; f++) {
        if (is_there(f, object) || f->type == SHERDI_FIELD_HASH) {
            (void)json_object_set_new(
                json, f->key, is_there(f, object) ? value_json(f, root, object) : json_null());
        }
    }
    return json;
}

void sherdi_fields_print(const sherdi_field *fields, const void *object, int has_keys,
                         sherdi_text *text)
{
    for (const sherdi_field *f = fields; f->key != NULL && is_there(f, object); f++) {
        sherdi_text_print(text, f == fields ? "" : ", ");
        if (has_keys) {
            sherdi_text_print(text, "\"%s\": ", f->key);
        }
        if (f->type == SHERDI_FIELD_STRING) {
            sherdi_text_quote(text, *(const char **)member(object, f->offset));
        } else {
            char    bytes[64];
            json_t *json = value_json(f, NULL, object);

            sherdi_text_put(text, bytes, json_dumpb(json, bytes, sizeof(bytes), JSON_ENCODE_ANY));
            json_decref(json);
        }
    }
}

/* ------------------------------------------------------------------- reading -- */

sherd_status sherdi_fields_damaged(const sherdi_fields_reader *r, const char *what)
{
    return sherdi_fail(SHERD_E_INVAL, r->sentence, r->label, what);
}

static const char *const EXPECTED[] = {
    [SHERDI_FIELD_NUMBER] = "out of range",
    [SHERDI_FIELD_FLAG]   = "neither true nor false",
    [SHERDI_FIELD_REAL]   = "not above zero",
    [SHERDI_FIELD_HASH]   = "not 16 hexadecimal digits",
    [SHERDI_FIELD_TEXT]   = "too long",
    [SHERDI_FIELD_STRING] = "empty",
    [SHERDI_FIELD_NAME]   = "none that this version knows",
    [SHERDI_FIELD_OBJECT] = "no block in braces",
    [SHERDI_FIELD_LIST]   = "no list, or has more rows than this version reads",
};

static sherd_status field_damaged(const sherdi_fields_reader *r, const sherdi_field *field)
{
    char text[256];

    (void)snprintf(text, sizeof(text), "its %s is missing or %s, near line %u", field->key,
                   EXPECTED[field->type], r->line);
    return sherdi_fields_damaged(r, text);
}

int sherdi_hash_read(const char *text, uint64_t *out)
{
    return strspn(text, "0123456789abcdef") >= SHERDI_HEX_DIGITS &&
           sscanf(text, "%16" SCNx64, out) == 1;
}

/* Returns the number of which a string is the name; -1: none. */
static int name_find(const sherdi_fields_reader *r, const sherdi_field *field,
                     const sherdi_json_node *node)
{
    const char *name;

    for (int i = 0; node->kind == SHERDI_JSON_STRING; i++) {
        name = field->name(r->root, i);
        if (name == NULL || strcmp(name, node->string) == 0) {
            return name == NULL ? -1 : i;
        }
    }
    return -1;
}

static sherd_status row_add(const sherdi_fields_reader *r, const sherdi_field *list, void *object)
{
    size_t count = rows_count(list, object);

    if (list->capacity == 0) {
        *(int *)member(object, list->count) = (int)count + 1;
        return count < (size_t)list->most ? SHERD_OK : field_damaged(r, list);
    }
    SHERDI_TRY(sherdi_grow(r->mem, SHERDI_MEM_CONTROL, member(object, list->offset),
                           member(object, list->capacity), count + 1, list->bytes));
    *(size_t *)member(object, list->count) = count + 1;
    return SHERD_OK;
}

static sherd_status list_read(sherdi_fields_reader *r, const sherdi_field *list,
                              const sherdi_json_node *node, void *object)
{
    if (node->kind != SHERDI_JSON_ARRAY) {
        return field_damaged(r, list);
    }
    for (node = sherdi_json_first(node); node != NULL; node = sherdi_json_next(node)) {
        size_t index = rows_count(list, object);

        SHERDI_TRY(row_add(r, list, object));
        SHERDI_TRY(sherdi_fields_read(r, list->fields, node, row_at(list, object, index)));
    }
    return SHERD_OK;
}

static sherd_status string_keep(const sherdi_fields_reader *r, const char *string, const char **out)
{
    *out = r->is_borrowed ? string : sherdi_strdup(r->mem, string);
    return *out == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

/* Reads a value into its member. */
static sherd_status value_read(sherdi_fields_reader *r, const sherdi_field *field,
                               const sherdi_json_node *node, void *object)
{
    void       *at        = member(object, field->offset);
    const char *string    = node->kind == SHERDI_JSON_STRING ? node->string : NULL;
    size_t      len_bytes = string == NULL ? SIZE_MAX : strlen(string);
    int64_t     number    = -1;
    int         is_ok     = 0;

    switch (field->type) {
    case SHERDI_FIELD_NUMBER:
        is_ok = (field->name != NULL && name_find(r, field, node) == 0) ||
                (node->kind == SHERDI_JSON_NUMBER &&
                 sherdi_json_integer(node, &number) == SHERDI_JSON_FITS && number >= field->least &&
                 number <= (field->most != 0              ? field->most
                            : field->bytes == sizeof(int) ? INT32_MAX
                                                          : INT64_MAX));
        break;
    case SHERDI_FIELD_FLAG:
        number = node->is_true;
        is_ok  = node->kind == SHERDI_JSON_BOOL;
        break;
    case SHERDI_FIELD_NAME:
        number = name_find(r, field, node);
        is_ok  = number >= 0;
        break;
    case SHERDI_FIELD_HASH:
        is_ok = len_bytes == SHERDI_HEX_DIGITS && sherdi_hash_read(string, (uint64_t *)&number);
        break;
    case SHERDI_FIELD_REAL:
        *(double *)at = node->number; /* 0 unless it is a number */
        return node->number > 0 ? SHERD_OK : field_damaged(r, field);
    case SHERDI_FIELD_TEXT:
        if (len_bytes >= field->bytes) {
            return field_damaged(r, field);
        }
        memcpy(at, string, len_bytes + 1);
        return SHERD_OK;
    case SHERDI_FIELD_STRING:
        return string == NULL || len_bytes < (size_t)field->least ? field_damaged(r, field)
                                                                  : string_keep(r, string, at);
    case SHERDI_FIELD_OBJECT:
        return sherdi_fields_read(r, field->fields, node, object);
    case SHERDI_FIELD_LIST:
        return list_read(r, field, node, object);
    }
    if (!is_ok) {
        return field_damaged(r, field);
    }
    number_set(field, at, number);
    return SHERD_OK;
}

/* `node` is NULL if the field is not there. */
static sherd_status field_read(sherdi_fields_reader *r, const sherdi_field *field,
                               const sherdi_json_node *node, void *object)
{
    int is_here = node != NULL && node->kind != SHERDI_JSON_NULL;

    if (field->has != 0) {
        *(int *)member(object, field->has) = is_here;
    }
    if (!is_here) {
        return field->has != 0 || field->since != NULL ? SHERD_OK : field_damaged(r, field);
    }
    r->line = node->line;
    return value_read(r, field, node, object);
}

sherd_status sherdi_fields_read(sherdi_fields_reader *r, const sherdi_field *fields,
                                const sherdi_json_node *node, void *object)
{
    const sherdi_json_node *value =
        node->kind == SHERDI_JSON_ARRAY ? sherdi_json_first(node) : node;

    for (const sherdi_field *f = fields; f->key != NULL; f++) {
        SHERDI_TRY(field_read(
            r, f, node->kind == SHERDI_JSON_OBJECT ? sherdi_json_find(node, f->key) : value,
            object));
        value = node->kind == SHERDI_JSON_ARRAY && value != NULL ? sherdi_json_next(value) : NULL;
    }
    return SHERD_OK;
}
