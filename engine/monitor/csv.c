/* csv_monitor: a file of rows for each tag, named as in DeepSpeed. Slashes and blanks of the tag
 * become underscores, and the text after the last slash is the title of the column. New rows are
 * appended to a file that exists, without a second title. */
#include "engine/monitor/monitor.h"

#include "base/real.h"
#include "sherd_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES (SHERDI_MONITOR_FOLDER_BYTES + SHERDI_MONITOR_TAG_BYTES + 8)
#define ROW_BYTES  (SHERDI_MONITOR_TAG_BYTES + SHERDI_REAL_BYTES + 48)

/* Opens no file: each write opens its own, since there are few tags, and a trainer may add
 * others. */
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

/* Returns how many bytes of a file of `len_bytes` are whole rows: a run that was killed, or a
 * machine that stopped, may have cut the last one short. A file that cannot be read, or whose end
 * has no row, stays as it is. */
static uint64_t rows_bytes(int fd, uint64_t len_bytes)
{
    char     tail[ROW_BYTES];
    uint64_t start = len_bytes > sizeof(tail) ? len_bytes - sizeof(tail) : 0;
    ssize_t  got   = pread(fd, tail, (size_t)(len_bytes - start), (off_t)start);
    ssize_t  end   = got;

    while (end > 0 && tail[end - 1] != '\n') {
        end--;
    }
    if (got < 0 || (end == 0 && start > 0)) {
        return len_bytes;
    }
    return start + (uint64_t)end;
}

static sherd_status event_write(const sherdi_monitor *state, const sherdi_monitor_event *event,
                                int64_t at)
{
    char         path[PATH_BYTES];
    char         row[ROW_BYTES];
    struct stat  file;
    sherd_status status;
    uint64_t     whole_bytes;
    int          fd;

    path_make(state, event->tag, path);
    SHERDI_TRY(sherd_output_check(path)); /* a row that was cut off is truncated */
    fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &file) != 0) {
        status = sherdi_fail(SHERD_E_IO, "cannot open %s: %s", path, strerror(errno));
    } else {
        whole_bytes = rows_bytes(fd, (uint64_t)file.st_size);
        if (whole_bytes < (uint64_t)file.st_size && ftruncate(fd, (off_t)whole_bytes) != 0) {
            whole_bytes = (uint64_t)file.st_size;
        }
        status = sherdi_monitor_append(fd, path, whole_bytes, row,
                                       row_make(event, whole_bytes == 0, at, row));
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
