/* csv_monitor: a file of rows for each tag, named as in DeepSpeed. Slashes and blanks of the tag become underscores, and the text
 * behind the last slash is the title of the column. New rows are appended to a file that exists, without a second title. */
#include "engine/monitor/monitor.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES (SHERDI_MONITOR_FOLDER_BYTES + SHERDI_MONITOR_TAG_BYTES + 8)
#define ROW_BYTES  (SHERDI_MONITOR_TAG_BYTES + SHERDI_REAL_BYTES + 48)

/* Opens no file: each write opens its own, since there are few tags, and a trainer may add others. */
static sherd_status csv_open(sherdi_monitor *state)
{
    if (access(state->folder, W_OK) != 0) {
        return sherdi_fail(SHERD_E_IO, "csv_monitor: cannot write into %s: %s", state->folder,
                           strerror(errno));
    }
    return SHERD_OK;
}

static void path_make(const sherdi_monitor *state, const char *tag, char path[PATH_BYTES])
{
    size_t start = strlen(state->folder) + 1;

    (void)snprintf(path, PATH_BYTES, "%s/%.*s.csv", state->folder, SHERDI_MONITOR_TAG_BYTES - 1,
                   tag);
    for (char *at = path + start; *at != '\0'; at++) {
        if (*at == '/' || *at == ' ') {
            *at = '_';
        }
    }
}

/* Makes a row, with the titles before it if the file is empty. Returns its length. */
static size_t row_make(const sherdi_monitor_event *event, int is_first, int64_t at,
                       char row[ROW_BYTES])
{
    const char *slash  = strrchr(event->tag, '/');
    const char *column = slash == NULL ? event->tag : slash + 1;
    char        digits[SHERDI_REAL_BYTES];
    int         len = 0;

    if (is_first) {
        len = snprintf(row, ROW_BYTES, "step,%.*s\n", SHERDI_MONITOR_TAG_BYTES - 1, column);
    }
    sherdi_real_format(event->value, digits);
    len += snprintf(row + len, ROW_BYTES - (size_t)len, "%" PRId64 ",%s\n", at, digits);
    return (size_t)len;
}

static sherd_status event_write(const sherdi_monitor *state, const sherdi_monitor_event *event,
                                int64_t at)
{
    char         path[PATH_BYTES];
    char         row[ROW_BYTES];
    struct stat  file;
    sherd_status status;
    int          fd;

    path_make(state, event->tag, path);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &file) != 0) {
        status = sherdi_fail(SHERD_E_IO, "cannot open %s: %s", path, strerror(errno));
    } else {
        status = sherdi_monitor_append(fd, path, (uint64_t)file.st_size, row,
                                       row_make(event, file.st_size == 0, at, row));
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}

static sherd_status csv_write(sherdi_monitor *state, const sherdi_monitor_event *events,
                              size_t count, int64_t at)
{
    for (size_t i = 0; i < count; i++) {
        SHERDI_TRY(event_write(state, &events[i], at));
    }
    return SHERD_OK;
}

static void csv_close(sherdi_monitor *state)
{
    (void)state;
}

const sherdi_monitor_ops sherdi_monitor_csv = {
    .name        = "csv_monitor",
    .state_bytes = sizeof(sherdi_monitor),
    .open        = csv_open,
    .write       = csv_write,
    .close       = csv_close,
};
