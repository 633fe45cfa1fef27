/* Reads text and token files, and computes the order of sequences. See data.h. */
#include "data.h"

#include "mix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* llm.c's token files: 256 int32 (magic, version, count), then tokens of uint16 (GPT-2) or uint32
 * (Llama 3). */
#define TOKEN_MAGIC        20240520
#define TOKEN_VERSION      1
#define WIDE_TOKEN_MAGIC   20240801
#define WIDE_TOKEN_VERSION 7
#define TOKEN_HEADER_BYTES 1024
#define PORTION_TOKENS     2048 /* that are read at once */
#define VALIDATION_SHARE   20   /* the last 1/20 */

/* ---------------------------------------------------------------- text -- */

/* Returns the length of the UTF-8 character at s, of which `left` bytes follow; 0 if there is none.
 * Overlong forms, surrogates and numbers past U+10FFFF are not characters. */
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

/* Returns the offset of the first byte that is not UTF-8 text; len_bytes if all bytes are text. */
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

/* Opens a regular file, without waiting: to open a pipe that has no writer would never return. */
static int file_open(const char *path, corpus *out, size_t *bytes_out, char *text,
                     size_t text_bytes)
{
    struct stat info;

    out->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (out->fd < 0 || fstat(out->fd, &info) != 0) {
        return file_fail(path, "cannot be opened", text, text_bytes);
    }
    if (!S_ISREG(info.st_mode)) {
        (void)snprintf(text, text_bytes,
                       "%s is no regular file: training reads its data in any order", path);
        return -1;
    }
    if (info.st_size == 0) {
        (void)snprintf(text, text_bytes, "%s is empty", path);
        return -1;
    }
    *bytes_out = (size_t)info.st_size;
    out->files = 1;
    return 0;
}

/* Reads all len_bytes and returns 0; else returns -1 with errno, which is 0 if the file ends
 * before. */
