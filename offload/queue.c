/* Shared by both engines of the queue: the order of transfers, their division into requests, and
 * the accounting of completions. See io.h; read threads.c next, then uring.c. */
#include "offload/io_impl.h"

#include "base/assert.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Values of sherdi_io.error besides errno's. */
enum {
    IO_ENDED = -1, /* a read came to the end of the file */
    IO_STUCK = -2, /* a write moved nothing, too many times */
};

/* After this number of reads in a row of less than the granularity, the file is taken to end
 * there. */
#define MAX_CRUMBS 3

/* A request that moved nothing is tried again after 50 us, doubled up to 10 ms, for about two
 * seconds. */
#define PAUSE_NS     INT64_C(50000)
#define MAX_PAUSE_NS INT64_C(10000000)

/* Linux moves less than 2 GiB in one read or write; a registered buffer has at most this size. */
#define MAX_REQUEST_BYTES ((size_t)1 << 30)

/* The account of the transfers that this thread starts. */
static _Thread_local int account_here;

/* ------------------------------------------------- transfers to requests -- */

static int any_under_way(const sherdi_ioq *queue)
{
    size_t count = 0;

    for (int account = 0; account < SHERDI_IO_ACCOUNTS; account++) {
        count += queue->under_way[account];
    }
    return count > 0;
}

/* Checks the list: it ends at `last`, and has transfers that were started and not completely handed
 * out. Only of the first may a part be handed out. */
static int list_is_sound(const sherdi_ioq *queue)
{
    const sherdi_io *last = NULL;

    for (const sherdi_io *io = queue->first; io != NULL; io = io->next) {
        if (!io->is_started || io->is_done || io->started_bytes >= io->len_bytes ||
            (io->started_bytes > 0 && io != queue->first)) {
            return 0;
        }
        last = io;
    }
    return last == queue->last && (last == NULL || any_under_way(queue));
}

/* Removes the first transfer, which is completely handed out; requests are cut from the first one
 * only. */
static void list_pop(sherdi_ioq *queue)
{
    queue->first = queue->first->next;
    if (queue->first == NULL) {
        queue->last = NULL;
    }
}

static void transfer_moved(sherdi_ioq *queue, sherdi_io *io, size_t len_bytes)
{
    assert(len_bytes <= io->left_bytes);
    io->left_bytes -= len_bytes;
    if (io->left_bytes == 0) {
        if (queue->trace != NULL) {
            sherdi_trace_interval(queue->trace,
                                  io->is_write ? SHERDI_TRACE_WRITE : SHERDI_TRACE_READ, io->what,
                                  NULL, io->len_bytes, io->start_ns, sherdi_now_ns());
        }
        io->is_done = 1;
        queue->under_way[io->account]--;
        (void)pthread_cond_broadcast(&queue->is_over);
    }
}

/* Adds a transfer after those of its kind. Reads go before writes: a caller waits for a read, and
 * the slots of a ring that it is read into come from writes, so the writes' turn comes. A write
 * that was begun is handed out first. */
static void list_add(sherdi_ioq *queue, sherdi_io *io)
{
    sherdi_io **at = &queue->first;

    if (io->is_write && queue->last != NULL) {
        at = &queue->last->next;
    }
    while (*at != NULL && (!(*at)->is_write || (*at)->started_bytes > 0)) {
        at = &(*at)->next;
    }
    io->next = *at;
    *at      = io;
    if (io->next == NULL) {
        queue->last = io;
    }
}

int sherdi_ioq_take(sherdi_ioq *queue, sherdi_request *out)
{
    sherdi_io *io = queue->first;
    size_t     in_stripe_bytes;

    SHERDI_SLOW_ASSERT(list_is_sound(queue));
    if (io == NULL) {
        return 0;
    }
    *out            = (sherdi_request){.io = io, .memory = io->memory + io->started_bytes};
    in_stripe_bytes = sherdi_file_locate(io->file, io->offset_bytes + io->started_bytes,
                                         &out->stripe, &out->offset_bytes);
    out->len_bytes  = sherdi_min_size(io->len_bytes - io->started_bytes,
                                      sherdi_min_size(queue->request_bytes, in_stripe_bytes));
    io->started_bytes += out->len_bytes;
    if (io->started_bytes == io->len_bytes) {
        list_pop(queue);
    }
    return 1;
}

