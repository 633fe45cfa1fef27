/* Reads files of weights by ranges. See weights.h. */
#include "engine/checkpoint/weights.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/json_text.h"
#include "engine/checkpoint/bytes.h"
#include "kernels/formulas.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"
#define SUFFIX ".safetensors"

typedef struct shard {
    sherdi_safetensors *header;
    size_t              data_at; /* in the file */
    int                 fd;
} shard;

struct sherdi_weights_file {
    sherdi_mem *mem;
    shard      *shards;
    size_t      num_shards;
};

/* ---- files ---- */

static sherd_status shards_make(sherdi_weights_file *file, size_t count)
{
    file->shards = sherdi_alloc_array(file->mem, SHERDI_MEM_CONTROL, count, sizeof(*file->shards));
    return file->shards == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static sherd_status shard_add(sherdi_weights_file *file, const char *path)
{
    shard *added = &file->shards[file->num_shards];

    SHERDI_TRY(sherdi_safetensors_open(file->mem, path, &added->fd, &added->header));
    added->data_at = added->header->data_at;
    file->num_shards++;
    return SHERD_OK;
}

static sherd_status single_open(sherdi_weights_file *file, const char *path)
{
    SHERDI_TRY(shards_make(file, 1));
    return shard_add(file, path);
}

void sherdi_weights_close(sherdi_weights_file *file)
{
    if (file == NULL) {
        return;
    }
    for (size_t i = 0; i < file->num_shards; i++) {
        (void)close(file->shards[i].fd);
        sherdi_safetensors_destroy(file->shards[i].header);
    }
    sherdi_free(file->shards);
    sherdi_free(file);
}

/* ---- an index ---- */

static int name_is_plain(const char *name)
{
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

/* Collects the names of the files, each once, sorted. */
static sherd_status shard_names(const char *path, const sherdi_json_node *map, const char **names,
                                size_t *count_out)
{
    size_t count = 0, unique = 0;

    for (map = sherdi_json_first(map); map != NULL; map = sherdi_json_next(map)) {
        if (map->kind != SHERDI_JSON_STRING || !name_is_plain(map->string)) {
            return sherdi_fail(SHERD_E_INVAL,
                               "%s: the file of tensor %.200s has to be the name of a file in the "
                               "same folder",
                               path, map->key);
        }
        names[count++] = map->string;
    }
    qsort(names, count, sizeof(*names), sherdi_text_order);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(names[i], names[unique - 1]) != 0) {
            names[unique++] = names[i];
        }
    }
    *count_out = unique;
    return SHERD_OK;
}

/* Checks that each tensor is in the file that the index names, and that the files have no other
 * tensors. */
static sherd_status map_check(const sherdi_weights_file *file, const char *path,
                              const sherdi_json_node *map, const char *const *names)
{
    size_t listed = 0, held = 0;

    for (map = sherdi_json_first(map); map != NULL; map = sherdi_json_next(map)) {
        const char *const *name =
            bsearch(&map->string, names, file->num_shards, sizeof(*names), sherdi_text_order);

        listed++;
        if (sherdi_safetensors_find(file->shards[name - names].header, map->key) == NULL) {
            return sherdi_fail(SHERD_E_INVAL,
                               "%s says that tensor %.200s is in %.200s, which does not have it; "
                               "index and files are not of the same model",
                               path, map->key, map->string);
        }
    }
    for (size_t i = 0; i < file->num_shards; i++) {
        held += file->shards[i].header->num_tensors;
    }
    return listed == held
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_INVAL,
                     "%s names %zu tensors, and the files in its folder hold %zu; index and "
                     "files are not of the same model",
                     path, listed, held);
}

static sherd_status shards_open(sherdi_weights_file *file, const char *path,
                                const sherdi_json_node *map, const char **names)
{
    const char  *slash = strrchr(path, '/');
    size_t       count = 0;
    char         shard_path[PATH_MAX];
    sherd_status status = shard_names(path, map, names, &count);

    if (status == SHERD_OK) {
        status = shards_make(file, count);
    }
    for (size_t i = 0; i < count && status == SHERD_OK; i++) {
        if (snprintf(shard_path, sizeof(shard_path), "%.*s%s",
                     slash == NULL ? 0 : (int)(slash + 1 - path), path,
                     names[i]) >= (int)sizeof(shard_path)) {
            return sherdi_fail(SHERD_E_INVAL, "%s: the path of its file %.200s is too long", path,
                               names[i]);
        }
        status = shard_add(file, shard_path);
    }
    return status == SHERD_OK ? map_check(file, path, map, names) : status;
}

