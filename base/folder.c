/* See folder.h. */
#include "base/folder.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES 4096

sherd_status sherdi_folders_make(const char *path, const char *what)
{
    char   part[PATH_BYTES];
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof(part)) {
        return sherdi_fail(SHERD_E_INVAL, "%s has no name, or too long a one", what);
    }
    for (size_t i = 1; i <= len; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            memcpy(part, path, i);
            part[i] = '\0';
            if (mkdir(part, 0777) != 0 && errno != EEXIST) {
                return sherdi_fail(SHERD_E_IO, "cannot make the folder %s: %s", part,
                                   strerror(errno));
            }
        }
    }
    return SHERD_OK;
}
