/* Writes files of weights as a stream. One rank writes. The other ranks' values come through the
 * source, so all ranks walk over the tensors in the same way, and if the writer fails, all ranks
 * end after the same tensor. See weights.h. */
#include "engine/checkpoint/weights.h"

#include "base/checked.h"
#include "base/output.h"
#include "base/json_text.h"
#include "kernels/formulas.h"
#include "offload/io.h"
#include "sherd_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"
#define SUFFIX ".safetensors"

typedef struct writer {
    const sherdi_weights_writing *w;
    char                          folder[PATH_MAX]; /* without a slash at its end */
    char                          name[NAME_MAX];   /* of the one file; "": a folder of files */
    char                          path[PATH_MAX];   /* of the file that is being written */
    size_t                       *file_of;          /* by tensor */
    size_t                        num_files;
    size_t                        num_begun; /* files whose partial files may exist */
    int                           is_index_begun;
    float                        *values; /* a portion; NULL where this rank does not write */
    unsigned char                *cast;
    float                        *whole; /* of the tensor that is transposed */
    int                           fd;
    sherd_status                  own; /* status of the writer since the ranks agreed last */
    uint64_t                      done_bytes, total_bytes;
} writer;

static int is_folder(const writer *x)
{
    return x->name[0] == '\0';
}

static size_t elem_bytes(const writer *x)
{
    return sherd_dtype_bytes(x->w->dtype);
}

static size_t tensor_bytes(const writer *x, size_t i)
{
    const sherd_tensor_map *map = &x->w->tensors[i];

    return map->data_dtype != NULL ? sherdi_weights_data_bytes(map)
                                   : sherdi_weights_map_elems(map) * elem_bytes(x);
}

static sherd_status agree(writer *x)
{
    const sherdi_weights_source *source = x->w->source;
    sherd_status                 own    = x->own;

    x->own = SHERD_OK;
    return source->agree == NULL ? own : source->agree(source->ctx, own);
}

/* ---- names ---- */

static void file_name(const writer *x, size_t file, char out[NAME_MAX])
{
    if (!is_folder(x)) {
        (void)snprintf(out, NAME_MAX, "%s", x->name);
    } else if (x->num_files == 1) {
        (void)snprintf(out, NAME_MAX, SINGLE);
    } else {
        (void)snprintf(out, NAME_MAX, "model-%05zu-of-%05zu" SUFFIX, file + 1, x->num_files);
    }
}

/* path_take has checked the length, so the longest name fits. */
static void path_of(const writer *x, const char *name, int is_partial, char out[PATH_MAX])
{
    int bytes = snprintf(out, PATH_MAX, "%s/%s%s%s", x->folder, is_partial ? "." : "", name,
                         is_partial ? ".partial" : "");

    if (bytes >= PATH_MAX) {
        out[0] = '\0'; /* no such file: opening it fails */
    }
}

static sherd_status path_take(writer *x, const char *path)
{
    size_t      len   = strlen(path);
    const char *slash = strrchr(path, '/');
    int         is_file =
        x->w->raw_header != NULL ||
        (len >= sizeof(SUFFIX) - 1 && strcmp(path + len - (sizeof(SUFFIX) - 1), SUFFIX) == 0);

    if (len == 0 || len > PATH_MAX - sizeof("/model-00000-of-00000" SUFFIX ".partial")) {
        return sherdi_fail(SHERD_E_INVAL, "the path \"%.100s\" is %s", path,
                           len == 0 ? "empty" : "too long");
    }
    if (!is_file) {
        (void)snprintf(x->folder, sizeof(x->folder), "%s", path);
        return SHERD_OK;
    }
    if (slash != NULL && slash[1] == '\0') {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is the path of a folder, but one file is written; name the file",
                           path);
    }
    if (strlen(slash == NULL ? path : slash + 1) > NAME_MAX - sizeof("..partial")) {
        return sherdi_fail(SHERD_E_INVAL, "the name of the file %s is too long", path);
    }
    (void)snprintf(x->name, sizeof(x->name), "%s", slash == NULL ? path : slash + 1);
    (void)snprintf(x->folder, sizeof(x->folder), "%.*s",
                   slash == NULL   ? 1
                   : slash == path ? 1
                                   : (int)(slash - path),
                   slash == NULL ? "." : path);
    return SHERD_OK;
}

