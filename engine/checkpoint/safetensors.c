/* Reads headers of safetensors files. See safetensors.h; safetensors_build.c writes them. */
#include "engine/checkpoint/safetensors.h"

#include "base/checked.h"
#include "base/json.h"
#include "engine/checkpoint/bytes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A header: the public part, then the memory that it points at. */
typedef struct header {
    sherdi_safetensors    file;
    sherdi_tensor        *tensors;
    sherdi_tensor_note   *metadata;
    const sherdi_tensor **by_name;
    char                 *names; /* all strings, consecutive */
    size_t                names_bytes;
} header;

/* ---- types ---- */

static const struct {
    const char *name;
    size_t      bytes;
} DTYPES[SHERDI_TENSOR_DTYPES] = {
#define DTYPE_ROW(name, bytes) {#name, bytes},
    SHERDI_TENSOR_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *sherdi_tensor_dtype_name(sherdi_tensor_dtype dtype)
{
    return DTYPES[dtype].name;
}

size_t sherdi_tensor_dtype_bytes(sherdi_tensor_dtype dtype)
{
    return DTYPES[dtype].bytes;
}

sherdi_tensor_dtype sherdi_tensor_dtype_of(const char *name)
{
    sherdi_tensor_dtype dtype = 0;

    while (dtype < SHERDI_TENSOR_DTYPES && strcmp(DTYPES[dtype].name, name) != 0) {
        dtype++;
    }
    return dtype;
}

/* ---- one tensor ---- */

#define NAME_SHOWN 200 /* bytes of a name in a message */

static sherd_status tensor_fail(const header *h, const sherdi_tensor *tensor, const char *what)
{
    return sherdi_fail(SHERD_E_INVAL, "%s: tensor %.*s: %s", h->file.label, NAME_SHOWN,
                       tensor->name, what);
}

/* Copies a string, since those of the document are freed with it. `names` has room for all:
 * unescaped and with its NUL, a string is never longer than with its quotes in the header. */
static const char *text_keep(header *h, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char  *copy  = h->names + h->names_bytes;

    memcpy(copy, text, bytes);
    h->names_bytes += bytes;
    return copy;
}

/* Reads a size: digits only. 1e3 and 1.0 are JSON, but the format does not allow them as sizes. */
static int size_read(const sherdi_json_node *node, size_t *out)
{
    int64_t value;

    if (node->kind != SHERDI_JSON_NUMBER || memchr(node->lexeme, '.', node->lexeme_bytes) != NULL ||
        memchr(node->lexeme, 'e', node->lexeme_bytes) != NULL ||
        memchr(node->lexeme, 'E', node->lexeme_bytes) != NULL ||
        sherdi_json_integer(node, &value) != SHERDI_JSON_FITS || value < 0) {
        return 0;
    }
    *out = (size_t)value;
    return 1;
}

/* Reads a list of sizes and returns their number; -1: it is not a list, has more than `most`, or
 * has something else in it. */
static int sizes_read(const sherdi_json_node *list, int most, size_t *out)
{
    int count = 0;

    if (list == NULL || list->kind != SHERDI_JSON_ARRAY) {
        return -1;
    }
    for (list = sherdi_json_first(list); list != NULL; list = sherdi_json_next(list)) {
        if (count == most || !size_read(list, &out[count])) {
            return -1;
        }
        count++;
    }
    return count;
}

static sherd_status dtype_read(const header *h, const sherdi_json_node *node, sherdi_tensor *tensor)
{
    if (node == NULL || node->kind != SHERDI_JSON_STRING) {
        return tensor_fail(h, tensor, "its dtype is not given as a string");
    }
    tensor->dtype = sherdi_tensor_dtype_of(node->string);
    return tensor->dtype < SHERDI_TENSOR_DTYPES
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "%s: tensor %.*s: the dtype %.40s is not known",
                             h->file.label, NAME_SHOWN, tensor->name, node->string);
}

