/* safetensors: reads the header of a file, or of all files that an index names. Does not read the
 * weights. Read model_tensors.c next. */
#include "planning/model_impl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- one tensor of a header ---- */

typedef struct dtype_row {
    const char *name;
    size_t      bits;
    int         is_float;
} dtype_row;

static const dtype_row dtypes[] = {
    {"F64", 64, 1},    {"F32", 32, 1},    {"F16", 16, 1},    {"BF16", 16, 1},   {"F8_E5M2", 8, 1},
    {"F8_E4M3", 8, 1}, {"F8_E8M0", 8, 1}, {"F6_E2M3", 6, 1}, {"F6_E3M2", 6, 1}, {"F4", 4, 1},
    {"I64", 64, 0},    {"I32", 32, 0},    {"I16", 16, 0},    {"I8", 8, 0},      {"U64", 64, 0},
    {"U32", 32, 0},    {"U16", 16, 0},    {"U8", 8, 0},      {"BOOL", 8, 0},    {"C64", 64, 0},
};

static const dtype_row *dtype_find(const char *name)
{
    for (size_t i = 0; name != NULL && i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

/* Reads a shape (as much of it as a parameter can have) and the number of elements. */
static int shape_read(planning_maker *maker, const char *name, const json_t *list, int *ndim_out,
                      size_t *shape, size_t *elems_out)
{
    char where[192];

    (void)snprintf(where, sizeof(where), "the shape of tensor %.100s", name);
    if (!json_is_array(list)) {
        return planning_maker_fail(maker, "%s is %s; it has to be a list", where,
                                   hf_json_kind(list));
    }
    *elems_out = 1;
    *ndim_out  = (int)json_array_size(list);
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t size;

        if (planning_json_size(maker, json_array_get(list, i), where, 0, PLANNING_MOST_ELEMS,
                               &size) != 0) {
            return -1;
        }
        if (__builtin_mul_overflow(*elems_out, size, elems_out)) {
            return planning_maker_fail(maker, "%s has too many elements", where);
        }
        if (i < SHERD_MAX_NDIM) {
            shape[i] = size;
        }
    }
    return 0;
}

static int range_check(planning_maker *maker, const char *name, const json_t *range, size_t elems,
                       const dtype_row *dtype, size_t data_bytes)
{
    size_t begin, end, bits;
    char   where[192];

    (void)snprintf(where, sizeof(where), "data_offsets of tensor %.100s", name);
    if (!json_is_array(range) || json_array_size(range) != 2) {
        return planning_maker_fail(maker, "%s has to be a list of two numbers", where);
    }
    if (planning_json_size(maker, json_array_get(range, 0), where, 0, SIZE_MAX / 2, &begin) != 0 ||
        planning_json_size(maker, json_array_get(range, 1), where, 0, SIZE_MAX / 2, &end) != 0) {
        return -1;
    }
    if (begin > end || end > data_bytes) {
        return planning_maker_fail(
            maker, "%s are %zu to %zu, but the data are %zu bytes; is the file whole?", where,
            begin, end, data_bytes);
    }
    if (__builtin_mul_overflow(elems, dtype->bits, &bits) || (bits + 7) / 8 != end - begin) {
        return planning_maker_fail(
            maker, "%s are %zu bytes apart, which is not the size of %zu elements of %s", where,
            end - begin, elems, dtype->name);
    }
    return 0;
}

/* Returns whether a tensor is something that some models save in addition to their parameters: a
 * mask of attention, or frequencies of rotations. */
static int name_is_buffer(const char *name, int ndim)
{
    return ((planning_name_ends(name, ".attn.bias") ||
             planning_name_ends(name, ".attn.masked_bias")) &&
            (ndim == 4 || ndim == 0)) ||
           planning_name_ends(name, "rotary_emb.inv_freq");
}

static int tensor_read(planning_maker *maker, const char *name, const json_t *value,
                       size_t data_bytes, planning_tensors *list)
{
    const char      *type  = json_string_value(json_object_get(value, "dtype"));
    const dtype_row *dtype = dtype_find(type);
    size_t           shape[SHERD_MAX_NDIM], elems = 0;
    int              ndim = 0;

    if (!json_is_object(value)) {
        return planning_maker_fail(maker, "tensor %.100s is %s; it has to be an object", name,
                                   hf_json_kind(value));
    }
    if (dtype == NULL) {
        return planning_maker_fail(maker, "tensor %.100s has the dtype %.40s, which is not known",
                                   name, type == NULL ? "(none)" : type);
    }
    if (shape_read(maker, name, json_object_get(value, "shape"), &ndim, shape, &elems) != 0 ||
        range_check(maker, name, json_object_get(value, "data_offsets"), elems, dtype,
                    data_bytes) != 0) {
        return -1;
    }
    if (elems == 0 || name_is_buffer(name, ndim)) {
        return 0;
    }
    if (!dtype->is_float) {
        list->integer_elems += elems;
        return 0;
    }
    list->float_elems += elems;
    return planning_tensors_append(maker, list, name, ndim, shape);
}

/* ---- a header ---- */

/* Reads the header's JSON; returns NULL with a message. */
static json_t *header_load(planning_maker *maker, const planning_file *file, size_t *data_bytes_out)
{
    unsigned char length[8];
    size_t        header_bytes;
    json_t       *root;

    if (file->len_bytes < sizeof(length)) {
        (void)planning_maker_fail(maker, "is no safetensors file: it has only %zu bytes",
                                  file->len_bytes);
        return NULL;
    }
    if (planning_file_read(maker, file, 0, length, sizeof(length)) != 0) {
        return NULL;
    }
    header_bytes = planning_bytes_size(length, sizeof(length));
    if (header_bytes > PLANNING_MOST_JSON_BYTES) {
        (void)planning_maker_fail(maker,
                                  "its first 8 bytes announce a header of %zu bytes; at most "
                                  "%zu can be: this is no safetensors file",
                                  header_bytes, PLANNING_MOST_JSON_BYTES);
        return NULL;
    }
    if (header_bytes > file->len_bytes - sizeof(length)) {
        (void)planning_maker_fail(
            maker, "announces a header of %zu bytes, but has only %zu; the file is cut short",
            header_bytes, file->len_bytes - sizeof(length));
        return NULL;
    }
    root = planning_file_json(maker, file, sizeof(length), header_bytes);
    if (root != NULL && !json_is_object(root)) {
        (void)planning_maker_fail(maker, "its header is %s; it has to be an object",
                                  hf_json_kind(root));
        json_decref(root);
        root = NULL;
    }
    *data_bytes_out = file->len_bytes - sizeof(length) - header_bytes;
    return root;
}

/* Reads the tensors of one file. With a map only those that the map assigns to the file `shard`,
 * whose number is added to *matched. */
static int header_read(planning_maker *maker, const planning_file *file, const json_t *map,
                       const char *shard, size_t *matched, planning_tensors *list)
{
    size_t      data_bytes = 0;
    json_t     *root       = header_load(maker, file, &data_bytes);
    const char *name;
    json_t     *value;
    int         result = root == NULL ? -1 : 0;

    json_object_foreach(root, name, value)
    {
        if (result != 0 || strcmp(name, "__metadata__") == 0) {
            continue;
        }
        if (map != NULL) {
            const char *file_of = json_string_value(json_object_get(map, name));

            if (file_of == NULL || strcmp(file_of, shard) != 0) {
                continue;
            }
            (*matched)++;
        }
        result = tensor_read(maker, name, value, data_bytes, list);
    }
    json_decref(root);
    return result;
}

int planning_read_safetensors(planning_maker *maker, const planning_file *file, const char *name)
{
    planning_tensors list   = {0};
    int              result = header_read(maker, file, NULL, NULL, NULL, &list);

    if (result == 0) {
        result = planning_tensors_add(maker, &list);
    }
    planning_tensors_fini(&list);
    return result != 0 ? -1 : planning_maker_set_label(maker, "%s", name);
}

/* ---- an index of several files ---- */

/* Returns the files that the map names, each once: as the keys of an object, in the order of the
 * map. */
static json_t *shards_of(planning_maker *maker, json_t *map)
{
    json_t     *shards = json_object();
    const char *name;
    json_t     *value;

    if (shards == NULL) {
        (void)planning_maker_no_memory(maker);
        return NULL;
    }
    json_object_foreach(map, name, value)
    {
        const char *shard = json_string_value(value);

        if (shard == NULL || shard[0] == '\0' || strchr(shard, '/') != NULL) {
            (void)planning_maker_fail(maker,
                                      "weight_map: the file of tensor %.100s is %s; it has to "
                                      "be the name of a file in the same folder",
                                      name, shard == NULL ? hf_json_kind(value) : shard);
            json_decref(shards);
            return NULL;
        }
        if (json_object_set_new(shards, shard, json_true()) != 0) {
            (void)planning_maker_no_memory(maker);
            json_decref(shards);
            return NULL;
        }
    }
    return shards;
}

/* Reads one file of an index. Messages about it begin with its own path. */
static int shard_read(planning_maker *maker, const json_t *map, const char *shard, size_t *matched,
                      planning_tensors *list)
{
    const char *index = maker->origin;
    const char *slash = strrchr(index, '/');
    char       *path =
        planning_text(maker, "%.*s%s", slash == NULL ? 0 : (int)(slash - index) + 1, index, shard);
    planning_file file = {0};
    int           result;

    if (path == NULL) {
        return -1;
    }
    maker->origin = path;
    result        = planning_file_open(maker, path, &file);
    if (result == 0) {
        result = header_read(maker, &file, map, shard, matched, list);
    }
    planning_file_close(&file);
    maker->origin = index;
    free(path);
    return result;
}

int planning_read_index(planning_maker *maker, const json_t *root, const char *name)
{
    json_t          *map     = json_object_get(root, "weight_map");
    planning_tensors list    = {0};
    size_t           matched = 0;
    json_t          *shards, *value;
    const char      *shard;
    int              result;

    if (!json_is_object(map) || json_object_size(map) == 0) {
        return planning_maker_fail(maker,
                                   "weight_map has to be an object that names the file of each "
                                   "tensor");
    }
    shards = shards_of(maker, map);
    result = shards == NULL ? -1 : 0;
    json_object_foreach(shards, shard, value)
    {
        if (result == 0) {
            result = shard_read(maker, map, shard, &matched, &list);
        }
    }
    json_decref(shards);
    if (result == 0 && matched != json_object_size(map)) {
        result = planning_maker_fail(
            maker,
            "weight_map names %zu tensors, of which the files in its folder hold %zu; files and "
            "index are not of the same model",
            json_object_size(map), matched);
    }
    if (result == 0) {
        result = planning_tensors_add(maker, &list);
    }
    planning_tensors_fini(&list);
    return result != 0 ? -1 : planning_maker_set_label(maker, "%s", name);
}