/* ---- which tensor goes where ---- */

/* Divides the tensors into files as transformers does: a file takes the next tensor if it still
 * fits. */
static void files_assign(writer *x)
{
    size_t most = x->w->max_file_bytes == 0 ? SHERDI_WEIGHTS_FILE_BYTES : x->w->max_file_bytes;
    size_t held = 0;

    x->num_files = 1;
    for (size_t i = 0; i < x->w->num_tensors; i++) {
        size_t bytes = tensor_bytes(x, i);

        if (is_folder(x) && held > 0 && (bytes > most || held > most - bytes)) {
            x->num_files++;
            held = 0;
        }
        held += bytes;
        x->file_of[i] = x->num_files - 1;
        x->total_bytes += bytes;
    }
}

static sherd_status folder_make(const writer *x)
{
    struct stat about;

    if (is_folder(x) && mkdir(x->folder, 0777) != 0 && errno != EEXIST) {
        return sherdi_fail(SHERD_E_IO, "the folder %s cannot be made: %s", x->folder,
                           strerror(errno));
    }
    if (stat(x->folder, &about) != 0 || !S_ISDIR(about.st_mode)) {
        return sherdi_fail(SHERD_E_IO, "%s is no folder", x->folder);
    }
    return SHERD_OK;
}

/* Checks all names that files get, or that are removed, before anything is written. */
static sherd_status names_check(const writer *x)
{
    char name[NAME_MAX], path[PATH_MAX];

    for (size_t file = 0; file < x->num_files; file++) {
        file_name(x, file, name);
        path_of(x, name, 0, path);
        SHERDI_TRY(sherd_output_check(path));
    }
    if (is_folder(x)) {
        path_of(x, SINGLE, 0, path);
        SHERDI_TRY(sherd_output_check(path));
        path_of(x, INDEX, 0, path);
        SHERDI_TRY(sherd_output_check(path));
    }
    return SHERD_OK;
}

/* ---- one file ---- */

static sherd_status header_of(const writer *x, size_t file, sherdi_safetensors_builder *builder)
{
    static const sherdi_tensor_dtype DTYPES[] = {[SHERD_F32]  = SHERDI_TENSOR_F32,
                                                 [SHERD_BF16] = SHERDI_TENSOR_BF16,
                                                 [SHERD_F16]  = SHERDI_TENSOR_F16};

    /* transformers asks for the framework of the tensors */
    SHERDI_TRY(sherdi_safetensors_metadata(builder, "format", "pt"));
    for (size_t i = 0; i < x->w->num_tensors; i++) {
        const sherd_tensor_map *map = &x->w->tensors[i];

        if (x->file_of[i] == file) {
            SHERDI_TRY(sherdi_safetensors_add(
                builder, map->name,
                map->data_dtype != NULL ? sherdi_weights_data_dtype(map) : DTYPES[x->w->dtype],
                map->ndim, map->shape, NULL));
        }
    }
    return SHERD_OK;
}

static sherd_status header_put(const writer *x, size_t file)
{
    sherdi_safetensors_builder *builder;
    const char                 *bytes;
    size_t                      len_bytes;
    sherd_status                status;

    if (x->w->raw_header != NULL) {
        return sherdi_output_put(x->path, x->fd, x->w->raw_header, x->w->raw_header_bytes);
    }
    SHERDI_TRY(sherdi_safetensors_begin(x->w->mem, 8, &builder));
    status = header_of(x, file, builder);
    if (status == SHERD_OK) {
        status = sherdi_safetensors_finish(builder, &bytes, &len_bytes);
    }
    if (status == SHERD_OK) {
        status = sherdi_output_put(x->path, x->fd, bytes, len_bytes);
    }
    sherdi_safetensors_builder_destroy(builder);
    return status;
}

/* Reserves room, so that a lack of room shows before anything is written, if the file system can
 * reserve. */