void sherdi_ioq_drop(sherdi_ioq *queue, sherdi_request *request, int error)
{
    sherdi_io *io          = request->io;
    size_t     never_bytes = io->len_bytes - io->started_bytes;

    if (io->error == 0) {
        io->error        = error;
        io->error_stripe = request->stripe;
        io->error_offset = request->offset_bytes;
    }
    if (never_bytes > 0) {
        assert(queue->first == io);
        io->started_bytes = io->len_bytes;
        list_pop(queue);
    }
    transfer_moved(queue, io, request->len_bytes + never_bytes);
}

/* Returns the meaning of a result: 0, or the error that ends the transfer. */
static int result_error(const sherdi_request *request, ssize_t result, size_t moved_bytes)
{
    int is_write = request->io->is_write;

    if (moved_bytes > 0) {
        return 0;
    }
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
        return (int)-result;
    }
    if (!is_write && result >= 0) {
        /* No bytes, or several times a few bytes, less than the granularity. */
        return result == 0 || request->stalls >= MAX_CRUMBS ? IO_ENDED : 0;
    }
    if (request->stalls < SHERDI_IOQ_MAX_STALLS) {
        return 0;
    }
    return result < 0 ? (int)-result : IO_STUCK;
}

/* The last page of a file that is only read is complete when the bytes up to the file's end have
 * come; the rest is zeroed. */
static size_t page_complete(const sherdi_request *request, size_t moved_bytes)
{
    const sherdi_file *file      = request->io->file;
    size_t             end_bytes = file->stripes[request->stripe].len_bytes;
    size_t             here_bytes;

    if (!file->is_read_only || request->offset_bytes + request->len_bytes !=
                                   sherdi_round_up(end_bytes, SHERD_ALIGN_BYTES)) {
        return moved_bytes;
    }
    here_bytes = end_bytes > request->offset_bytes ? end_bytes - request->offset_bytes : 0;
    if (moved_bytes < here_bytes) {
        return moved_bytes;
    }
    memset(request->memory + here_bytes, 0, request->len_bytes - here_bytes);
    return request->len_bytes;
}

int sherdi_ioq_complete(sherdi_ioq *queue, sherdi_request *request, ssize_t result)
{
    sherdi_io           *io          = request->io;
    const sherdi_stripe *stripe      = &io->file->stripes[request->stripe];
    size_t               moved_bytes = result > 0 ? (size_t)result : 0;
    int                  error;

    assert(moved_bytes <= request->len_bytes);
    if (result >= 0) {
        moved_bytes = page_complete(request, moved_bytes);
    }
    /* A short transfer may end where the next one cannot begin: the part after the granularity is
     * moved again. */
    if (moved_bytes < request->len_bytes && stripe->is_direct) {
        moved_bytes -= moved_bytes % io->file->granularity_bytes;
    }
    error = result_error(request, result, moved_bytes);
    if (error != 0 || (io->error != 0 && moved_bytes < request->len_bytes)) {
        sherdi_ioq_drop(queue, request, error);
        return 0;
    }
    *(io->is_write ? &queue->traffic[io->account].written_bytes
                   : &queue->traffic[io->account].read_bytes) += moved_bytes;
    request->stalls = moved_bytes > 0 ? 0 : request->stalls + 1;
    request->memory += moved_bytes;
    request->offset_bytes += moved_bytes;
    request->len_bytes -= moved_bytes;
    transfer_moved(queue, io, moved_bytes);
    return request->len_bytes > 0;
}

void sherdi_ioq_pause(int stalls)
{
    int64_t         pause_ns = stalls > 8 ? MAX_PAUSE_NS : PAUSE_NS << stalls;
    struct timespec pause    = {
           .tv_nsec = (long)(pause_ns < MAX_PAUSE_NS ? pause_ns : MAX_PAUSE_NS),
    };

    (void)nanosleep(&pause, NULL);
}

