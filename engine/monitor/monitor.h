/* Numbers that people watch, in files: what the blocks csv_monitor and tensorboard of a configuration ask for. One rank
 * writes. engine/run/watch.c knows what is worth watching; here is only how it is written. A kind of monitor is a table in
 * a file, and a line in monitor.c. */
#ifndef SHERDI_ENGINE_MONITOR_MONITOR_H
#define SHERDI_ENGINE_MONITOR_MONITOR_H

#include "base/mem.h"
#include "engine/config/config.h"

enum {
    SHERDI_MONITOR_TAG_BYTES   = 128, /* with its NUL */
    SHERDI_MONITOR_MOST_EVENTS = 24,  /* of one call */
};

typedef struct sherdi_monitor_event {
    const char *tag; /* "Train/Samples/lr"; below SHERDI_MONITOR_TAG_BYTES, printable */
    double      value;
} sherdi_monitor_event;

/* The state of one kind; each begins with it. */
typedef struct sherdi_monitor {
    char folder[SHERDI_MONITOR_FOLDER_BYTES];
} sherdi_monitor;

/* Calls come one at a time, from the thread that steps. */
typedef struct sherdi_monitor_ops {
    const char *name; /* the block's; unique, static storage */
    size_t      state_bytes;
    /* Required. The folder is there, `state` is zero but for its name. May block. E_IO. */
    sherd_status (*open)(sherdi_monitor *state);
    /* Required. Writes all events at the place `at` on the axis, of now. All of an event is in the files or nothing of it, so
     * that another call can go on after a failure. May block; allocates nothing. E_IO. */
    sherd_status (*write)(sherdi_monitor *state, const sherdi_monitor_event *events, size_t count,
                          int64_t at);
    /* Required. Also of a state that was not opened. */
    void (*close)(sherdi_monitor *state);
} sherdi_monitor_ops;

extern const sherdi_monitor_ops sherdi_monitor_csv, sherdi_monitor_tensorboard;

typedef struct sherdi_monitors {
    sherdi_monitor *open[SHERDI_MONITORS];       /* NULL: it is off */
    int             has_failed[SHERDI_MONITORS]; /* said, and not to be said again until it works */
} sherdi_monitors;

/** Opens what is on, and makes the folders. E_IO, E_INVAL, E_NOMEM; nothing is open then. */
sherd_status sherdi_monitors_open(sherdi_monitors              *monitors,
                                  const sherdi_monitor_settings settings[SHERDI_MONITORS],
                                  sherdi_mem                   *mem);
/** Also of none. */
void sherdi_monitors_close(sherdi_monitors *monitors);
int  sherdi_monitors_are_on(const sherdi_monitors *monitors);
/** At most SHERDI_MONITOR_MOST_EVENTS. What cannot be written is told in the log (a warning, once until it works again) and
 *  dropped: training is worth more than its charts. */
void sherdi_monitors_write(sherdi_monitors *monitors, const sherdi_monitor_event *events,
                           size_t count, int64_t at);

/** Writes all of it to a file opened for appending, of `at_bytes` before; what could not be written whole is cut off again.
 *  E_IO. */
sherd_status sherdi_monitor_append(int fd, const char *path, uint64_t at_bytes, const void *data,
                                   size_t len_bytes);

#endif
