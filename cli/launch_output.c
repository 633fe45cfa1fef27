/* sherd launch: passes on what ranks print, line by line, with the rank before each line, and keeps
 * the last lines of each rank. See launch.h. */
#include "cli/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A longer line is passed on in portions. */
#define LINE_BYTES 8192
/* A line of a part that begins so is a note. No text begins with this character. */
#define NOTE "\001sherd rank "

void launch_output_add(launch_output *output, int fd, int rank, int is_error)
{
    launch_stream *stream = NULL;

    for (int i = 0; stream == NULL && i < output->num_streams; i++) {
        stream = output->streams[i].fd < 0 ? &output->streams[i] : NULL; /* of one that has ended */
    }
    if (stream == NULL && output->num_streams == 2 * LAUNCH_MOST_RANKS) {
        (void)close(fd); /* what ended processes have started holds all of them */
        return;
    }
    if (stream == NULL) {
        stream = &output->streams[output->num_streams++];
    }
    *stream = (launch_stream){.fd = fd, .rank = rank, .is_error = is_error};
}

/* ---- the last lines ---- */

/* Returns the rank that a line names: "[3] words"; -1: it names none. */
static int line_rank(const char *line)
{
    int rank, len = 0;

    return sscanf(line, "[%d] %n", &rank, &len) == 1 && len > 0 && rank >= 0 && rank < 1 << 20
               ? rank
               : -1;
}

static void last_keep(launch_output *output, const char *line)
{
    int    rank = line_rank(line);
    char **place;

    if (rank >= output->num_last) {
        void *more = realloc(output->last, (size_t)(rank + 1) * sizeof(*output->last));

        if (more == NULL) {
            return; /* the line itself was printed */
        }
        output->last = more;
        memset(&output->last[output->num_last], 0,
               (size_t)(rank + 1 - output->num_last) * sizeof(*output->last));
        output->num_last = rank + 1;
    }
    if (rank < 0) {
        return;
    }
    place = &output->last[rank].lines[output->last[rank].next++ % LAUNCH_LAST_LINES];
    free(*place);
    *place = strdup(line);
}

void launch_output_last(const launch *job)
{
    const launch_output *output = &job->output;
    int                  rank   = job->failed_rank;

    if (rank < 0 || rank >= output->num_last || output->last[rank].next == 0) {
        return;
    }
    (void)fprintf(stderr, "sherd: rank %d failed first; the last lines of its standard error:\n",
                  rank);
    for (int i = 0; i < LAUNCH_LAST_LINES; i++) {
        const char *line =
            output->last[rank].lines[(output->last[rank].next + i) % LAUNCH_LAST_LINES];

        if (line != NULL) {
            (void)fprintf(stderr, "%s\n", line);
        }
    }
}

/* ---- notes ---- */

void launch_rank_failed(launch *job, int rank, const char *host, int status)
{
    if (job->status != 0) { /* ranks that fail after the first one fail because of it */
        return;
    }
    job->status      = status;
    job->failed_rank = rank;
    if (job->output.is_part) {
        (void)fprintf(stderr, NOTE "%d %d %s\n", rank, status, host);
        return;
    }
    (void)fprintf(stderr, "sherd: rank %d%s%s ", rank, host[0] == '\0' ? "" : " on ", host);
    if (status > 128) {
        (void)fprintf(stderr, "was ended by signal %d (%s)\n", status - 128,
                      strsignal(status - 128));
    } else {
        (void)fprintf(stderr, "ended with status %d\n", status);
    }
}

/* Returns whether a line is a note, which it takes. */
static int note_take(launch *job, const char *line)
{
    char host[128] = "";
    int  rank, status;

    if (strncmp(line, NOTE, sizeof(NOTE) - 1) != 0) {
        return 0;
    }
    if (sscanf(line + sizeof(NOTE) - 1, "%d %d %127s", &rank, &status, host) >= 2) {
        launch_rank_failed(job, rank, host, status);
    }
    return 1;
}

/* ---- lines ---- */

/* Returns a line without "[0] ", the rank that a part has put before it. */
static const char *without_rank(const char *line)
{
    size_t digits = line[0] == '[' ? strspn(line + 1, "0123456789") : 0;

    return digits > 0 && strncmp(line + 1 + digits, "] ", 2) == 0 ? line + digits + 3 : line;
}

static void line_pass(launch *job, const launch_stream *stream, const char *line)
{
    FILE *out = stream->is_error ? stderr : stdout;
    char  named[LINE_BYTES + 16];

    if (stream->rank >= 0) {
        (void)snprintf(named, sizeof(named), "[%d] %s", stream->rank, line);
        line = named;
    } else if (note_take(job, line)) {
        return;
    }
    (void)fprintf(out, "%s\n", job->is_bare ? without_rank(line) : line);
    (void)fflush(out);
    if (stream->is_error && !job->output.is_part) {
        last_keep(&job->output, line);
    }
}

/* Passes on the complete lines; what follows them stays. */
static void lines_pass(launch *job, launch_stream *stream, int is_end)
{
    char *line = stream->text;

    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        line_pass(job, stream, line);
    }
    stream->len = strlen(line);
    memmove(stream->text, line, stream->len + 1);
    if (stream->len > 0 && (is_end || stream->len == LINE_BYTES)) {
        line_pass(job, stream, stream->text);
        stream->len = 0;
    }
}

static void stream_close(launch *job, launch_stream *stream)
{
    if (stream->text != NULL) {
        lines_pass(job, stream, 1);
    }
    free(stream->text);
    stream->text = NULL;
    (void)close(stream->fd);
    stream->fd = -1;
}

int launch_output_read(launch *job, launch_stream *stream)
{
    ssize_t got;

    if (stream->fd < 0) {
        return 0;
    }
    if (stream->text == NULL) {
        stream->text = calloc(1, LINE_BYTES + 1);
    }
    if (stream->text == NULL) {
        stream_close(job, stream);
        return 0;
    }
    got = read(stream->fd, stream->text + stream->len, LINE_BYTES - stream->len);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (got <= 0) {
        stream_close(job, stream);
        return 0;
    }
    for (ssize_t i = 0; i < got; i++) { /* a zero would end the text */
        char *at = &stream->text[stream->len + (size_t)i];

        *at = *at == '\0' ? '?' : *at;
    }
    stream->len += (size_t)got;
    stream->text[stream->len] = '\0';
    lines_pass(job, stream, 0);
    return 1;
}

/* What a pipe can hold, and more: what a child of an ended rank still writes is not waited for. */
#define LAST_READS 64

void launch_output_drain(launch *job)
{
    for (int i = 0; i < job->output.num_streams; i++) {
        int reads = 0;

        while (reads < LAST_READS && launch_output_read(job, &job->output.streams[i])) {
            reads++;
        }
    }
}

void launch_output_end(launch *job)
{
    launch_output_drain(job);
    for (int i = 0; i < job->output.num_streams; i++) {
        if (job->output.streams[i].fd >= 0) {
            stream_close(job, &job->output.streams[i]);
        }
    }
}

void launch_output_free(launch_output *output)
{
    for (int rank = 0; rank < output->num_last; rank++) {
        for (int i = 0; i < LAUNCH_LAST_LINES; i++) {
            free(output->last[rank].lines[i]);
        }
    }
    free(output->last);
}