/* ------------------------------------------------------------- transfers -- */

void sherdi_io_start(sherdi_ioq *queue, sherdi_io *io)
{
    assert(!io->is_started && io->file->queue == queue);
    assert(io->offset_bytes % sherdi_file_granularity(io->file) == 0);
    assert(io->len_bytes % sherdi_file_granularity(io->file) == 0);
    assert((uintptr_t)io->memory % sherdi_file_granularity(io->file) == 0);
    io->next          = NULL;
    io->started_bytes = 0;
    io->left_bytes    = io->len_bytes;
    io->error         = 0;
    io->is_started    = 1;
    io->start_ns      = queue->trace == NULL ? 0 : sherdi_now_ns();
    io->is_done       = io->len_bytes == 0;
    if (io->is_done) {
        return;
    }
    (void)pthread_mutex_lock(&queue->lock);
    list_add(queue, io);
    io->account = account_here;
    queue->under_way[io->account]++;
    queue->ops->wake(queue);
    (void)pthread_mutex_unlock(&queue->lock);
}

int sherdi_io_is_done(sherdi_ioq *queue, const sherdi_io *io)
{
    int is_done;

    if (!io->is_started) {
        return 1;
    }
    (void)pthread_mutex_lock(&queue->lock);
    is_done = io->is_done;
    (void)pthread_mutex_unlock(&queue->lock);
    return is_done;
}

static const char *error_advice(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "; free space there or choose another folder";
    case EFBIG:
        return "; raise the limit on the size of files (ulimit -f)";
    case IO_ENDED:
        return "; it was shortened while in use";
    }
    return "";
}

static sherd_status transfer_fail(const sherdi_io *io)
{
    char        buffer[128];
    const char *what = io->what != NULL ? io->what : "block";
    const char *cause;

    cause = io->error == IO_ENDED   ? "the file ends before"
            : io->error == IO_STUCK ? "the file takes no more bytes"
                                    : strerror_r(io->error, buffer, sizeof(buffer));
    return sherdi_fail(SHERD_E_IO, "%s %s %zu failed at byte %zu of %s: %s%s",
                       io->is_write ? "writing" : "reading", what, io->number, io->error_offset,
                       io->file->stripes[io->error_stripe].path, cause, error_advice(io->error));
}

sherd_status sherdi_io_wait(sherdi_ioq *queue, sherdi_io *io)
{
    if (!io->is_started) {
        return SHERD_OK;
    }
    (void)pthread_mutex_lock(&queue->lock);
    while (!io->is_done) {
        (void)pthread_cond_wait(&queue->is_over, &queue->lock);
    }
    (void)pthread_mutex_unlock(&queue->lock);
    io->is_started = 0;
    return io->error == 0 ? SHERD_OK : transfer_fail(io);
}

/* ------------------------------------------------------------- the queue -- */

void sherdi_ioq_init(sherdi_ioq *queue, const sherdi_ioq_ops *ops, const sherdi_ioq_params *params,
                     sherdi_mem *mem)
{
    assert(params->depth >= 1 && params->request_bytes >= 1);
    queue->ops           = ops;
    queue->mem           = mem;
    queue->trace         = params->trace;
    queue->rank          = params->rank;
    queue->depth         = params->depth;
    queue->request_bytes = sherdi_round_up(
        sherdi_min_size(params->request_bytes, MAX_REQUEST_BYTES), SHERD_ALIGN_BYTES);
    (void)pthread_mutex_init(&queue->lock, NULL);
    (void)pthread_cond_init(&queue->is_over, NULL);
}

void sherdi_ioq_fini(sherdi_ioq *queue)
{
    assert(queue->first == NULL);
    (void)pthread_cond_destroy(&queue->is_over);
    (void)pthread_mutex_destroy(&queue->lock);
}

