/* Lists the kinds of monitors, opens them and calls them. See monitor.h. */
#include "engine/monitor/monitor.h"

#include "base/folder.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const sherdi_monitor_ops *const KINDS[SHERDI_MONITORS] = {
    [SHERDI_MONITOR_CSV]         = &sherdi_monitor_csv,
    [SHERDI_MONITOR_TENSORBOARD] = &sherdi_monitor_tensorboard,
};

static sherd_status kind_open(sherdi_monitors *monitors, int kind, const char *folder,
                              sherdi_mem *mem)
{
    sherdi_monitor *state;

    SHERDI_TRY(sherdi_folders_make(folder, KINDS[kind]->name));
    state = sherdi_alloc(mem, SHERDI_MEM_CONTROL, KINDS[kind]->state_bytes);
    if (state == NULL) {
        return SHERD_E_NOMEM;
    }
    memset(state, 0, KINDS[kind]->state_bytes);
    (void)snprintf(state->folder, sizeof(state->folder), "%s", folder);
    monitors->open[kind] = state;
    return KINDS[kind]->open(state);
}

sherd_status sherdi_monitors_open(sherdi_monitors              *monitors,
                                  const sherdi_monitor_settings settings[SHERDI_MONITORS],
                                  sherdi_mem                   *mem)
{
    sherd_status status = SHERD_OK;

    for (int kind = 0; kind < SHERDI_MONITORS && status == SHERD_OK; kind++) {
        if (settings[kind].is_on) {
            status = kind_open(monitors, kind, settings[kind].folder, mem);
        }
    }
    if (status != SHERD_OK) {
        sherdi_monitors_close(monitors);
    }
    return status;
}

void sherdi_monitors_close(sherdi_monitors *monitors)
{
    for (int kind = 0; kind < SHERDI_MONITORS; kind++) {
        if (monitors->open[kind] != NULL) {
            KINDS[kind]->close(monitors->open[kind]);
        }
        sherdi_free(monitors->open[kind]);
        monitors->open[kind] = NULL;
    }
}

int sherdi_monitors_are_on(const sherdi_monitors *monitors)
{
    for (int kind = 0; kind < SHERDI_MONITORS; kind++) {
        if (monitors->open[kind] != NULL) {
            return 1;
        }
    }
    return 0;
}

void sherdi_monitors_write(sherdi_monitors *monitors, const sherdi_monitor_event *events,
                           size_t count, int64_t at)
{
    assert(count <= SHERDI_MONITOR_MOST_EVENTS);
    for (int kind = 0; kind < SHERDI_MONITORS; kind++) {
        sherd_status status;

        if (monitors->open[kind] == NULL) {
            continue;
        }
        status = KINDS[kind]->write(monitors->open[kind], events, count, at);
        if (status != SHERD_OK && !monitors->has_failed[kind]) {
            sherdi_log(SHERD_LOG_WARN, 0,
                       "%s: %s; training goes on without it, and the next step tries again",
                       KINDS[kind]->name, sherd_last_error());
        }
        monitors->has_failed[kind] = status != SHERD_OK;
    }
}

sherd_status sherdi_monitor_append(int fd, const char *path, uint64_t at_bytes, const void *data,
                                   size_t len_bytes)
{
    const unsigned char *next = data;
    size_t               left = len_bytes;
    ssize_t              done = 0;
    int                  reason;

    while (left > 0 && (done >= 0 || errno == EINTR)) {
        done = write(fd, next, left);
        if (done > 0) {
            next += done;
            left -= (size_t)done;
        }
    }
    if (left == 0) {
        return SHERD_OK;
    }
    reason = errno;
    return sherdi_fail(SHERD_E_IO, "cannot write %s: %s%s", path, strerror(reason),
                       ftruncate(fd, (off_t)at_bytes) == 0 ? "" : "; its last entry is not whole");
}
