/* See monitor.h. Every message has the same size and is far smaller than a socket's buffer, so
 * sending never waits. A message that cannot be sent is dropped; its receiver notices the failure
 * when the connection ends. */
#include "collectives/monitor.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "collectives/listeners.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* A rank that leaves waits at most so long for the others to notice it. */
#define FAREWELL_NS INT64_C(1000000000)

enum { NEWS_FAILED = 1, NEWS_LEFT = 2, NEWS_DIED = 3, NEWS_ENDING = 4 };

typedef struct monitor_news {
    int32_t  kind;
    int32_t  rank;
    int32_t  status;
    int32_t  is_agreed; /* of an ending, as is key */
    uint64_t key;
    char     text[488];
} monitor_news;

typedef struct monitor_line {
    int    fd;
    int    rank;
    int    is_leaving; /* has said goodbye */
    size_t got_bytes;
    union {
        monitor_news news;
        char         bytes[sizeof(monitor_news)];
    } in;
} monitor_line;

struct sherdi_monitor {
    monitor_params  params;
    pthread_t       thread;
    int             wake; /* eventfd: wakes the thread to check is_stopping */
    atomic_int      is_stopping;
    atomic_int      is_told;   /* a failure has gone over the lines, out or in */
    int             num_lines; /* rank 0: one per other rank; other ranks: one */
    monitor_line   *lines;
    struct pollfd  *polls;     /* [num_lines + 1] */
    pthread_mutex_t send_lock; /* guards sending, and the closing of lines */
};

