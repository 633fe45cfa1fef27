/* Reading of text and token files, and the order of sequences. See data.h. */
#include "data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* llm.c's token files: 256 int32 (magic, version, count), then uint16 tokens. */
#define TOKEN_MAGIC        20240520
#define TOKEN_HEADER_BYTES 1024
#define VALIDATION_SHARE   20 /* the last 1/20 */

/* ---------------------------------------------------------------- text -- */

/* Length of the UTF-8 character at s (of `left` bytes), 0 where there is none: overlong forms,
 * surrogates and numbers past U+10FFFF are none. */
static size_t utf8_length(const uint8_t *s, size_t left)
{
    uint32_t code;
    size_t   length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (length == 0 || length > left || s[0] > 0xf4 || s[0] == 0) {
        return 0;
    }
    code = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (s[i] & 0x3fu);
    }
    if ((length == 3 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
        (length == 4 && (code < 0x10000 || code > 0x10ffff))) {
        return 0;
    }
    return length;
}

/* Offset of the first byte that is not UTF-8 text; len_bytes when all is. */
static size_t text_check(const uint8_t *text, size_t len_bytes)
{
    size_t at = 0;

    while (at < len_bytes) {
        size_t length = utf8_length(text + at, len_bytes - at);

        if (length == 0) {
            break;
        }
        at += length;
    }
    return at;
}

/* ------------------------------------------------------------- one file -- */

static int file_fail(const char *path, const char *what, char *text, size_t text_bytes)
{
    (void)snprintf(text, text_bytes, "%s: %s: %s", path, what, strerror(errno));
    return -1;
}

/* Maps a whole file for reading. */
static int file_map(const char *path, corpus *out, char *text, size_t text_bytes)
{
    struct stat info;
    int         fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return file_fail(path, "cannot be opened", text, text_bytes);
    }
    if (fstat(fd, &info) != 0 || info.st_size == 0) {
        (void)snprintf(text, text_bytes, "%s is empty", path);
        (void)close(fd);
        return -1;
    }
    out->memory_bytes = (size_t)info.st_size;
    out->memory       = mmap(NULL, out->memory_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    (void)close(fd);
    if (out->memory == MAP_FAILED) {
        out->memory = NULL;
        return file_fail(path, "cannot be mapped", text, text_bytes);
    }
    out->is_mapped = 1;
    out->files     = 1;
    return 0;
}

static int is_token_file(const corpus *c)
{
    int32_t magic;

    if (c->memory_bytes < sizeof(magic)) {
        return 0;
    }
    memcpy(&magic, c->memory, sizeof(magic));
    return magic == TOKEN_MAGIC;
}

static int tokens_read(const char *path, corpus *c, char *text, size_t text_bytes)
{
    int32_t header[3];
    size_t  room;

    if (c->memory_bytes < TOKEN_HEADER_BYTES) {
        (void)snprintf(text, text_bytes, "%s is cut off inside its header", path);
        return -1;
    }
    memcpy(header, c->memory, sizeof(header));
    room = (c->memory_bytes - TOKEN_HEADER_BYTES) / sizeof(*c->ids);
    if (header[1] != 1) {
        (void)snprintf(text, text_bytes,
                       "%s is a token file of version %d; version 1 (uint16 tokens) is read here",
                       path, (int)header[1]);
        return -1;
    }
    if (header[2] < 0 || (size_t)header[2] != room) {
        (void)snprintf(text, text_bytes, "%s says %d tokens and holds %zu: it is damaged", path,
                       (int)header[2], room);
        return -1;
    }
    c->ids   = (const uint16_t *)((const char *)c->memory + TOKEN_HEADER_BYTES);
    c->count = room;
    for (size_t i = 0; i < c->count; i++) {
        c->vocab = c->ids[i] >= c->vocab ? (size_t)c->ids[i] + 1 : c->vocab;
    }
    return 0;
}