static sherd_status room_reserve(const writer *x, size_t file)
{
    size_t bytes = x->w->raw_header_bytes;

    for (size_t i = 0; i < x->w->num_tensors; i++) {
        bytes += x->file_of[i] == file ? tensor_bytes(x, i) : 0;
    }
    if (bytes > 0 && fallocate(x->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) != 0 &&
        errno == ENOSPC) {
        return sherdi_fail(
            SHERD_E_IO, "%s: there is no room for its %zu bytes; make some, or give another folder",
            x->path, bytes);
    }
    return SHERD_OK;
}

static sherd_status partial_open(writer *x, const char *name)
{
    path_of(x, name, 1, x->path);
    return sherdi_output_open(x->path, x->path, &x->fd);
}

static sherd_status file_begin(writer *x, size_t file)
{
    char name[NAME_MAX];

    file_name(x, file, name);
    SHERDI_TRY(partial_open(x, name));
    x->num_begun = file + 1;
    SHERDI_TRY(room_reserve(x, file));
    return header_put(x, file);
}

static sherd_status file_end(writer *x)
{
    int fd = x->fd;

    x->fd = -1;
    return sherdi_output_end(x->path, fd);
}

/* ---- one tensor ---- */

static sherd_status range_fail(const writer *x, const sherd_tensor_map *map, float value)
{
    return sherdi_fail(SHERD_E_NUMERIC,
                       "tensor %s has the value %g, which is too large for %s; write it as fp32",
                       map->name, (double)value, sherd_dtype_name(x->w->dtype));
}

/* Casts to the type of the file. Fails if a finite value would become Inf. */
static sherd_status values_cast(const writer *x, const sherd_tensor_map *map, const float *values,
                                size_t count)
{
    uint16_t *out   = (uint16_t *)(void *)x->cast;
    int       is_16 = x->w->dtype == SHERD_F16;

    if (x->w->dtype == SHERD_F32) {
        memcpy(x->cast, values, count * sizeof(*values));
        return SHERD_OK;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = is_16 ? sherdi_cast_f32_f16(values[i]) : sherdi_cast_f32_bf16(values[i]);
        if ((out[i] & 0x7fffu) == (is_16 ? 0x7c00u : 0x7f80u) && isfinite(values[i])) {
            return range_fail(x, map, values[i]);
        }
    }
    return SHERD_OK;
}

static sherd_status bytes_put(writer *x, const void *data, size_t bytes)
{
    SHERDI_TRY(sherdi_output_put(x->path, x->fd, data, bytes));
    x->done_bytes += bytes;
    if (x->w->progress != NULL) {
        x->w->progress(x->w->progress_ctx, x->done_bytes, x->total_bytes);
    }
    return SHERD_OK;
}

static sherd_status values_put(writer *x, const sherd_tensor_map *map, const float *values,
                               size_t count)
{
    SHERDI_TRY(values_cast(x, map, values, count));
    return bytes_put(x, x->cast, count * elem_bytes(x));
}

/* Puts elements from `at` on of the parameter's matrix where the file has them. */
static void values_transpose(const writer *x, const sherd_tensor_map *map, size_t at, size_t count)
{
    size_t columns = map->shape[0], stride = map->shape[1];
    size_t row = at / columns, column = at % columns;

    for (size_t i = 0; i < count; i++) {
        x->whole[column * stride + row] = x->values[i];
        if (++column == columns) {
            column = 0;
            row++;
        }
    }
}

static sherd_status whole_put(writer *x, const sherd_tensor_map *map)
{
    size_t elems = sherdi_weights_map_elems(map);

    for (size_t at = 0; at < elems; at += SHERDI_WEIGHTS_PORTION_ELEMS) {
        SHERDI_TRY(values_put(x, map, x->whole + at,
                              sherdi_min_size(SHERDI_WEIGHTS_PORTION_ELEMS, elems - at)));
    }
    return SHERD_OK;
}

