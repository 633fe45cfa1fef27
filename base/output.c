/* See output.h. */
#include "base/output.h"

#include "base/api.h"
#include "sherd_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISLNK(mode)  ? "a symbolic link, which is not followed"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

static sherd_status write_fail(const char *label)
{
    return sherdi_fail(SHERD_E_IO, "%s cannot be written: %s", label, strerror(errno));
}

sherd_status sherd_output_check(const char *path)
{
    struct stat about;

    SHERDI_TRY(sherdi_api_need(path != NULL, "sherd_output_check", "path"));
    if (lstat(path, &about) != 0 || S_ISREG(about.st_mode)) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_IO,
                       "%s is %s, and only a regular file is replaced by a new one; name another "
                       "path",
                       path, kind_of(about.st_mode));
}

sherd_status sherdi_output_open(const char *label, const char *beside, int *fd_out)
{
    (void)unlink(beside);
    *fd_out = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    return *fd_out >= 0 ? SHERD_OK : write_fail(label);
}

sherd_status sherdi_output_put(const char *label, int fd, const void *bytes, size_t len_bytes)
{
    for (size_t done = 0; done < len_bytes;) {
        ssize_t put = write(fd, (const char *)bytes + done, len_bytes - done);

        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return write_fail(label);
        }
        done += (size_t)put;
    }
    return SHERD_OK;
}

sherd_status sherdi_output_end(const char *label, int fd)
{
    int error = fsync(fd) == 0 ? 0 : errno;

    if (close(fd) != 0 && error == 0) {
        error = errno;
    }
    errno = error;
    return error == 0 ? SHERD_OK : write_fail(label);
}

/* Writes ".NAME.partial" in the folder of the path. */
static sherd_status beside_make(const char *path, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int         len   = slash == NULL ? 0 : (int)(slash - path) + 1;

    len = snprintf(out, PATH_MAX, "%.*s.%s.partial", len, path, path + len);
    return len < PATH_MAX ? SHERD_OK
                          : sherdi_fail(SHERD_E_INVAL, "the path \"%.100s\" is too long", path);
}

sherd_status sherd_output_write(const char *path, const void *data, size_t len_bytes)
{
    char         beside[PATH_MAX];
    int          fd = -1;
    sherd_status status;

    SHERDI_TRY(sherdi_api_need(path != NULL, "sherd_output_write", "path"));
    SHERDI_TRY(sherdi_api_need(data != NULL || len_bytes == 0, "sherd_output_write", "data"));
    SHERDI_TRY(sherd_output_check(path));
    SHERDI_TRY(beside_make(path, beside));
    SHERDI_TRY(sherdi_output_open(path, beside, &fd));
    status = sherdi_output_put(path, fd, data, len_bytes);
    if (status != SHERD_OK) {
        (void)close(fd);
    } else {
        status = sherdi_output_end(path, fd);
    }
    if (status == SHERD_OK && rename(beside, path) != 0) {
        status = write_fail(path);
    }
    if (status != SHERD_OK) {
        (void)unlink(beside);
    }
    return status;
}