/* Call it under send_lock. */
static void line_send(monitor_line *line, const monitor_news *news)
{
    if (line->fd >= 0) {
        (void)send(line->fd, news, sizeof(*news), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

static void news_send(sherdi_monitor *monitor, const monitor_news *news, const monitor_line *except)
{
    (void)pthread_mutex_lock(&monitor->send_lock);
    for (int i = 0; i < monitor->num_lines; i++) {
        if (&monitor->lines[i] != except) {
            line_send(&monitor->lines[i], news);
        }
    }
    (void)pthread_mutex_unlock(&monitor->send_lock);
}

static void line_close(sherdi_monitor *monitor, monitor_line *line)
{
    (void)pthread_mutex_lock(&monitor->send_lock);
    sherdi_net_close(&line->fd);
    (void)pthread_mutex_unlock(&monitor->send_lock);
}

/* Handles a message from a rank. Rank 0 passes it on to the others; for another rank there is
 * nobody to pass it to. It does so first: when the program of this rank sees a failure, it may end
 * at once, and the others would take that for the cause. Of the failures that ranks report, only the
 * first is forwarded: all ranks have it then. */
static void news_take(sherdi_monitor *monitor, monitor_line *line)
{
    monitor_news *news       = &line->in.news;
    int           is_failure = news->kind == NEWS_FAILED || news->kind == NEWS_DIED;
    int           is_old     = is_failure && atomic_exchange(&monitor->is_told, 1);

    news->text[sizeof(news->text) - 1] = '\0';
    if (!is_old || news->kind == NEWS_DIED) {
        news_send(monitor, news, line);
    }
    if (news->kind == NEWS_LEFT) {
        if (news->rank == line->rank) {
            line->is_leaving = 1;
        }
        monitor->params.left(monitor->params.world, news->rank);
    } else if (news->kind == NEWS_ENDING) {
        sherdi_world_told(monitor->params.world, news->key, news->is_agreed != 0);
    } else {
        monitor->params.failed(monitor->params.world, (sherd_status)news->status, news->text,
                               news->kind == NEWS_DIED);
    }
}

/* `error`: 0 where the connection was closed, else why it broke. A closed one was closed by its
 * process's end; one that timed out says nothing of the process. */
static void line_ended(sherdi_monitor *monitor, monitor_line *line, int error)
{
    const rendezvous_card *card   = &monitor->params.meeting->cards[line->rank];
    int                    number = sherdi_world_number(monitor->params.world, line->rank);
    monitor_news           news   = {
                    .kind   = NEWS_DIED,
                    .rank   = line->rank,
                    .status = (int32_t)SHERD_E_PEER_LOST,
    };

    line_close(monitor, line);
    if (line->is_leaving || atomic_load(&monitor->is_stopping)) {
        return;
    }
    if (error == 0 || error == ECONNRESET || error == EPIPE) {
        (void)snprintf(news.text, sizeof(news.text),
                       "rank %d is lost: its process (%d on %s) ended without sherd_world_destroy; "
                       "its own output says why",
                       number, card->process, card->host_name);
    } else {
        (void)snprintf(news.text, sizeof(news.text),
                       "rank %d is lost: %s, where its process is (%d), does not answer: %s (the "
                       "limit is %.1f s); look at that host and at the network, or set "
                       "SHERD_HOST_TIMEOUT to more seconds",
                       number, card->host_name, card->process, strerror(error),
                       (double)monitor->params.world->host_timeout_ns * 1e-9);
    }
    atomic_store(&monitor->is_told, 1);
    news_send(monitor, &news, line);
    monitor->params.failed(monitor->params.world, SHERD_E_PEER_LOST, news.text, 1);
}

static void line_read(sherdi_monitor *monitor, monitor_line *line)
{
    for (;;) {
        ssize_t got = recv(line->fd, line->in.bytes + line->got_bytes,
                           sizeof(line->in.bytes) - line->got_bytes, MSG_DONTWAIT);

        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (got <= 0) {
            line_ended(monitor, line, got < 0 ? errno : 0);
            return;
        }
        line->got_bytes += (size_t)got;
        if (line->got_bytes == sizeof(line->in.bytes)) {
            line->got_bytes = 0;
            news_take(monitor, line);
        }
    }
}

/* Reads whatever comes within `most_ms`. Returns the number of lines that are still open. */
static int lines_look(sherdi_monitor *monitor, int most_ms)
{
    int open = 0;

    for (int i = 0; i < monitor->num_lines; i++) {
        monitor->polls[i] = (struct pollfd){.fd = monitor->lines[i].fd, .events = POLLIN};
    }
    monitor->polls[monitor->num_lines] = (struct pollfd){.fd = monitor->wake, .events = POLLIN};
    (void)poll(monitor->polls, (nfds_t)monitor->num_lines + 1, most_ms);
    for (int i = 0; i < monitor->num_lines; i++) {
        if (monitor->lines[i].fd >= 0 && monitor->polls[i].revents != 0) {
            line_read(monitor, &monitor->lines[i]);
        }
        open += monitor->lines[i].fd >= 0;
    }
    return open;
}

/* Says goodbye, then reads until the others have closed their ends. If this rank closed first, with
 * messages of theirs unread, the system would throw its own message away. A rank that disconnects
 * from a failed world first sends the reason: it may have the reason from shared memory, before the
 * ranks of other hosts are notified. */
static void farewell(sherdi_monitor *monitor)
{
    sherd_world       *world    = monitor->params.world;
    const monitor_news bye      = {.kind = NEWS_LEFT, .rank = world->rank};
    int64_t            until_ns = sherdi_now_ns() + FAREWELL_NS;

    if (sherdi_world_status(world) != SHERD_OK && !atomic_load(&monitor->is_told)) {
        sherdi_monitor_tell(monitor, world->failure_status, world->failure_text);
    }
    news_send(monitor, &bye, NULL);
    for (int i = 0; i < monitor->num_lines; i++) {
        if (monitor->lines[i].fd >= 0) {
            (void)shutdown(monitor->lines[i].fd, SHUT_WR);
        }
    }
    while (lines_look(monitor, 20) > 0 && sherdi_now_ns() < until_ns) {
    }
}

static void *monitor_main(void *raw)
{
    sherdi_monitor *monitor = raw;
    sherd_world    *world   = monitor->params.world;
    uint64_t        count;

    while (!atomic_load(&monitor->is_stopping)) {
        (void)lines_look(monitor, -1);
        (void)!read(monitor->wake, &count, sizeof(count));
        if (monitor->params.woke != NULL) {
            monitor->params.woke(world);
        }
        for (int i = 0; i < monitor->num_lines; i++) {
            if (monitor->lines[i].fd >= 0 && monitor->lines[i].is_leaving) {
                line_close(monitor, &monitor->lines[i]); /* the other rank waits for this */
            }
        }
    }
    if (monitor->params.ending != NULL) {
        monitor->params.ending(world);
    }
    farewell(monitor);
    return NULL;
}

static void monitor_free(sherdi_monitor *monitor)
{
    for (int i = 0; monitor->lines != NULL && i < monitor->num_lines; i++) {
        sherdi_net_close(&monitor->lines[i].fd);
    }
    sherdi_net_close(&monitor->wake);
    (void)pthread_mutex_destroy(&monitor->send_lock);
    sherdi_free(monitor->lines);
    sherdi_free(monitor->polls);
    free(monitor);
}

static void lines_fill(sherdi_monitor *monitor, rendezvous *meeting)
{
    int at = 0;

    for (int r = 0; r < meeting->world_size; r++) {
        if (meeting->rank == 0 ? r != 0 : r == 0) {
            monitor->lines[at++] = (monitor_line){.fd = meeting->fds[r], .rank = r};
            sherdi_net_keepalive(meeting->fds[r], monitor->params.world->host_timeout_ns);
            meeting->fds[r] = -1;
        }
    }
}

sherd_status sherdi_monitor_start(const monitor_params *params, sherdi_monitor **out)
{
    rendezvous     *meeting = params->meeting;
    sherdi_monitor *monitor = calloc(1, sizeof(*monitor));
    sherdi_mem     *mem     = &params->world->mem;
    int             error;

    if (monitor == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the monitor of the ranks");
    }
    monitor->params = *params;
    (void)pthread_mutex_init(&monitor->send_lock, NULL);
    monitor->num_lines = meeting->rank == 0 ? meeting->world_size - 1 : 1;
    monitor->wake      = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    monitor->lines     = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)monitor->num_lines,
                                            sizeof(*monitor->lines));
    monitor->polls     = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)monitor->num_lines + 1,
                                            sizeof(*monitor->polls));
    if (monitor->wake < 0 || monitor->lines == NULL || monitor->polls == NULL) {
        monitor->num_lines = 0;
        monitor_free(monitor);
        return sherdi_fail(SHERD_E_NOMEM, "no memory to watch %d ranks", meeting->world_size - 1);
    }
    lines_fill(monitor, meeting);
    error = sherdi_thread_start(&monitor->thread, 0, monitor_main, monitor);
    if (error != 0) {
        monitor_free(monitor);
        return sherdi_fail(SHERD_E_NOMEM, "cannot start the thread that watches the ranks: %s",
                           strerror(error));
    }
    *out = monitor;
    return SHERD_OK;
}

void sherdi_monitor_tell(sherdi_monitor *monitor, sherd_status status, const char *text)
{
    monitor_news news = {
        .kind   = NEWS_FAILED,
        .rank   = monitor->params.world->rank,
        .status = (int32_t)status,
    };

    (void)snprintf(news.text, sizeof(news.text), "%s", text);
    atomic_store(&monitor->is_told, 1);
    news_send(monitor, &news, NULL);
}

void sherdi_monitor_tell_ending(sherdi_monitor *monitor, uint64_t key, int is_agreed)
{
    const monitor_news news = {.kind      = NEWS_ENDING,
                               .rank      = monitor->params.world->rank,
                               .is_agreed = is_agreed,
                               .key       = key};

    news_send(monitor, &news, NULL);
}

void sherdi_monitor_wake(sherdi_monitor *monitor)
{
    const uint64_t one = 1;

    (void)!write(monitor->wake, &one, sizeof(one));
}

void sherdi_monitor_stop(sherdi_monitor *monitor)
{
    if (monitor == NULL) {
        return;
    }
    atomic_store(&monitor->is_stopping, 1);
    sherdi_monitor_wake(monitor);
    (void)pthread_join(monitor->thread, NULL);
    monitor_free(monitor);
}