static sherd_status map_open(sherdi_weights_file *file, const char *path,
                             const sherdi_json_node *root)
{
    const sherdi_json_node *map = sherdi_json_find(root, "weight_map");
    const char            **names;
    sherd_status            status;

    if (map == NULL || map->kind != SHERDI_JSON_OBJECT || sherdi_json_first(map) == NULL) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is no index of safetensors: it has no object \"weight_map\" that "
                           "names the file of each tensor",
                           path);
    }
    /* at least as many as the map has members, each of which takes more bytes than a node */
    names  = sherdi_alloc_array(file->mem, SHERDI_MEM_CONTROL, (size_t)(map->end_node - map),
                                sizeof(*names));
    status = names == NULL ? SHERD_E_NOMEM : shards_open(file, path, map, names);
    sherdi_free(names);
    return status;
}

static sherd_status index_open(sherdi_weights_file *file, const char *path)
{
    sherdi_json *document = NULL;
    char        *text;
    size_t       len_bytes;
    sherd_status status;

    SHERDI_TRY(
        sherdi_bytes_load(file->mem, path, SHERDI_SAFETENSORS_MAX_HEADER_BYTES, &text, &len_bytes));
    status = sherdi_json_parse(file->mem, path, text, len_bytes, &document);
    sherdi_free(text);
    if (status == SHERD_OK) {
        status = map_open(file, path, sherdi_json_root(document));
    }
    sherdi_json_destroy(document);
    return status;
}

/* ---- a folder ---- */

static int ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);

    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

static int is_there(const char *folder, const char *name, char out[PATH_MAX])
{
    return snprintf(out, PATH_MAX, "%s/%s", folder, name) < PATH_MAX && access(out, F_OK) == 0;
}

/* Gives the path of the folder's only safetensors file. */
static sherd_status only_file(const char *folder, char out[PATH_MAX])
{
    DIR           *list  = opendir(folder);
    size_t         count = 0;
    struct dirent *entry;

    if (list == NULL) {
        return sherdi_fail(SHERD_E_IO, "%s cannot be read: %s", folder, strerror(errno));
    }
    while ((entry = readdir(list)) != NULL) {
        if (entry->d_name[0] != '.' && ends_with(entry->d_name, SUFFIX) && ++count == 1) {
            (void)is_there(folder, entry->d_name, out);
        }
    }
    (void)closedir(list);
    if (count == 1) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL,
                       "the folder %s has neither " INDEX " nor " SINGLE " and %zu other files of "
                       "safetensors; give the path of one",
                       folder, count);
}

static sherd_status folder_open(sherdi_weights_file *file, const char *folder)
{
    char path[PATH_MAX];

    if (is_there(folder, SINGLE, path)) { /* transformers too looks for this file first */
        return single_open(file, path);
    }
    if (is_there(folder, INDEX, path)) {
        return index_open(file, path);
    }
    SHERDI_TRY(only_file(folder, path));
    return single_open(file, path);
}

static sherd_status path_open(sherdi_weights_file *file, const char *path)
{
    struct stat about;

    if (stat(path, &about) != 0) {
        return sherdi_fail(SHERD_E_IO, "%s cannot be opened: %s", path, strerror(errno));
    }
    if (S_ISDIR(about.st_mode)) {
        return folder_open(file, path);
    }
    return ends_with(path, ".json") ? index_open(file, path) : single_open(file, path);
}

/* ---- files of other formats ---- */

/* Makes the header that a raw file would have as safetensors. So its tensors are found and its size
 * is checked as for all other files. */
static sherd_status raw_header_make(sherdi_weights_file *file, const char *path, size_t data_bytes,
                                    const sherdi_weights_raw *raw)
{
    static const sherdi_tensor_dtype DTYPES[] = {[SHERD_F32]  = SHERDI_TENSOR_F32,
                                                 [SHERD_BF16] = SHERDI_TENSOR_BF16,
                                                 [SHERD_F16]  = SHERDI_TENSOR_F16};
    sherdi_safetensors_builder      *builder;
    const char                      *bytes;
    size_t                           len_bytes;
    sherd_status                     status;

    SHERDI_TRY(sherdi_safetensors_begin(file->mem, 8, &builder));
    status = SHERD_OK;
    for (size_t i = 0; i < raw->maps->num_tensors && status == SHERD_OK; i++) {
        const sherd_tensor_map *map = &raw->maps->tensors[i];

        status = sherdi_safetensors_add(builder, map->name, DTYPES[raw->dtype], map->ndim,
                                        map->shape, NULL);
    }
    if (status == SHERD_OK && sherdi_safetensors_data_bytes(builder) != data_bytes) {
        status =
            sherdi_fail(SHERD_E_INVAL,
                        "%s has %zu bytes behind its header, and the tensors of this model are "
                        "%zu; is it whole, and of this model?",
                        path, data_bytes, sherdi_safetensors_data_bytes(builder));
    }
    if (status == SHERD_OK) {
        status = sherdi_safetensors_finish(builder, &bytes, &len_bytes);
    }
    if (status == SHERD_OK) {
        status = sherdi_safetensors_parse(file->mem, path, bytes + SHERDI_SAFETENSORS_PREFIX_BYTES,
                                          len_bytes - SHERDI_SAFETENSORS_PREFIX_BYTES,
                                          len_bytes + data_bytes, &file->shards[0].header);
    }
    sherdi_safetensors_builder_destroy(builder);
    return status;
}