static sherd_status portion_take(writer *x, const sherd_tensor_map *map, size_t at, size_t count)
{
    if (!map->is_transposed) {
        return values_put(x, map, x->values, count);
    }
    if (x->whole == NULL) {
        x->whole = sherdi_alloc_array(x->w->mem, SHERDI_MEM_STAGING, sherdi_weights_map_elems(map),
                                      sizeof(float));
        if (x->whole == NULL) {
            return SHERD_E_NOMEM;
        }
    }
    values_transpose(x, map, at, count);
    return SHERD_OK;
}

static sherd_status portion_read(writer *x, const sherd_tensor_map *map, size_t at, size_t count)
{
    const sherdi_weights_source *source = x->w->source;

    if (map->param == NULL) {
        if (x->values != NULL) {
            memset(x->values, 0, count * sizeof(*x->values));
        }
        return SHERD_OK;
    }
    return source->read(source->ctx, map->param, map->value, map->first_elem + at, count,
                        x->values);
}

/* After a failure the writer stops writing, but takes part in all calls until the ranks agree. */
static sherd_status tensor_write(writer *x, const sherd_tensor_map *map)
{
    size_t elems = map->data_dtype != NULL ? 0 : sherdi_weights_map_elems(map);

    if (map->data_dtype != NULL && x->w->source->is_writer && x->own == SHERD_OK) {
        x->own = bytes_put(x, map->data, sherdi_weights_data_bytes(map));
    }
    for (size_t at = 0; at < elems; at += SHERDI_WEIGHTS_PORTION_ELEMS) {
        size_t count = sherdi_min_size(SHERDI_WEIGHTS_PORTION_ELEMS, elems - at);

        SHERDI_TRY(portion_read(x, map, at, count));
        if (x->w->source->is_writer && x->own == SHERD_OK) {
            x->own = portion_take(x, map, at, count);
        }
    }
    if (x->whole != NULL && x->own == SHERD_OK) {
        x->own = whole_put(x, map);
    }
    sherdi_free(x->whole);
    x->whole = NULL;
    return agree(x);
}

static sherd_status file_write(writer *x, size_t file)
{
    if (x->w->source->is_writer) {
        x->own = file_begin(x, file);
    }
    SHERDI_TRY(agree(x));
    for (size_t i = 0; i < x->w->num_tensors; i++) {
        if (x->file_of[i] == file) {
            SHERDI_TRY(tensor_write(x, &x->w->tensors[i]));
        }
    }
    if (x->w->source->is_writer) {
        x->own = file_end(x);
    }
    return agree(x);
}

/* ---- all files ---- */

static void index_text(const writer *x, sherdi_text *text)
{
    char name[NAME_MAX];

    sherdi_text_print(text, "{\n  \"metadata\": {\n    \"total_size\": %zu\n  },\n",
                      (size_t)x->total_bytes);
    sherdi_text_print(text, "  \"weight_map\": {");
    for (size_t i = 0; i < x->w->num_tensors; i++) {
        file_name(x, x->file_of[i], name);
        sherdi_text_print(text, "%s\n    ", i == 0 ? "" : ",");
        sherdi_text_quote(text, x->w->tensors[i].name);
        sherdi_text_print(text, ": \"%s\"", name);
    }
    sherdi_text_print(text, "\n  }\n}\n");
}

static sherd_status index_write(writer *x)
{
    sherdi_text  text;
    sherd_status status;

    SHERDI_TRY(partial_open(x, INDEX));
    x->is_index_begun = 1;
    sherdi_text_init(&text, x->w->mem);
    index_text(x, &text);
    status = text.status;
    if (status == SHERD_OK) {
        status = sherdi_output_put(x->path, x->fd, text.bytes, text.len_bytes);
    }
    sherdi_text_fini(&text);
    return status == SHERD_OK ? file_end(x) : status;
}

static sherd_status file_publish(const writer *x, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX];

    path_of(x, name, 1, from);
    path_of(x, name, 0, to);
    return rename(from, to) == 0 ? SHERD_OK
                                 : sherdi_fail(SHERD_E_IO, "%s cannot be renamed to %s: %s", from,
                                               to, strerror(errno));
}

