/* Reads and appends to the file of measured choices. See tuned.h. */
#include "tuned.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES ((size_t)16 << 20) /* a larger file was not written by this program */

struct tuned {
    char  *path;
    char  *text; /* whole lines, then a NUL */
    size_t used_bytes;
    char   found[1024]; /* the value that tuned_find returned last */
};

/* ---------------------------------------------------------------- path -- */

static char *joined(const char *folder, const char *rest)
{
    size_t bytes = strlen(folder) + strlen(rest) + 1;
    char  *made  = malloc(bytes);

    if (made != NULL) {
        (void)snprintf(made, bytes, "%s%s", folder, rest);
    }
    return made;
}

/* Makes the missing folders above the file. It reports no failure: opening the file does. */
static void folders_make(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0777);
        *slash = '/';
    }
}

static char *path_in_cache(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char       *path = NULL;

    if (cache != NULL && cache[0] == '/') {
        path = joined(cache, "/sherd/products.tsv");
    } else if (home != NULL && home[0] == '/') {
        path = joined(home, "/.cache/sherd/products.tsv");
    }
    if (path != NULL) {
        folders_make(path);
    }
    return path;
}

/* ---------------------------------------------------------------- text -- */

static int text_add(tuned *t, const char *bytes, size_t len_bytes)
{
    char *grown = realloc(t->text, t->used_bytes + len_bytes + 1);

    if (grown == NULL) {
        return -1;
    }
    memcpy(grown + t->used_bytes, bytes, len_bytes);
    t->text = grown;
    t->used_bytes += len_bytes;
    t->text[t->used_bytes] = '\0';
    return 0;
}

/* Opens the file for writing too, and makes it if it does not exist, so that a user who cannot
 * write it learns so before anything is measured. */
static int file_read(tuned *t)
{
    FILE  *file = fopen(t->path, "a+e");
    char   room[4096];
    size_t got = 1;

    if (file == NULL) {
        return -1;
    }
    rewind(file);
    while (got > 0 && t->used_bytes < MOST_BYTES) {
        got = fread(room, 1, sizeof(room), file);
        if (text_add(t, room, got) != 0) {
            (void)fclose(file);
            return -1;
        }
    }
    got = (size_t)ferror(file);
    (void)fclose(file);
    return got == 0 ? 0 : -1;
}

/* ---------------------------------------------------------------- calls -- */

tuned *tuned_open(const char *path, char *why, size_t why_bytes)
{
    tuned *t = calloc(1, sizeof(*t));

    if (t != NULL) {
        t->path = path == NULL ? path_in_cache() : joined(path, "");
    }
    if (t == NULL || t->path == NULL || text_add(t, "", 0) != 0) {
        (void)snprintf(why, why_bytes,
                       "no place for what is measured: neither HOME nor XDG_CACHE_HOME is a path, "
                       "or memory is out; name a file by --tuned");
        tuned_close(t);
        return NULL;
    }
    if (file_read(t) != 0) {
        (void)snprintf(why, why_bytes,
                       "the file of what is measured cannot be read and written: %.120s: %s",
                       t->path, strerror(errno));
        tuned_close(t);
        return NULL;
    }
    return t;
}

void tuned_close(tuned *t)
{
    if (t != NULL) {
        free(t->path);
        free(t->text);
        free(t);
    }
}

const char *tuned_path(const tuned *t)
{
    return t->path;
}

/* Returns the value if the line begins with the key and a tab; else NULL. The caller looks for the
 * end of the line. */
static const char *value_in(const char *line, const char *key, size_t key_bytes)
{
    return strncmp(line, key, key_bytes) == 0 && line[key_bytes] == '\t' ? line + key_bytes + 1
                                                                         : NULL;
}

const char *tuned_find(const tuned *t, const char *key)
{
    tuned      *own       = (tuned *)t; /* not const, for `found` */
    size_t      key_bytes = strlen(key);
    const char *found     = NULL;

    for (const char *line = t->text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const char *value = value_in(line, key, key_bytes);

        if (value != NULL && (size_t)(end - value) < sizeof(own->found)) {
            memcpy(own->found, value, (size_t)(end - value));
            own->found[end - value] = '\0';
            found                   = own->found;
        }
    }
    return found;
}

int tuned_add(tuned *t, const char *key, const char *value)
{
    int  ends_whole = t->used_bytes == 0 || t->text[t->used_bytes - 1] == '\n';
    char line[2048];
    int  bytes = snprintf(line, sizeof(line), "%s%s\t%s\n", ends_whole ? "" : "\n", key, value);
    int  file;
    int  is_written;

    if (bytes < 0 || (size_t)bytes >= sizeof(line) || text_add(t, line, (size_t)bytes) != 0) {
        errno = ENOMEM;
        return -1;
    }
    file = open(t->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) {
        return -1;
    }
    is_written =
        write(file, line, (size_t)bytes) == bytes; /* one call, so lines of others stay whole */
    return close(file) == 0 && is_written ? 0 : -1;
}
