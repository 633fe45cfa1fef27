/* The log: one process-wide listener, set by the program or by SHERD_LOG. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const LEVEL_NAMES[] = {"error", "warn", "info", "debug", "trace"};

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* guards fn, ctx and the calls */
static pthread_once_t  log_once = PTHREAD_ONCE_INIT;
static sherd_log_fn    log_fn;
static void           *log_ctx;
static atomic_int      log_most = -1; /* level of the listener; -1: nobody listens */

static void log_to_stderr(void *ctx, sherd_log_level level, const char *line)
{
    (void)ctx;
    (void)fprintf(stderr, "sherd %s: %s\n", LEVEL_NAMES[level], line);
}

static void log_read_environment(void)
{
    const char *wanted = getenv("SHERD_LOG");

    for (int level = 0; wanted != NULL && level <= SHERD_LOG_TRACE; level++) {
        if (strcmp(wanted, LEVEL_NAMES[level]) == 0) {
            log_fn = log_to_stderr;
            atomic_store(&log_most, level);
        }
    }
}

void sherd_log_set(sherd_log_fn fn, void *ctx, sherd_log_level most)
{
    (void)pthread_once(&log_once, log_read_environment);
    (void)pthread_mutex_lock(&log_lock);
    log_fn  = fn;
    log_ctx = ctx;
    atomic_store(&log_most, fn == NULL ? -1 : (int)most);
    (void)pthread_mutex_unlock(&log_lock);
}

int sherdi_log_is_on(sherd_log_level level)
{
    (void)pthread_once(&log_once, log_read_environment);
    return (int)level <= atomic_load(&log_most);
}

void sherdi_log(sherd_log_level level, int rank, const char *fmt, ...)
{
    char    line[SHERDI_ERROR_BYTES];
    int     start = 0;
    va_list args;

    if (!sherdi_log_is_on(level)) {
        return;
    }
    if (rank >= 0) {
        start = snprintf(line, sizeof(line), "rank %d: ", rank);
    }
    va_start(args, fmt);
    (void)vsnprintf(line + start, sizeof(line) - (size_t)start, fmt, args);
    va_end(args);

    (void)pthread_mutex_lock(&log_lock);
    if (log_fn != NULL) {
        log_fn(log_ctx, level, line);
    }
    (void)pthread_mutex_unlock(&log_lock);
}
