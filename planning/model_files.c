/* Models from files: opens them and finds their format by content. Read model_config.c,
 * model_units.c, model_safetensors.c and model_bin.c next. */
#include "planning/model_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
#define BIN_MAGIC  20240326u

/* ---- files ---- */

int planning_file_open(planning_maker *maker, const char *path, planning_file *out)
{
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* else a pipe would block */
    struct stat info;

    *out = (planning_file){0};
    if (fd < 0 || fstat(fd, &info) != 0) {
        (void)planning_maker_fail(maker, "cannot be opened: %s", strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        (void)planning_maker_fail(maker, "is not a regular file; give a file or a folder");
    } else {
        out->len_bytes = (size_t)info.st_size;
        out->stream    = fdopen(fd, "rb");
        if (out->stream != NULL) {
            return 0;
        }
        (void)planning_maker_no_memory(maker);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return -1;
}

void planning_file_close(planning_file *file)
{
    if (file->stream != NULL) {
        (void)fclose(file->stream);
        file->stream = NULL;
    }
}

int planning_file_read(planning_maker *maker, const planning_file *file, size_t offset_bytes,
                       void *bytes, size_t len_bytes)
{
    if (fseeko(file->stream, (off_t)offset_bytes, SEEK_SET) != 0 ||
        fread(bytes, 1, len_bytes, file->stream) != len_bytes) {
        return planning_maker_fail(maker, "cannot be read at byte %zu: %s", offset_bytes,
                                   ferror(file->stream) ? strerror(errno) : "it ends there");
    }
    return 0;
}

json_t *planning_file_json(planning_maker *maker, const planning_file *file, size_t offset_bytes,
                           size_t len_bytes)
{
    char        *text;
    json_t      *root = NULL;
    json_error_t error;

    if (len_bytes > PLANNING_MOST_JSON_BYTES) {
        (void)planning_maker_fail(maker, "its JSON text has %zu bytes; at most %zu are read",
                                  len_bytes, PLANNING_MOST_JSON_BYTES);
        return NULL;
    }
    text = malloc(len_bytes + 1);
    if (text == NULL) {
        (void)planning_maker_no_memory(maker);
        return NULL;
    }
    if (planning_file_read(maker, file, offset_bytes, text, len_bytes) == 0) {
        root = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &error);
        if (root == NULL) {
            (void)planning_maker_fail(maker, "not JSON at line %d, column %d: %s", error.line,
                                      error.column, error.text);
        }
    }
    free(text);
    return root;
}

size_t planning_bytes_size(const unsigned char *bytes, size_t count)
{
    size_t value = 0;

    while (count-- > 0) {
        value = value << 8 | bytes[count];
    }
    return value;
}

char *planning_text(planning_maker *maker, const char *fmt, ...)
{
    char   *text;
    va_list args;
    int     len;

    va_start(args, fmt);
    len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0) {
        (void)planning_maker_no_memory(maker);
        return NULL;
    }
    return text;
}

int planning_name_ends(const char *name, const char *end)
{
    size_t name_bytes = strlen(name), end_bytes = strlen(end);

    return name_bytes >= end_bytes && strcmp(name + name_bytes - end_bytes, end) == 0;
}

/* ---- JSON ---- */

int planning_json_size(planning_maker *maker, const json_t *value, const char *where, size_t least,
                       size_t most, size_t *out)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value)) {
        return planning_maker_fail(maker, "%s is %s; it has to be a whole number from %zu to %zu",
                                   where, hf_json_kind(value), least, most);
    }
    if (number < 0 || (size_t)number < least || (size_t)number > most) {
        return planning_maker_fail(maker, "%s is %lld; it has to be a whole number from %zu to %zu",
                                   where, (long long)number, least, most);
    }
    *out = (size_t)number;
    return 0;
}

/* ---- detecting formats ---- */

static int json_read(planning_maker *maker, const planning_file *file, const char *name)
{
    json_t *root   = planning_file_json(maker, file, 0, file->len_bytes);
    int     result = -1;

    if (root == NULL) {
        return -1;
    }
    if (json_object_get(root, "model_type") != NULL) {
        result = planning_read_config(maker, root, name);
    } else if (json_object_get(root, "units") != NULL) {
        result = planning_read_units(maker, root, name);
    } else if (json_object_get(root, "weight_map") != NULL) {
        result = planning_read_index(maker, root, name);
    } else {
        (void)planning_maker_fail(
            maker, "describes no model: it has neither \"model_type\" (a config.json), \"units\" "
                   "nor \"weight_map\" (an index of safetensors)");
    }
    json_decref(root);
    return result;
}