static sherd_status shape_read(const header *h, const sherdi_json_node *node, sherdi_tensor *tensor)
{
    tensor->ndim  = sizes_read(node, SHERD_MAX_NDIM, tensor->shape);
    tensor->elems = 1;
    if (tensor->ndim < 0) {
        return tensor_fail(h, tensor, "its shape is not a list of at most 8 sizes");
    }
    for (int i = 0; i < tensor->ndim; i++) {
        if (!sherdi_mul_fits(tensor->elems, tensor->shape[i], &tensor->elems)) {
            return tensor_fail(h, tensor, "its shape has too many elements");
        }
    }
    return SHERD_OK;
}

static sherd_status range_read(const header *h, const sherdi_json_node *node, sherdi_tensor *tensor)
{
    size_t range[2], bytes;

    if (sizes_read(node, 2, range) != 2) {
        return tensor_fail(h, tensor, "its data_offsets are not a list of two sizes");
    }
    tensor->begin = range[0];
    tensor->end   = range[1];
    if (tensor->begin > tensor->end || tensor->end > h->file.data_bytes) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s: tensor %.*s: its data_offsets are %zu to %zu, and the file has %zu bytes "
            "of data; is it whole?",
            h->file.label, NAME_SHOWN, tensor->name, tensor->begin, tensor->end,
            h->file.data_bytes);
    }
    if (!sherdi_mul_fits(tensor->elems, DTYPES[tensor->dtype].bytes, &bytes) ||
        bytes != tensor->end - tensor->begin) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: tensor %.*s: its data_offsets are %zu bytes apart, which is not "
                           "the size of %zu elements of %s",
                           h->file.label, NAME_SHOWN, tensor->name, tensor->end - tensor->begin,
                           tensor->elems, DTYPES[tensor->dtype].name);
    }
    return SHERD_OK;
}

static sherd_status tensor_read(header *h, const sherdi_json_node *node)
{
    sherdi_tensor *tensor = &h->tensors[h->file.num_tensors++];

    tensor->name = text_keep(h, node->key);
    if (node->kind != SHERDI_JSON_OBJECT) {
        return tensor_fail(h, tensor, "it is not described by an object");
    }
    for (const sherdi_json_node *member = sherdi_json_first(node); member != NULL;
         member                         = sherdi_json_next(member)) {
        if (strcmp(member->key, "dtype") != 0 && strcmp(member->key, "shape") != 0 &&
            strcmp(member->key, "data_offsets") != 0) {
            return tensor_fail(h, tensor, "it has a key other than dtype, shape and data_offsets");
        }
    }
    SHERDI_TRY(dtype_read(h, sherdi_json_find(node, "dtype"), tensor));
    SHERDI_TRY(shape_read(h, sherdi_json_find(node, "shape"), tensor));
    return range_read(h, sherdi_json_find(node, "data_offsets"), tensor);
}

/* ---- metadata ---- */

static size_t children_of(const sherdi_json_node *node)
{
    size_t count = 0;

    if (node != NULL) {
        for (node = sherdi_json_first(node); node != NULL; node = sherdi_json_next(node)) {
            count++;
        }
    }
    return count;
}

static sherd_status metadata_read(sherdi_mem *mem, header *h, const sherdi_json_node *node)
{
    if (node == NULL) {
        return SHERD_OK;
    }
    if (node->kind != SHERDI_JSON_OBJECT) {
        return sherdi_fail(SHERD_E_INVAL, "%s: __metadata__ is not an object of strings",
                           h->file.label);
    }
    h->metadata =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, children_of(node), sizeof(*h->metadata));
    h->file.metadata = h->metadata;
    if (h->metadata == NULL) {
        return SHERD_E_NOMEM;
    }
    for (node = sherdi_json_first(node); node != NULL; node = sherdi_json_next(node)) {
        if (node->kind != SHERDI_JSON_STRING) {
            return sherdi_fail(SHERD_E_INVAL, "%s: the value of __metadata__ key %.*s is no string",
                               h->file.label, NAME_SHOWN, node->key);
        }
        h->metadata[h->file.num_metadata].key     = text_keep(h, node->key);
        h->metadata[h->file.num_metadata++].value = text_keep(h, node->string);
    }
    return SHERD_OK;
}

