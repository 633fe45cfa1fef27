/* Monitors write numbers that people watch to files, as the blocks csv_monitor and tensorboard of a
 * configuration ask. One rank writes. engine/run/watch.c decides which numbers; this folder only
 * writes them. Each kind of monitor is a table in a file of its own, and a line in monitor.c. */
#ifndef SHERDI_ENGINE_MONITOR_MONITOR_H
#define SHERDI_ENGINE_MONITOR_MONITOR_H

#include "base/mem.h"
#include "engine/config/config.h"

enum {
    SHERDI_MONITOR_TAG_BYTES   = 128, /* of a tag with its NUL */
    SHERDI_MONITOR_MOST_EVENTS = 24,  /* in one call */
};

typedef struct sherdi_monitor_event {
    const char *tag; /* "Train/Samples/lr"; shorter than SHERDI_MONITOR_TAG_BYTES, printable */
    double      value;
} sherdi_monitor_event;

/* The state of every kind begins with this. */
typedef struct sherdi_monitor {
    char folder[SHERDI_MONITOR_FOLDER_BYTES];
} sherdi_monitor;

/* A kind of monitor. Its functions are called one at a time, by the thread that steps. */
typedef struct sherdi_monitor_ops {
    const char *name; /* name of the configuration's block; unique, static storage */
    size_t      state_bytes;
    /* Required. The folder exists, and `state` is zero except for its folder. May block. E_IO. */
    sherd_status (*open)(sherdi_monitor *state);
    /* Required. Writes all events, at position `at` of the axis and with the present time. An event
     * is in the files as a whole or not at all, so that a later call can continue after a failure.
     * May block; allocates nothing. E_IO. */
    sherd_status (*write)(sherdi_monitor *state, const sherdi_monitor_event *events, size_t count,
                          int64_t at);
    /* Required. Accepts a state that was not opened. */
    void (*close)(sherdi_monitor *state);
} sherdi_monitor_ops;

extern const sherdi_monitor_ops sherdi_monitor_csv, sherdi_monitor_tensorboard;

typedef struct sherdi_monitors {
    sherdi_monitor *open[SHERDI_MONITORS]; /* NULL: this kind is off */
    int has_failed[SHERDI_MONITORS];       /* its last write failed: the log has the warning */
} sherdi_monitors;

/** Makes the folders of the kinds that are on, and opens these kinds. E_IO, E_INVAL, E_NOMEM: none
 *  is open then. */
sherd_status sherdi_monitors_open(sherdi_monitors              *monitors,
                                  const sherdi_monitor_settings settings[SHERDI_MONITORS],
                                  sherdi_mem                   *mem);
/** Closes all kinds that are open, if any. */
void sherdi_monitors_close(sherdi_monitors *monitors);
int  sherdi_monitors_are_on(const sherdi_monitors *monitors);
/** Writes at most SHERDI_MONITOR_MOST_EVENTS events. Events that cannot be written are dropped,
 *  with a warning in the log (one until writing works again), because training matters more than
 *  its charts. May block. */
void sherdi_monitors_write(sherdi_monitors *monitors, const sherdi_monitor_event *events,
                           size_t count, int64_t at);

/** Appends all data to a file that was opened for appending and has `at_bytes` bytes. E_IO: not all
 *  of it could be written; the file is then cut to `at_bytes` again. */
sherd_status sherdi_monitor_append(int fd, const char *path, uint64_t at_bytes, const void *data,
                                   size_t len_bytes);

#endif
