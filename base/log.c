/* The log. A process has one listener, set by the program or by SHERD_LOG. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const LEVEL_NAMES[] = {"error", "warn", "info", "debug", "trace"};

/* guards fn, ctx and the calls of fn */
static pthread_mutex_t   log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t    log_once = PTHREAD_ONCE_INIT;
static sherd_log_fn      log_fn;
static void             *log_ctx;
static atomic_int        log_most = -1;  /* level of the listener; -1: none */
static atomic_int        log_is_unknown; /* SHERD_LOG is no level, and this was not logged yet */
static _Thread_local int log_telling;    /* this thread is inside fn, and has log_lock */

static void log_to_stderr(void *ctx, sherd_log_level level, const char *line)
{
    (void)ctx;
    (void)fprintf(stderr, "sherd %s: %s\n", LEVEL_NAMES[level], line);
}

static void log_read_environment(void)
{
    const char *wanted = getenv("SHERD_LOG");
    int         level  = 0;

    if (wanted == NULL || wanted[0] == '\0') {
        return;
    }
    while (level <= SHERD_LOG_TRACE && strcmp(wanted, LEVEL_NAMES[level]) != 0) {
        level++;
    }
    if (level > SHERD_LOG_TRACE) { /* somebody wants to see something */
        level = SHERD_LOG_WARN;
        atomic_store(&log_is_unknown, 1);
    }
    log_fn = log_to_stderr;
    atomic_store(&log_most, level);
}

static void log_begin(void)
{
    (void)pthread_once(&log_once, log_read_environment);
}

/* Reports the unknown level once, to the first listener. */
static void log_tell_unknown(void)
{
    if (atomic_load(&log_is_unknown) && atomic_load(&log_most) >= SHERD_LOG_WARN &&
        atomic_exchange(&log_is_unknown, 0)) {
        sherdi_log(SHERD_LOG_WARN, -1,
                   "SHERD_LOG is \"%s\": it may be error, warn, info, debug or trace",
                   getenv("SHERD_LOG"));
    }
}

void sherd_log_set(sherd_log_fn fn, void *ctx, sherd_log_level most)
{
    log_begin();
    if (!log_telling) {
        (void)pthread_mutex_lock(&log_lock);
    }
    log_fn  = fn;
    log_ctx = ctx;
    atomic_store(&log_most, fn == NULL ? -1 : (int)most);
    if (!log_telling) {
        (void)pthread_mutex_unlock(&log_lock);
    }
    log_tell_unknown();
}

int sherdi_log_is_telling(void)
{
    return log_telling;
}

int sherdi_log_is_on(sherd_log_level level)
{
    log_begin();
    log_tell_unknown();
    return (int)level <= atomic_load(&log_most);
}

void sherdi_log(sherd_log_level level, int rank, const char *fmt, ...)
{
    char    line[SHERDI_ERROR_BYTES];
    int     start = 0;
    va_list args;

    if (log_telling || !sherdi_log_is_on(level)) {
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
        log_telling = 1;
        log_fn(log_ctx, level, line);
        log_telling = 0;
    }
    (void)pthread_mutex_unlock(&log_lock);
}