/* A safetensors file begins with the length of its header. A header of less than 2^56 bytes has a 0
 * at byte 7, where a text has a character. */
static int file_read(planning_maker *maker, const planning_file *file, const char *name)
{
    unsigned char head[64]  = {0};
    size_t        len_bytes = file->len_bytes < sizeof(head) ? file->len_bytes : sizeof(head);
    size_t        at        = 0;

    if (len_bytes == 0) {
        return planning_maker_fail(maker, "is empty");
    }
    if (planning_file_read(maker, file, 0, head, len_bytes) != 0) {
        return -1;
    }
    if (planning_bytes_size(head, 4) == BIN_MAGIC) {
        return planning_read_bin(maker, file, name);
    }
    if (head[7] == 0 && head[8] == '{') {
        return planning_read_safetensors(maker, file, name);
    }
    while (at < len_bytes && strchr(" \t\r\n", head[at]) != NULL && head[at] != '\0') {
        at++;
    }
    if (at == len_bytes || head[at] == '{') {
        return json_read(maker, file, name);
    }
    if (head[8] == '{') { /* a length beyond any file: the reader reports it */
        return planning_read_safetensors(maker, file, name);
    }
    return planning_maker_fail(maker,
                               "is neither JSON, nor safetensors, nor a model .bin of llm.c; "
                               "give a config.json, a .safetensors file or --params");
}

/* ---- folders ---- */

/* Returns the path of the folder's only .safetensors file; NULL with a message. */
static char *folder_only_tensors(planning_maker *maker, const char *folder)
{
    DIR           *entries = opendir(folder);
    struct dirent *entry;
    char          *found = NULL;
    size_t         count = 0;

    if (entries == NULL) {
        (void)planning_maker_fail(maker, "the folder cannot be opened: %s", strerror(errno));
        return NULL;
    }
    while ((entry = readdir(entries)) != NULL) {
        /* The name must have something before the suffix. */
        if (planning_name_ends(entry->d_name + 1, ".safetensors") && ++count == 1) {
            found = planning_text(maker, "%s/%s", folder, entry->d_name);
        }
    }
    (void)closedir(entries);
    if (count == 1) {
        return found;
    }
    free(found);
    if (count == 0) {
        (void)planning_maker_fail(maker, "the folder holds neither config.json, nor " INDEX_NAME
                                         ", nor a .safetensors file");
    } else {
        (void)planning_maker_fail(
            maker, "the folder holds %zu .safetensors files and no " INDEX_NAME "; give one file",
            count);
    }
    return NULL;
}

static char *folder_choose(planning_maker *maker, const char *folder)
{
    static const char *const NAMES[] = {"config.json", INDEX_NAME};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        char *path = planning_text(maker, "%s/%s", folder, NAMES[i]);

        if (path == NULL || access(path, F_OK) == 0) {
            return path;
        }
        free(path);
    }
    return folder_only_tensors(maker, folder);
}

/* Writes the name of the path for labels: its last part, unless that consists of dots. */
static void path_name(const char *path, char *out, size_t out_bytes)
{
    size_t end = strlen(path), start;

    while (end > 0 && path[end - 1] == '/') {
        end--;
    }
    start = end;
    while (start > 0 && path[start - 1] != '/') {
        start--;
    }
    (void)snprintf(out, out_bytes, "%.*s", (int)(end - start), path + start);
    if (out[strspn(out, ".")] == '\0') {
        (void)snprintf(out, out_bytes, "model");
    }
}

planning_model *planning_model_from_file(const char *path, char *why, size_t why_bytes)
{
    planning_maker  maker;
    planning_model *model;
    planning_file   file   = {0};
    char           *inside = NULL, name[256];
    struct stat     info;
    int             result = planning_maker_init(&maker, path, why, why_bytes);

    if (result == 0 && stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        inside       = folder_choose(&maker, path);
        result       = inside == NULL ? -1 : 0;
        maker.origin = inside == NULL ? path : inside;
    }
    if (result == 0) {
        result = planning_file_open(&maker, maker.origin, &file);
    }
    if (result == 0) {
        path_name(path, name, sizeof(name));
        result = file_read(&maker, &file, name);
    }
    planning_file_close(&file);
    model = planning_maker_finish(&maker, result);
    free(inside);
    return model;
}