static sherd_status entry_remove(const writer *x, const char *name)
{
    char path[PATH_MAX];

    path_of(x, name, 0, path);
    return unlink(path) == 0 || errno == ENOENT
               ? SHERD_OK
               : sherdi_fail(SHERD_E_IO, "cannot remove %s of an earlier export: %s", path,
                             strerror(errno));
}

/* Renames the partial files. A loader looks for model.safetensors, else for the index. While
 * several files replace an older set, it finds neither. */
static sherd_status files_publish(writer *x)
{
    char name[NAME_MAX];

    if (x->num_files > 1) {
        SHERDI_TRY(index_write(x));
        SHERDI_TRY(entry_remove(x, SINGLE));
        SHERDI_TRY(entry_remove(x, INDEX));
        SHERDI_TRY(sherdi_folder_sync(x->folder));
    }
    for (size_t file = 0; file < x->num_files; file++) {
        file_name(x, file, name);
        SHERDI_TRY(file_publish(x, name));
    }
    if (x->num_files > 1) {
        SHERDI_TRY(file_publish(x, INDEX));
    } else if (is_folder(x)) {
        SHERDI_TRY(entry_remove(x, INDEX));
    }
    return sherdi_folder_sync(x->folder);
}

/* Removes the partial files. A file that was renamed already has no partial name any more. */
static void partials_remove(const writer *x)
{
    char name[NAME_MAX], path[PATH_MAX];

    for (size_t file = 0; file < x->num_begun; file++) {
        file_name(x, file, name);
        path_of(x, name, 1, path);
        (void)unlink(path);
    }
    if (x->is_index_begun) {
        path_of(x, INDEX, 1, path);
        (void)unlink(path);
    }
}

static sherd_status room_make(writer *x)
{
    sherdi_mem *mem = x->w->mem;

    x->file_of =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, x->w->num_tensors, sizeof(*x->file_of));
    if (x->w->source->is_writer) {
        x->values = sherdi_alloc_array(mem, SHERDI_MEM_STAGING, SHERDI_WEIGHTS_PORTION_ELEMS,
                                       sizeof(*x->values));
        x->cast   = sherdi_alloc_array(mem, SHERDI_MEM_STAGING, SHERDI_WEIGHTS_PORTION_ELEMS,
                                       elem_bytes(x));
        SHERDI_TRY(x->values == NULL || x->cast == NULL ? SHERD_E_NOMEM : SHERD_OK);
    }
    return x->file_of == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static sherd_status all_write(writer *x, const char *path)
{
    x->own = path_take(x, path);
    if (x->own == SHERD_OK) {
        x->own = room_make(x);
    }
    SHERDI_TRY(agree(x));
    files_assign(x);
    if (x->w->source->is_writer) {
        x->own = folder_make(x);
        if (x->own == SHERD_OK) {
            x->own = names_check(x);
        }
    }
    SHERDI_TRY(agree(x));
    for (size_t file = 0; file < x->num_files; file++) {
        SHERDI_TRY(file_write(x, file));
    }
    if (x->w->source->is_writer) {
        x->own = files_publish(x);
    }
    return agree(x);
}

sherd_status sherdi_weights_write(const char *path, const sherdi_weights_writing *writing)
{
    writer      *x = sherdi_alloc(writing->mem, SHERDI_MEM_CONTROL, sizeof(*x));
    writer       none;
    sherd_status status;

    if (x == NULL) { /* the other ranks must learn of it */
        none = (writer){.w = writing, .own = SHERD_E_NOMEM};
        return agree(&none);
    }
    x->w   = writing;
    x->fd  = -1;
    status = all_write(x, path);
    if (status != SHERD_OK) {
        const sherdi_outcome failed = sherdi_outcome_of(status);

        if (x->fd >= 0) {
            (void)close(x->fd);
        }
        partials_remove(x);
        (void)sherdi_outcome_end(&failed);
    }
    sherdi_free(x->whole);
    sherdi_free(x->cast);
    sherdi_free(x->values);
    sherdi_free(x->file_of);
    sherdi_free(x);
    return status;
}