/* ---- all tensors ---- */

/* Orders tensors by their data. An empty tensor comes before one that begins at the same byte. */
static int order_by_data(const void *a, const void *b)
{
    const sherdi_tensor *one = a, *other = b;

    if (one->begin != other->begin) {
        return one->begin < other->begin ? -1 : 1;
    }
    return (one->end > other->end) - (one->end < other->end);
}

int sherdi_named_order(const void *a, const void *b)
{
    return strcmp(**(const char *const *const *)a, **(const char *const *const *)b);
}

static sherd_status ranges_check(const header *h)
{
    size_t at = 0;

    for (size_t i = 0; i < h->file.num_tensors; i++) {
        const sherdi_tensor *tensor = &h->tensors[i];

        if (tensor->begin != at) {
            return sherdi_fail(
                SHERD_E_INVAL,
                "%s: tensor %.*s begins at byte %zu of the data, and what lies before "
                "it ends at %zu",
                h->file.label, NAME_SHOWN, tensor->name, tensor->begin, at);
        }
        at = tensor->end;
    }
    if (at != h->file.data_bytes) {
        return sherdi_fail(SHERD_E_INVAL, "%s: its tensors are %zu bytes, and its data are %zu",
                           h->file.label, at, h->file.data_bytes);
    }
    return SHERD_OK;
}

static sherd_status tensors_read(sherdi_mem *mem, header *h, const sherdi_json_node *root)
{
    const sherdi_json_node *metadata = sherdi_json_find(root, "__metadata__");
    size_t                  count    = children_of(root) - (metadata != NULL);

    h->tensors      = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*h->tensors));
    h->by_name      = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*h->by_name));
    h->file.tensors = h->tensors;
    if (h->tensors == NULL || h->by_name == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(metadata_read(mem, h, metadata));
    for (root = sherdi_json_first(root); root != NULL; root = sherdi_json_next(root)) {
        if (root != metadata) {
            SHERDI_TRY(tensor_read(h, root));
        }
    }
    qsort(h->tensors, count, sizeof(*h->tensors), order_by_data);
    for (size_t i = 0; i < count; i++) {
        h->by_name[i] = &h->tensors[i];
    }
    qsort(h->by_name, count, sizeof(*h->by_name), sherdi_named_order);
    return ranges_check(h);
}

/* ---- a header ---- */

static sherd_status header_fill(sherdi_mem *mem, header *h, const char *text, size_t len_bytes)
{
    sherdi_json *document;
    sherd_status status;

    h->file.label = sherdi_strdup(mem, h->file.label);
    h->names      = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes + 1);
    if (h->file.label == NULL || h->names == NULL) {
        return SHERD_E_NOMEM;
    }
    if (len_bytes == 0 || text[0] != '{') {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is no safetensors file: its header does not begin with a brace",
                           h->file.label);
    }
    SHERDI_TRY(sherdi_json_parse(mem, h->file.label, text, len_bytes, &document));
    status = tensors_read(mem, h, sherdi_json_root(document));
    sherdi_json_destroy(document);
    return status;
}

static sherd_status lengths_check(const char *label, size_t header_bytes, size_t file_bytes)
{
    if (header_bytes > SHERDI_SAFETENSORS_MAX_HEADER_BYTES) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is no safetensors file: its first 8 bytes announce a header of %zu "
                           "bytes, and the longest one has %zu",
                           label, header_bytes, SHERDI_SAFETENSORS_MAX_HEADER_BYTES);
    }
    if (file_bytes < SHERDI_SAFETENSORS_PREFIX_BYTES ||
        header_bytes > file_bytes - SHERDI_SAFETENSORS_PREFIX_BYTES) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s announces a header of %zu bytes, and the whole file has %zu; is it "
                           "cut short?",
                           label, header_bytes, file_bytes);
    }
    return SHERD_OK;
}

