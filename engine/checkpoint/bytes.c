/* See bytes.h. */
#include "engine/checkpoint/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sherd_status sherdi_bytes_read(const char *label, int fd, size_t at, void *out, size_t len_bytes)
{
    for (size_t done = 0; done < len_bytes;) {
        ssize_t got = pread(fd, (char *)out + done, len_bytes - done, (off_t)(at + done));

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return sherdi_fail(SHERD_E_IO, "%s cannot be read at byte %zu: %s", label, at + done,
                               got < 0 ? strerror(errno) : "it ends there");
        }
        done += (size_t)got;
    }
    return SHERD_OK;
}

sherd_status sherdi_bytes_open(const char *path, int *fd_out, size_t *len_bytes_out)
{
    /* Without O_NONBLOCK, open would wait for a writer if this is a pipe. */
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat about;

    if (fd < 0 || fstat(fd, &about) != 0) {
        int error = errno;

        if (fd >= 0) {
            (void)close(fd);
        }
        return sherdi_fail(SHERD_E_IO, "%s cannot be opened: %s", path, strerror(error));
    }
    if (!S_ISREG(about.st_mode)) {
        (void)close(fd);
        return sherdi_fail(SHERD_E_INVAL, "%s is not a regular file", path);
    }
    *fd_out        = fd;
    *len_bytes_out = (size_t)about.st_size;
    return SHERD_OK;
}

sherd_status sherdi_bytes_load(sherdi_mem *mem, const char *path, size_t most_bytes, char **out,
                               size_t *len_bytes_out)
{
    size_t       len_bytes = 0;
    int          fd        = -1;
    sherd_status status;
    char        *text;

    SHERDI_TRY(sherdi_bytes_open(path, &fd, &len_bytes));
    if (len_bytes > most_bytes) {
        (void)close(fd);
        return sherdi_fail(SHERD_E_INVAL, "%s has %zu bytes; at most %zu can be", path, len_bytes,
                           most_bytes);
    }
    text   = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes + 1);
    status = text == NULL ? SHERD_E_NOMEM : sherdi_bytes_read(path, fd, 0, text, len_bytes);
    (void)close(fd);
    if (status != SHERD_OK) {
        sherdi_free(text);
        return status;
    }
    *out           = text;
    *len_bytes_out = len_bytes;
    return SHERD_OK;
}