static sherd_status raw_open(sherdi_weights_file *file, const char *path,
                             const sherdi_weights_raw *raw)
{
    size_t       file_bytes;
    int          fd;
    sherd_status status;

    SHERDI_TRY(shards_make(file, 1));
    SHERDI_TRY(sherdi_bytes_open(path, &fd, &file_bytes));
    status = file_bytes < raw->header_bytes
                 ? sherdi_fail(SHERD_E_INVAL, "%s has %zu bytes, and its header alone has %zu",
                               path, file_bytes, raw->header_bytes)
                 : raw_header_make(file, path, file_bytes - raw->header_bytes, raw);
    if (status != SHERD_OK) {
        (void)close(fd);
        return status;
    }
    file->shards[0].data_at = raw->header_bytes;
    file->shards[0].fd      = fd;
    file->num_shards        = 1;
    return SHERD_OK;
}

/* ---- every file ---- */

sherd_status sherdi_weights_open(sherdi_mem *mem, const char *path, const sherdi_weights_raw *raw,
                                 sherdi_weights_file **out)
{
    sherdi_weights_file *file = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*file));
    sherd_status         status;

    if (file == NULL) {
        return SHERD_E_NOMEM;
    }
    file->mem = mem;
    status    = raw == NULL ? path_open(file, path) : raw_open(file, path, raw);
    if (status != SHERD_OK) {
        sherdi_weights_close(file);
        return status;
    }
    *out = file;
    return SHERD_OK;
}

/* ---- tensors ---- */

int sherdi_weights_find(const sherdi_weights_file *file, const char *name,
                        sherdi_weights_tensor *out)
{
    size_t before = 0;

    for (size_t i = 0; i < file->num_shards; i++) {
        const sherdi_safetensors *header = file->shards[i].header;
        const sherdi_tensor      *found  = sherdi_safetensors_find(header, name);

        if (found != NULL) {
            *out = (sherdi_weights_tensor){
                .about = found, .shard = i, .number = before + (size_t)(found - header->tensors)};
            return 1;
        }
        before += header->num_tensors;
    }
    return 0;
}

int sherdi_weights_get(const sherdi_weights_file *file, size_t i, sherdi_weights_tensor *out)
{
    size_t before = 0;

    for (size_t s = 0; s < file->num_shards; s++) {
        const sherdi_safetensors *header = file->shards[s].header;

        if (i - before < header->num_tensors) {
            *out = (sherdi_weights_tensor){
                .about = &header->tensors[i - before], .shard = s, .number = i};
            return 1;
        }
        before += header->num_tensors;
    }
    return 0;
}

int sherdi_weights_is_readable(sherdi_tensor_dtype dtype)
{
    return dtype == SHERDI_TENSOR_F64 || dtype == SHERDI_TENSOR_F32 ||
           dtype == SHERDI_TENSOR_BF16 || dtype == SHERDI_TENSOR_F16;
}

/* ---- values ---- */

/* The bytes that are read at once, on the stack. */
#define READ_BYTES ((size_t)16384)

/* Files are little-endian, and so are the machines on which sherd runs. */
static void values_widen(sherdi_tensor_dtype dtype, const void *bytes, size_t count, float *out)
{
    const uint16_t *halves  = bytes;
    const double   *doubles = bytes;

    for (size_t i = 0; i < count; i++) {
        out[i] = dtype == SHERDI_TENSOR_BF16  ? sherdi_cast_bf16_f32(halves[i])
                 : dtype == SHERDI_TENSOR_F16 ? sherdi_cast_f16_f32(halves[i])
                                              : (float)doubles[i];
    }
}