static int file_read(const char *path, corpus *c, char *text, size_t text_bytes)
{
    size_t good;

    if (file_map(path, c, text, text_bytes) != 0) {
        return -1;
    }
    if (is_token_file(c)) {
        return tokens_read(path, c, text, text_bytes);
    }
    c->bytes = c->memory;
    c->count = c->memory_bytes;
    c->vocab = 256;
    good     = text_check(c->bytes, c->count);
    if (good < c->count) {
        (void)snprintf(text, text_bytes,
                       "%s is neither UTF-8 text (byte %zu is 0x%02x) nor a token file of llm.c",
                       path, good, c->bytes[good]);
        return -1;
    }
    return 0;
}

/* -------------------------------------------------------------- folders -- */

typedef struct name_list {
    char **names;
    size_t count, room;
} name_list;

static void names_free(name_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->names[i]);
    }
    free(list->names);
}

static int names_add(name_list *list, const char *folder, const char *name)
{
    size_t len_bytes = strlen(folder) + strlen(name) + 2;
    char  *path;

    if (list->count == list->room) {
        size_t room  = 2 * list->room + 64;
        char **names = realloc(list->names, room * sizeof(*names));

        if (names == NULL) {
            return -1;
        }
        list->names = names;
        list->room  = room;
    }
    path = malloc(len_bytes);
    if (path == NULL) {
        return -1;
    }
    (void)snprintf(path, len_bytes, "%s/%s", folder, name);
    list->names[list->count++] = path;
    return 0;
}

static int names_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All that is not hidden in a folder and below; links to folders are not followed. */
static int folder_walk(const char *folder, name_list *list)
{
    DIR           *dir = opendir(folder);
    struct dirent *entry;
    int            result = 0;

    if (dir == NULL) {
        return -1;
    }
    while (result == 0 && (entry = readdir(dir)) != NULL) {
        struct stat info;

        if (entry->d_name[0] == '.') {
            continue;
        }
        result = names_add(list, folder, entry->d_name);
        if (result == 0 && lstat(list->names[list->count - 1], &info) == 0 &&
            S_ISDIR(info.st_mode)) {
            char *below = list->names[--list->count];

            result = folder_walk(below, list);
            free(below);
        }
    }
    (void)closedir(dir);
    return result;
}

/* Adds a file to the text when it is text. */
static int folder_append(const char *path, corpus *c)
{
    corpus file = {0};
    char   ignored[512];
    char  *grown;

    if (file_read(path, &file, ignored, sizeof(ignored)) != 0 || file.bytes == NULL) {
        corpus_close(&file);
        return 0;
    }
    grown = realloc(c->memory, c->memory_bytes + file.count + 1);
    if (grown == NULL) {
        corpus_close(&file);
        return -1;
    }
    memcpy(grown + c->memory_bytes, file.bytes, file.count);
    c->memory = grown;
    c->memory_bytes += file.count;
    c->files++;
    corpus_close(&file);
    return 0;
}

/* The text files of a folder, one after the other in the order of their paths. */
static int folder_read(const char *path, corpus *c, char *text, size_t text_bytes)
{
    name_list list   = {0};
    int       result = folder_walk(path, &list);

    if (list.count > 1) {
        qsort(list.names, list.count, sizeof(*list.names), names_compare);
    }
    for (size_t i = 0; result == 0 && i < list.count; i++) {
        result = folder_append(list.names[i], c);
    }
    names_free(&list);
    if (result != 0) {
        return file_fail(path, "cannot be read", text, text_bytes);
    }
    if (c->files == 0) {
        (void)snprintf(text, text_bytes, "%s holds no UTF-8 text files", path);
        return -1;
    }
    c->bytes = c->memory;
    c->count = c->memory_bytes;
    c->vocab = 256;
    return 0;
}