/* Replaces AUTO by what SHERD_IO says, if it is set. */
static sherd_status kind_resolve(sherdi_ioq_kind *kind)
{
    const char *wanted = getenv("SHERD_IO");

    if (*kind != SHERDI_IOQ_AUTO || wanted == NULL || wanted[0] == '\0' ||
        strcmp(wanted, "auto") == 0) {
        return SHERD_OK;
    }
    if (strcmp(wanted, "io_uring") == 0) {
        *kind = SHERDI_IOQ_URING;
    } else if (strcmp(wanted, "threads") == 0) {
        *kind = SHERDI_IOQ_THREADS;
    } else {
        return sherdi_fail(SHERD_E_INVAL, "SHERD_IO is %s; it may be io_uring or threads", wanted);
    }
    return SHERD_OK;
}

sherd_status sherdi_ioq_create(const sherdi_ioq_params *params, sherdi_mem *mem, sherdi_ioq **out)
{
    sherdi_ioq_kind kind = params->kind;
    sherd_status    status;

    SHERDI_TRY(kind_resolve(&kind));
    if (kind == SHERDI_IOQ_THREADS) {
        return sherdi_ioq_threads_create(params, mem, out);
    }
    status = sherdi_ioq_uring_create(params, mem, out);
    if (status == SHERD_E_NOTSUP && kind == SHERDI_IOQ_AUTO) {
        sherdi_log(SHERD_LOG_INFO, params->rank, "%s; transfers run on %d threads",
                   sherd_last_error(), params->depth);
        return sherdi_ioq_threads_create(params, mem, out);
    }
    return status;
}

void sherdi_ioq_destroy(sherdi_ioq *queue)
{
    if (queue != NULL) {
        queue->ops->destroy(queue);
    }
}

const char *sherdi_ioq_name(const sherdi_ioq *queue)
{
    return queue->ops->name;
}

void sherdi_ioq_register(sherdi_ioq *queue, const struct iovec *memory, int count,
                         size_t *pinned_bytes_out)
{
    char   buffer[128];
    size_t wanted_bytes = 0;

    *pinned_bytes_out = 0;
    if (queue->ops->pin == NULL) {
        return;
    }
    for (int i = 0; i < count; i++) {
        wanted_bytes += memory[i].iov_len;
    }
    if (wanted_bytes == 0) {
        return;
    }
    *pinned_bytes_out = queue->ops->pin(queue, memory, count);
    if (*pinned_bytes_out == 0) {
        sherdi_log(SHERD_LOG_INFO, queue->rank,
                   "%zu bytes of memory could not be registered for transfers, which cost more "
                   "without that: %s%s",
                   wanted_bytes, strerror_r(errno, buffer, sizeof(buffer)),
                   errno == ENOMEM ? " (the limit on locked memory, ulimit -l)" : "");
    }
}

sherdi_io_traffic sherdi_ioq_traffic_of(const sherdi_ioq *queue, int account)
{
    sherdi_ioq       *mine = (sherdi_ioq *)(uintptr_t)queue; /* the lock is not constant */
    sherdi_io_traffic traffic;

    (void)pthread_mutex_lock(&mine->lock);
    traffic = queue->traffic[account];
    (void)pthread_mutex_unlock(&mine->lock);
    return traffic;
}

sherdi_io_traffic sherdi_ioq_traffic(const sherdi_ioq *queue)
{
    sherdi_io_traffic all = {0};

    for (int account = 0; account < SHERDI_IO_ACCOUNTS; account++) {
        sherdi_io_traffic traffic = sherdi_ioq_traffic_of(queue, account);

        all.read_bytes += traffic.read_bytes;
        all.written_bytes += traffic.written_bytes;
    }
    return all;
}

int sherdi_io_account(int account)
{
    int before = account_here;

    account_here = account;
    return before;
}

void sherdi_ioq_settle(sherdi_ioq *queue, int account)
{
    (void)pthread_mutex_lock(&queue->lock);
    while (queue->under_way[account] > 0) {
        (void)pthread_cond_wait(&queue->is_over, &queue->lock);
    }
    (void)pthread_mutex_unlock(&queue->lock);
}