static int bytes_read(int fd, size_t at, void *out, size_t len_bytes)
{
    for (size_t done = 0; done < len_bytes;) {
        ssize_t got = pread(fd, (char *)out + done, len_bytes - done, (off_t)(at + done));

        if (got == 0) {
            errno = 0;
        }
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return -1;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

static int read_fail(const char *path, char *text, size_t text_bytes)
{
    (void)snprintf(text, text_bytes, "%s: %s", path,
                   errno != 0 ? strerror(errno) : "was cut off while it was read");
    return -1;
}

/* Reads tokens [first, first + count) as they stand in the file; count is at most
 * PORTION_TOKENS. */
static int tokens_read(const corpus *c, size_t first, size_t count, uint32_t *out)
{
    unsigned char bytes[PORTION_TOKENS * sizeof(uint32_t)];

    if (bytes_read(c->fd, c->start_bytes + first * c->token_bytes, bytes, count * c->token_bytes) !=
        0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = 0;
        memcpy(&out[i], bytes + i * c->token_bytes,
               c->token_bytes); /* little-endian, as the file */
    }
    return 0;
}

/* Finds the largest token, from which the least vocabulary follows. */
static int tokens_scan(const char *path, corpus *c, char *text, size_t text_bytes)
{
    uint32_t portion[PORTION_TOKENS];

    for (size_t at = 0; at < c->count;) {
        size_t count = c->count - at < PORTION_TOKENS ? c->count - at : PORTION_TOKENS;

        if (tokens_read(c, at, count, portion) != 0) {
            return read_fail(path, text, text_bytes);
        }
        for (size_t i = 0; i < count; i++) {
            c->vocab = portion[i] >= c->vocab ? (size_t)portion[i] + 1 : c->vocab;
        }
        at += count;
    }
    return 0;
}

static int tokens_open(const char *path, corpus *c, size_t len_bytes, char *text, size_t text_bytes)
{
    int32_t header[3];
    int     is_wide, version;
    size_t  room;

    if (len_bytes < TOKEN_HEADER_BYTES) {
        (void)snprintf(text, text_bytes, "%s is cut off inside its header", path);
        return -1;
    }
    if (bytes_read(c->fd, 0, header, sizeof(header)) != 0) {
        return read_fail(path, text, text_bytes);
    }
    is_wide        = header[0] == WIDE_TOKEN_MAGIC;
    version        = is_wide ? WIDE_TOKEN_VERSION : TOKEN_VERSION;
    c->token_bytes = is_wide ? sizeof(uint32_t) : sizeof(uint16_t);
    room           = (len_bytes - TOKEN_HEADER_BYTES) / c->token_bytes;
    if (header[1] != version) {
        (void)snprintf(text, text_bytes,
                       "%s is a token file of version %d; version %d (uint%d tokens) is read here",
                       path, (int)header[1], version, 8 * (int)c->token_bytes);
        return -1;
    }
    if (header[2] < 0 || (size_t)header[2] != room) {
        (void)snprintf(text, text_bytes, "%s says %d tokens and holds %zu: it is damaged", path,
                       (int)header[2], room);
        return -1;
    }
    c->start_bytes = TOKEN_HEADER_BYTES;
    c->count       = room;
    return tokens_scan(path, c, text, text_bytes);
}

/* Checks portion by portion that a file is text. A character that the end of a portion cuts begins
 * the next portion. */
static int text_scan(const char *path, const corpus *c, char *text, size_t text_bytes)
{
    uint8_t portion[8192];

    for (size_t at = 0; at < c->count;) {
        size_t count = c->count - at < sizeof(portion) ? c->count - at : sizeof(portion);
        size_t good;

        if (bytes_read(c->fd, at, portion, count) != 0) {
            return read_fail(path, text, text_bytes);
        }
        good = text_check(portion, count);
        if (good < count && (count - good >= 4 || at + count == c->count)) {
            (void)snprintf(text, text_bytes,
                           "%s is neither UTF-8 text (byte %zu is 0x%02x) nor a token file of "
                           "llm.c",
                           path, at + good, portion[good]);
            return -1;
        }
        at += good;
    }
    return 0;
}

static int file_read(const char *path, corpus *c, char *text, size_t text_bytes)
{
    int32_t magic;
    size_t  len_bytes;

    if (file_open(path, c, &len_bytes, text, text_bytes) != 0) {
        return -1;
    }
    if (len_bytes >= sizeof(magic)) {
        if (bytes_read(c->fd, 0, &magic, sizeof(magic)) != 0) {
            return read_fail(path, text, text_bytes);
        }
        if (magic == TOKEN_MAGIC || magic == WIDE_TOKEN_MAGIC) {
            return tokens_open(path, c, len_bytes, text, text_bytes);
        }
    }
    c->is_text     = 1;
    c->token_bytes = 1;
    c->count       = len_bytes;
    c->vocab       = 256;
    return text_scan(path, c, text, text_bytes);
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

/* Lists all files of a folder and its subfolders that are not hidden. It does not follow links to
 * folders. */
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

/* Appends a file to the corpus if it is text. */
static int folder_append(const char *path, corpus *c)
{
    corpus file = {.fd = -1};
    char   ignored[512];
    char  *grown;
    int    result = 0;

    if (file_read(path, &file, ignored, sizeof(ignored)) == 0 && file.is_text) {
        grown = realloc(c->text, c->count + file.count + 1);
        if (grown != NULL) {
            c->text = grown;
        }
        result = grown == NULL ? -1 : bytes_read(file.fd, 0, grown + c->count, file.count);
        if (result == 0) {
            c->count += file.count;
            c->files++;
        }
    }
    corpus_close(&file);
    return result;
}

/* Reads the text files of a folder one after the other, sorted by path. */
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
    c->is_text     = 1;
    c->token_bytes = 1;
    c->vocab       = 256;
    return 0;
}

int corpus_open(const char *path, corpus *out, char *text, size_t text_bytes)
{
    corpus      c = {.fd = -1};
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
    if (c->fd >= 0) {
        (void)close(c->fd);
    }
    free(c->text);
    *c = (corpus){.fd = -1};
}

/* Reads tokens [first, first + count) from the file; count is at most PORTION_TOKENS. */
static int portion_read(const corpus *c, size_t first, size_t count, int32_t *out)
{
    uint32_t ids[PORTION_TOKENS];

    if (tokens_read(c, first, count, ids) != 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= c->vocab) {
            errno = 0; /* the file has changed since it was opened */
            return -1;
        }
        out[i] = (int32_t)ids[i];
    }
    return 0;
}

int corpus_read(const corpus *c, size_t first, size_t count, int32_t *out)
{
    for (size_t at = 0; at < count; at += PORTION_TOKENS) {
        size_t portion = count - at < PORTION_TOKENS ? count - at : PORTION_TOKENS;

        for (size_t i = 0; c->text != NULL && i < portion; i++) {
            out[at + i] = (unsigned char)c->text[first + at + i];
        }
        if (c->text == NULL && portion_read(c, first + at, portion, out + at) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- order -- */

/* A permutation of 0 .. count - 1 that the key decides: a Feistel network of four rounds on the
 * next even number of bits, applied again until the result is below count (Black and Rogaway
 * 2002). */
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

static int sequence_read(const order *o, size_t start, int32_t *inputs, int32_t *targets)
{
    if (corpus_read(o->c, start, o->length, inputs) != 0) {
        return -1;
    }
    memcpy(targets, inputs + 1, (o->length - 1) * sizeof(*targets));
    return corpus_read(o->c, start + o->length, 1, targets + o->length - 1);
}

/* Returns the first token of sequence `number` of the run. Each epoch has an offset by which its
 * sequences are shifted, so that sentences are not cut at the same places again. An epoch has one
 * sequence less than would fit, which leaves room for the offset. */
static size_t sequence_start(const order *o, uint64_t number)
{
    size_t   room      = o->c->train - 1; /* positions that have a target */
    uint64_t per_epoch = room / o->length > 1 ? room / o->length - 1 : 1;
    uint64_t epoch     = number / per_epoch;
    uint64_t key       = mix64(o->seed) ^ mix64(epoch + 1);
    size_t   slack     = room - (size_t)per_epoch * o->length;
    size_t   offset    = (size_t)(mix64(key) % (slack + 1));

    return offset + (size_t)permute(number % per_epoch, per_epoch, key) * o->length;
}

int order_train(const order *o, uint64_t first, int32_t *inputs, int32_t *targets)
{
    int result = 0;

    for (size_t j = 0; result == 0 && j < o->batch; j++) {
        result = sequence_read(o, sequence_start(o, first + j), inputs + j * o->length,
                               targets + j * o->length);
    }
    return result;
}

int order_validate(const order *o, uint64_t number, uint64_t count, int32_t *inputs,
                   int32_t *targets)
{
    int      result    = 0;
    uint64_t room      = o->c->count - o->c->train - 1 - o->length; /* last possible start */
    uint64_t sequences = count * o->batch;

    for (size_t j = 0; result == 0 && j < o->batch; j++) {
        uint64_t index = number * o->batch + j;
        uint64_t start = sequences > 1 ? room * index / (sequences - 1) : 0;

        result = sequence_read(o, o->c->train + (size_t)start, inputs + j * o->length,
                               targets + j * o->length);
    }
    return result;
}