int corpus_open(const char *path, corpus *out, char *text, size_t text_bytes)
{
    corpus      c = {0};
    struct stat info;
    int         result;

    if (stat(path, &info) != 0) {
        return file_fail(path, "cannot be opened", text, text_bytes);
    }
    result = S_ISDIR(info.st_mode) ? folder_read(path, &c, text, text_bytes)
                                   : file_read(path, &c, text, text_bytes);
    if (result != 0) {
        corpus_close(&c);
        return -1;
    }
    c.train = c.count - c.count / VALIDATION_SHARE;
    *out    = c;
    return 0;
}

void corpus_close(corpus *c)
{
    if (c->is_mapped) {
        (void)munmap(c->memory, c->memory_bytes);
    } else {
        free(c->memory);
    }
    *c = (corpus){0};
}

int32_t corpus_token(const corpus *c, size_t i)
{
    return c->bytes != NULL ? c->bytes[i] : c->ids[i];
}

/* ---------------------------------------------------------------- order -- */

static uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A permutation of 0 .. count - 1 from a key: a Feistel network of four rounds on the next even
 * number of bits, walked on until it lands inside (Black and Rogaway 2002). */
static uint64_t permute(uint64_t value, uint64_t count, uint64_t key)
{
    unsigned half = 1;
    uint64_t mask;

    while (half < 32 && (uint64_t)1 << (2 * half) < count) {
        half++;
    }
    mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = value >> half, right = value & mask;

        for (unsigned round = 0; round < 4; round++) {
            uint64_t next = left ^ (mix64(key ^ mix64(right ^ (uint64_t)round << 48)) & mask);

            left  = right;
            right = next;
        }
        value = left << half | right;
    } while (value >= count);
    return value;
}

const char *order_check(const order *o, char *text, size_t text_bytes)
{
    size_t validation = o->c->count - o->c->train;

    if (validation <= o->length) {
        (void)snprintf(text, text_bytes,
                       "the data is too short: %zu tokens, a twentieth of which (%zu) is for "
                       "validation and has to hold a sequence of %zu + 1",
                       o->c->count, validation, o->length);
        return text;
    }
    return NULL;
}

static void sequence_copy(const order *o, size_t start, int32_t *inputs, int32_t *targets)
{
    for (size_t t = 0; t < o->length; t++) {
        inputs[t]  = corpus_token(o->c, start + t);
        targets[t] = corpus_token(o->c, start + t + 1);
    }
}

/* Where sequence `number` of the run starts. The offset of an epoch shifts its windows, so that
 * sentences are not cut at the same places again; one window less than fits leaves room for it. */
static size_t sequence_start(const order *o, uint64_t number)
{
    size_t   room    = o->c->train - 1; /* positions that have a target */
    uint64_t windows = room / o->length > 1 ? room / o->length - 1 : 1;
    uint64_t epoch   = number / windows;
    uint64_t key     = mix64(o->seed) ^ mix64(epoch + 1);
    size_t   slack   = room - (size_t)windows * o->length;
    size_t   offset  = (size_t)(mix64(key) % (slack + 1));

    return offset + (size_t)permute(number % windows, windows, key) * o->length;
}

void order_train(const order *o, uint64_t number, int32_t *inputs, int32_t *targets)
{
    for (size_t j = 0; j < o->batch; j++) {
        sequence_copy(o, sequence_start(o, number * o->batch + j), inputs + j * o->length,
                      targets + j * o->length);
    }
}

void order_validate(const order *o, uint64_t number, uint64_t count, int32_t *inputs,
                    int32_t *targets)
{
    uint64_t room      = o->c->count - o->c->train - 1 - o->length; /* last possible start */
    uint64_t sequences = count * o->batch;

    for (size_t j = 0; j < o->batch; j++) {
        uint64_t place = number * o->batch + j;
        uint64_t start = sequences > 1 ? room * place / (sequences - 1) : 0;

        sequence_copy(o, o->c->train + (size_t)start, inputs + j * o->length,
                      targets + j * o->length);
    }
}