sherd_status sherdi_safetensors_parse(sherdi_mem *mem, const char *label, const char *text,
                                      size_t len_bytes, size_t file_bytes, sherdi_safetensors **out)
{
    header      *h;
    sherd_status status;

    SHERDI_TRY(lengths_check(label, len_bytes, file_bytes));
    h = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*h));
    if (h == NULL) {
        return SHERD_E_NOMEM;
    }
    h->file.label      = label;
    h->file.data_at    = SHERDI_SAFETENSORS_PREFIX_BYTES + len_bytes;
    h->file.data_bytes = file_bytes - h->file.data_at;
    status             = header_fill(mem, h, text, len_bytes);
    if (status != SHERD_OK) {
        if (h->file.label == label) { /* it was not copied, and is not ours to free */
            h->file.label = NULL;
        }
        sherdi_safetensors_destroy(&h->file);
        return status;
    }
    *out = &h->file;
    return SHERD_OK;
}

void sherdi_safetensors_destroy(sherdi_safetensors *file)
{
    header *h = (header *)file; /* `file` is its first member */

    if (h == NULL) {
        return;
    }
    sherdi_free((char *)(uintptr_t)h->file.label);
    sherdi_free(h->metadata);
    sherdi_free(h->by_name);
    sherdi_free(h->tensors);
    sherdi_free(h->names);
    sherdi_free(h);
}

/* ---- files ---- */

static sherd_status header_read(sherdi_mem *mem, const char *label, int fd, size_t file_bytes,
                                sherdi_safetensors **out)
{
    unsigned char prefix[SHERDI_SAFETENSORS_PREFIX_BYTES];
    size_t        len_bytes = 0;
    char         *text;
    sherd_status  status;

    if (file_bytes < sizeof(prefix)) {
        return sherdi_fail(SHERD_E_INVAL, "%s is no safetensors file: it has %zu bytes", label,
                           file_bytes);
    }
    SHERDI_TRY(sherdi_bytes_read(label, fd, 0, prefix, sizeof(prefix)));
    for (size_t i = sizeof(prefix); i-- > 0;) {
        len_bytes = len_bytes << 8 | prefix[i];
    }
    SHERDI_TRY(lengths_check(label, len_bytes, file_bytes));
    text = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes);
    if (text == NULL) {
        return SHERD_E_NOMEM;
    }
    status = sherdi_bytes_read(label, fd, sizeof(prefix), text, len_bytes);
    if (status == SHERD_OK) {
        status = sherdi_safetensors_parse(mem, label, text, len_bytes, file_bytes, out);
    }
    sherdi_free(text);
    return status;
}

sherd_status sherdi_safetensors_open(sherdi_mem *mem, const char *path, int *fd_out,
                                     sherdi_safetensors **out)
{
    sherd_status status;
    size_t       file_bytes;
    int          fd;

    SHERDI_TRY(sherdi_bytes_open(path, &fd, &file_bytes));
    status = header_read(mem, path, fd, file_bytes, out);
    if (status == SHERD_OK && fd_out != NULL) {
        *fd_out = fd;
    } else {
        (void)close(fd);
    }
    return status;
}

/* ---- looking ---- */

const sherdi_tensor *sherdi_safetensors_find(const sherdi_safetensors *file, const char *name)
{
    const header         *h      = (const header *)file;
    const sherdi_tensor   wanted = {.name = name};
    const sherdi_tensor  *key    = &wanted;
    const sherdi_tensor **found =
        bsearch(&key, h->by_name, h->file.num_tensors, sizeof(*h->by_name), sherdi_named_order);

    return found == NULL ? NULL : *found;
}

const char *sherdi_safetensors_note(const sherdi_safetensors *file, const char *key)
{
    for (size_t i = 0; i < file->num_metadata; i++) {
        if (strcmp(file->metadata[i].key, key) == 0) {
            return file->metadata[i].value;
        }
    }
    return NULL;
}
