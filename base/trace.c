/* See trace.h. The format is Google's "Trace Event Format": complete events (X) on
 * rows where one thing runs at a time, and pairs of asynchronous events (b, e) where several do. */
#include "base/trace.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define TRACE_INTERVALS  4096
#define TRACE_PATH_BYTES 1024

typedef struct trace_interval {
    sherdi_trace_lane lane;
    const char       *name, *what;
    uint64_t          bytes;
    int64_t           start_ns, end_ns;
} trace_interval;

struct sherdi_trace {
    FILE           *file;
    int             rank;
    unsigned        count; /* guarded by the lock, as the members below */
    pthread_mutex_t lock;
    uint64_t        written;
    trace_interval  intervals[TRACE_INTERVALS];
};

static const char *const LANES[SHERDI_TRACE_LANES] = {
    [SHERDI_TRACE_COMPUTE] = "compute",  [SHERDI_TRACE_WAIT] = "wait (exposed)",
    [SHERDI_TRACE_GATHER] = "gather",    [SHERDI_TRACE_REDUCE] = "reduce",
    [SHERDI_TRACE_DOWN] = "copy down",   [SHERDI_TRACE_UP] = "copy up",
    [SHERDI_TRACE_READ] = "read (NVMe)", [SHERDI_TRACE_WRITE] = "write (NVMe)",
    [SHERDI_TRACE_UPDATE] = "update",    [SHERDI_TRACE_STEP] = "step",
};

/* The length of the path as snprintf gives it, which may be more than there is room for. */
static int path_make(const char *path, int rank, int world_size, char out[TRACE_PATH_BYTES])
{
    const char *mark  = strstr(path, "%r");
    const char *slash = strrchr(path, '/');
    const char *dot   = strrchr(path, '.');

    if (mark != NULL) {
        return snprintf(out, TRACE_PATH_BYTES, "%.*s%d%s", (int)(mark - path), path, rank,
                        mark + 2);
    }
    if (world_size == 1 || rank == 0) {
        return snprintf(out, TRACE_PATH_BYTES, "%s", path);
    }
    if (dot == NULL || (slash != NULL && dot < slash)) {
        dot = path + strlen(path);
    }
    return snprintf(out, TRACE_PATH_BYTES, "%.*s.%d%s", (int)(dot - path), path, rank, dot);
}

static void names_write(sherdi_trace *trace)
{
    (void)fprintf(trace->file,
                  "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                  "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank "
                  "%d\"}}",
                  trace->rank, trace->rank);
    for (int lane = 0; lane < SHERDI_TRACE_LANES; lane++) {
        (void)fprintf(trace->file,
                      ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{"
                      "\"name\":\"%s\"}}"
                      ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\","
                      "\"args\":{\"sort_index\":%d}}",
                      trace->rank, lane, LANES[lane], trace->rank, lane, lane);
    }
}

sherd_status sherdi_trace_open(const char *path, int rank, int world_size, sherdi_mem *mem,
                               sherdi_trace **out)
{
    char          own[TRACE_PATH_BYTES];
    sherdi_trace *trace;

    if (path_make(path, rank, world_size, own) >= TRACE_PATH_BYTES) {
        return sherdi_fail(SHERD_E_INVAL,
                           "SHERD_TRACE: the path has %zu characters; %d are the most",
                           strlen(path), TRACE_PATH_BYTES - 16);
    }
    trace = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*trace));
    if (trace == NULL) {
        return SHERD_E_NOMEM;
    }
    trace->rank = rank;
    trace->file = fopen(own, "we");
    if (trace->file == NULL) {
        sherdi_free(trace);
        return sherdi_fail(SHERD_E_IO,
                           "SHERD_TRACE: cannot write %s: %s; name a file in a folder that is "
                           "there",
                           own, strerror(errno));
    }
    (void)pthread_mutex_init(&trace->lock, NULL);
    names_write(trace);
    *out = trace;
    return SHERD_OK;
}

/* Units' names are the trainer's, and may contain any character. */
static void text_write(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            (void)fprintf(file, "\\%c", c);
        } else if (c < 0x20) {
            (void)fprintf(file, "\\u%04x", c);
        } else {
            (void)fputc(c, file);
        }
    }
}

static void head_write(sherdi_trace *trace, const trace_interval *interval, const char *phase,
                       int64_t ns)
{
    (void)fprintf(trace->file,
                  ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64 ".%03d,\"name\":\"",
                  phase, trace->rank, (int)interval->lane, ns / 1000, (int)(ns % 1000));
    text_write(trace->file, interval->name);
    if (interval->what != NULL) {
        (void)fputc(' ', trace->file);
        text_write(trace->file, interval->what);
    }
    (void)fprintf(trace->file, "\",\"cat\":\"%s\"", LANES[interval->lane]);
}

static void interval_write(sherdi_trace *trace, const trace_interval *interval)
{
    int64_t duration =
        interval->end_ns > interval->start_ns ? interval->end_ns - interval->start_ns : 0;

    if (interval->lane == SHERDI_TRACE_READ || interval->lane == SHERDI_TRACE_WRITE) {
        head_write(trace, interval, "b", interval->start_ns);
        (void)fprintf(trace->file, ",\"id\":%" PRIu64 ",\"args\":{\"bytes\":%" PRIu64 "}}",
                      trace->written, interval->bytes);
        head_write(trace, interval, "e", interval->start_ns + duration);
        (void)fprintf(trace->file, ",\"id\":%" PRIu64 "}", trace->written);
    } else {
        head_write(trace, interval, "X", interval->start_ns);
        (void)fprintf(trace->file, ",\"dur\":%" PRId64 ".%03d", duration / 1000,
                      (int)(duration % 1000));
        if (interval->bytes > 0) {
            (void)fprintf(trace->file, ",\"args\":{\"bytes\":%" PRIu64 "}", interval->bytes);
        }
        (void)fputc('}', trace->file);
    }
    trace->written++;
}

static void buffer_write(sherdi_trace *trace)
{
    for (size_t i = 0; i < trace->count; i++) {
        interval_write(trace, &trace->intervals[i]);
    }
    trace->count = 0;
}

void sherdi_trace_interval(sherdi_trace *trace, sherdi_trace_lane lane, const char *name,
                           const char *what, uint64_t bytes, int64_t start_ns, int64_t end_ns)
{
    if (trace == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&trace->lock);
    if (trace->count == TRACE_INTERVALS) {
        buffer_write(trace);
    }
    trace->intervals[trace->count++] = (trace_interval){lane, name, what, bytes, start_ns, end_ns};
    (void)pthread_mutex_unlock(&trace->lock);
}

void sherdi_trace_close(sherdi_trace *trace)
{
    int has_failed;

    if (trace == NULL) {
        return;
    }
    buffer_write(trace);
    (void)fprintf(trace->file, "\n]}\n");
    has_failed = ferror(trace->file);
    if (fclose(trace->file) != 0 || has_failed) {
        sherdi_log(SHERD_LOG_WARN, trace->rank,
                   "SHERD_TRACE: the trace could not be written whole: %s", strerror(errno));
    }
    (void)pthread_mutex_destroy(&trace->lock);
    sherdi_free(trace);
}
