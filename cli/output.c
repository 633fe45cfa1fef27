/* Results into files: what was there stays whole until the new one is. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Errno of the first thing that failed, else 0. */
static int text_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    int   error;

    if (file == NULL) {
        return errno;
    }
    error = fprintf(file, "%s\n", text) < 0 || fflush(file) != 0 || ferror(file) ? errno : 0;
    if (fclose(file) != 0 && error == 0) {
        error = errno;
    }
    return error;
}

/* A file is written beside and renamed. */
static int file_write(const char *path, const char *text)
{
    size_t len  = strlen(path) + sizeof(".part");
    char  *part = malloc(len);
    int    error;

    if (part == NULL) {
        return ENOMEM;
    }
    (void)snprintf(part, len, "%s.part", path);
    error = text_write(part, text);
    if (error == 0 && rename(part, path) != 0) {
        error = errno;
    }
    if (error != 0) {
        (void)unlink(part);
    }
    free(part);
    return error;
}

int cli_file_save(const char *path, const char *text, int is_forced)
{
    struct stat info;
    int         is_there = lstat(path, &info) == 0;
    int         error;

    if (is_there && !is_forced) {
        (void)fprintf(stderr, "sherd: %s is there already; --force overwrites it\n", path);
        return 1;
    }
    /* a device, a pipe or a link is written through, never replaced */
    error = is_there && !S_ISREG(info.st_mode) ? text_write(path, text) : file_write(path, text);
    if (error != 0) {
        (void)fprintf(stderr, "sherd: %s cannot be written: %s\n", path, strerror(error));
    }
    return error != 0;
}