sherd_status sherdi_weights_read(const sherdi_weights_file *file, sherdi_weights_tensor tensor,
                                 size_t first_elem, size_t count_elems, float *out)
{
    const shard              *from  = &file->shards[tensor.shard];
    sherdi_tensor_dtype       dtype = tensor.about->dtype;
    size_t                    wide  = sherdi_tensor_dtype_bytes(dtype);
    size_t                    at    = from->data_at + tensor.about->begin + first_elem * wide;
    _Alignas(8) unsigned char bytes[READ_BYTES];

    if (dtype == SHERDI_TENSOR_F32) {
        return sherdi_bytes_read(from->header->label, from->fd, at, out, count_elems * wide);
    }
    for (size_t done = 0; done < count_elems;) {
        size_t count = sherdi_min_size(count_elems - done, READ_BYTES / wide);

        SHERDI_TRY(sherdi_bytes_read(from->header->label, from->fd, at + done * wide, bytes,
                                     count * wide));
        values_widen(dtype, bytes, count, out + done);
        done += count;
    }
    return SHERD_OK;
}

/* Rows of the transposed matrix are columns of the file. For a range of whole rows of the
 * transposed matrix, each row of the file has one value for each of these rows, and the values are
 * consecutive. At both ends of a range a part of one row may remain. */
static sherd_status columns_read(const sherdi_weights_file *file, sherdi_weights_tensor tensor,
                                 size_t column, size_t count, size_t first_row, size_t num_rows,
                                 float *out)
{
    size_t stride = tensor.about->shape[1];
    float  values[READ_BYTES / sizeof(float)];

    for (size_t row = first_row; row < first_row + num_rows; row++) {
        for (size_t done = 0; done < count;) {
            size_t some = sherdi_min_size(count - done, sizeof(values) / sizeof(values[0]));

            SHERDI_TRY(
                sherdi_weights_read(file, tensor, row * stride + column + done, some, values));
            for (size_t i = 0; i < some; i++) {
                out[(done + i) * num_rows + (row - first_row)] = values[i];
            }
            done += some;
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_weights_read_transposed(const sherdi_weights_file *file,
                                            sherdi_weights_tensor tensor, size_t first_elem,
                                            size_t count_elems, float *out)
{
    size_t rows = tensor.about->shape[0]; /* of the file: the length of a transposed row */

    while (count_elems > 0) {
        size_t column = first_elem / rows, row = first_elem % rows;
        int    is_whole = row == 0 && count_elems >= rows;
        size_t columns  = is_whole ? count_elems / rows : 1;
        size_t some     = is_whole ? rows : sherdi_min_size(rows - row, count_elems);

        SHERDI_TRY(columns_read(file, tensor, column, columns, row, some, out));
        out += columns * some;
        first_elem += columns * some;
        count_elems -= columns * some;
    }
    return SHERD_OK;
}

/* Casts fp32 to the caller's float type. */
static void values_narrow(sherdi_tensor_dtype dtype, const float *values, size_t count, void *out)
{
    uint16_t *halves  = out;
    double   *doubles = out;

    for (size_t i = 0; i < count; i++) {
        if (dtype == SHERDI_TENSOR_F64) {
            doubles[i] = values[i];
        } else if (dtype == SHERDI_TENSOR_F32) {
            ((float *)out)[i] = values[i];
        } else {
            halves[i] = dtype == SHERDI_TENSOR_BF16 ? sherdi_cast_f32_bf16(values[i])
                                                    : sherdi_cast_f32_f16(values[i]);
        }
    }
}

sherd_status sherdi_weights_data_read(const sherdi_weights_file *file, sherdi_weights_tensor tensor,
                                      const sherd_tensor_map *map)
{
    const shard        *from  = &file->shards[tensor.shard];
    sherdi_tensor_dtype dtype = sherdi_weights_data_dtype(map);
    size_t              elems = sherdi_weights_map_elems(map);
    float               values[READ_BYTES / sizeof(float)];

    if (dtype == tensor.about->dtype) {
        return sherdi_bytes_read(from->header->label, from->fd, from->data_at + tensor.about->begin,
                                 map->data, sherdi_weights_data_bytes(map));
    }
    for (size_t done = 0; done < elems;) {
        size_t count = sherdi_min_size(elems - done, sizeof(values) / sizeof(values[0]));

        SHERDI_TRY(sherdi_weights_read(file, tensor, done, count, values));
        values_narrow(dtype, values, count,
                      (char *)map->data + done * sherdi_tensor_dtype_bytes(dtype));
        done += count;
    }
    return SHERD_OK;
}
