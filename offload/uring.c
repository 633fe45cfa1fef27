/* Transfers by io_uring. One thread owns the ring, keeps up to `depth` requests in it, and is woken
 * for new transfers by an eventfd that the ring itself reads. For registered memory the kernel
 * saves the pinning for each request. This is the only file that knows liburing.
 *
 * Files are not registered: the ring would keep them open, and locked, as long as it exists. It
 * exists as long as the memory of its process, in which it is mapped, and NVIDIA's driver keeps
 * that memory until every forked child of the process has ended. A request holds its file open
 * until it has ended; the lock serves this purpose.
 *
 * Only the ring's thread uses the ring. Registering is the exception; the kernel serialises it. */
#include "offload/io_impl.h"

#include "base/checked.h"
#include "base/fork.h"
#include "base/log.h"

#include <liburing.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Most bytes that the kernel allows in one registered buffer. */
#define BUFFER_BYTES ((size_t)1 << 30)
/* Most entries that the kernel allows in a ring. */
#define MAX_DEPTH 4096

typedef struct uring_queue {
    sherdi_ioq      queue;
    struct io_uring ring;
    int             has_ring;
    pthread_t       thread;
    int             has_thread;
    int             wake; /* eventfd; -1: not open */

    struct iovec *buffers; /* registered before the first transfer, then constant */
    unsigned      num_buffers;

    int is_idle; /* under queue.lock: the thread could take a request, but there is none */

    /* The members below are used by the ring's thread only. */
    sherdi_request *requests;    /* [depth] */
    sherdi_request *free;        /* those without a transfer */
    int             num_queued;  /* requests that are in the ring */
    uint64_t        num_entries; /* entries queued since the start; they number the tickets */
    uint64_t        wake_ticket; /* of the entry that reads `wake` */
    int             is_wake_queued;
    uint64_t        wake_count; /* that entry's destination */
    int             stalls;     /* submissions in a row for which the kernel had no room */
    int             ring_error; /* errno that ended all submissions; 0: none */
} uring_queue;

/* --------------------------------------------------------------- entries -- */

/* An entry is always free: the ring has one for each request and one for `wake`. */
static struct io_uring_sqe *entry_next(uring_queue *self, uint64_t *ticket_out)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&self->ring);

    assert(sqe != NULL);
    *ticket_out = self->num_entries++;
    return sqe;
}

/* Returns whether the kernel has taken the entry; it takes entries in order. */
static int entry_is_taken(const uring_queue *self, uint64_t ticket)
{
    return ticket < self->num_entries - io_uring_sq_ready(&self->ring);
}

/* Returns the registered buffer that holds the whole range; -1: none does. */
static int buffer_find(const uring_queue *self, const unsigned char *memory, size_t len_bytes)
{
    for (unsigned i = 0; i < self->num_buffers; i++) {
        const unsigned char *base   = self->buffers[i].iov_base;
        size_t               before = (size_t)((uintptr_t)memory - (uintptr_t)base);

        if (memory >= base && before <= self->buffers[i].iov_len &&
            len_bytes <= self->buffers[i].iov_len - before) {
            return (int)i;
        }
    }
    return -1;
}

static void request_queue(uring_queue *self, sherdi_request *request)
{
    const sherdi_io     *io     = request->io;
    const sherdi_stripe *stripe = &io->file->stripes[request->stripe];
    struct io_uring_sqe *sqe    = entry_next(self, &request->ticket);
    unsigned char       *memory = request->memory;
    unsigned             len    = (unsigned)request->len_bytes;
    int                  fd     = stripe->fd;
    int                  buffer = buffer_find(self, memory, request->len_bytes);

    if (buffer >= 0 && io->is_write) {
        io_uring_prep_write_fixed(sqe, fd, memory, len, request->offset_bytes, buffer);
    } else if (buffer >= 0) {
        io_uring_prep_read_fixed(sqe, fd, memory, len, request->offset_bytes, buffer);
    } else if (io->is_write) {
        io_uring_prep_write(sqe, fd, memory, len, request->offset_bytes);
    } else {
        io_uring_prep_read(sqe, fd, memory, len, request->offset_bytes);
    }
    io_uring_sqe_set_data(sqe, request);
    request->is_queued = 1;
    self->num_queued++;
}

static void wake_queue(uring_queue *self)
{
    struct io_uring_sqe *sqe = entry_next(self, &self->wake_ticket);

    io_uring_prep_read(sqe, self->wake, &self->wake_count, sizeof(self->wake_count), 0);
    io_uring_sqe_set_data(sqe, NULL);
    self->is_wake_queued = 1;
}

static void request_free(uring_queue *self, sherdi_request *request)
{
    request->next_free = self->free;
    self->free         = request;
}

/* ------------------------------------------------------------ the thread -- */

/* Takes and queues requests while there are free ones. Call it under the lock. */
static void ring_fill(uring_queue *self)
{
    while (self->free != NULL) {
        sherdi_request *request = self->free;
        sherdi_request *next    = request->next_free;

        if (!sherdi_ioq_take(&self->queue, request)) {
            break;
        }
        self->free = next;
        if (self->ring_error != 0) {
            sherdi_ioq_drop(&self->queue, request, self->ring_error);
            request_free(self, request);
        } else {
            request_queue(self, request);
        }
    }
    self->is_idle = self->free != NULL;
}

/* Handles the completions. Returns the largest number of attempts in a row in which a request moved
 * nothing. Call it under the lock. */
static int ring_reap(uring_queue *self)
{
    struct io_uring_cqe *cqe;
    unsigned             head;
    unsigned             count  = 0;
    int                  stalls = 0;

    io_uring_for_each_cqe(&self->ring, head, cqe)
    {
        sherdi_request *request = io_uring_cqe_get_data(cqe);

        count++;
        if (request == NULL) {
            self->is_wake_queued = 0;
            continue;
        }
        request->is_queued = 0;
        self->num_queued--;
        if (!sherdi_ioq_complete(&self->queue, request, cqe->res)) {
            request_free(self, request);
        } else if (self->ring_error != 0) {
            sherdi_ioq_drop(&self->queue, request, self->ring_error);
            request_free(self, request);
        } else {
            request_queue(self, request);
            stalls = request->stalls > stalls ? request->stalls : stalls;
        }
    }
    io_uring_cq_advance(&self->ring, count);
    return stalls;
}

/* The kernel takes no more submissions. Requests that it has taken still complete. The others never
 * leave, because nothing is submitted from now on, so they fail here. */
static void ring_break(uring_queue *self, int error)
{
    char buffer[128];

    sherdi_log(SHERD_LOG_ERROR, self->queue.rank, "io_uring takes no more requests: %s",
               strerror_r(error, buffer, sizeof(buffer)));
    (void)pthread_mutex_lock(&self->queue.lock);
    self->ring_error = error;
    for (int i = 0; i < self->queue.depth; i++) {
        sherdi_request *request = &self->requests[i];

        if (request->is_queued && !entry_is_taken(self, request->ticket)) {
            request->is_queued = 0;
            self->num_queued--;
            sherdi_ioq_drop(&self->queue, request, error);
            request_free(self, request);
        }
    }
    self->is_wake_queued = self->is_wake_queued && entry_is_taken(self, self->wake_ticket);
    (void)pthread_mutex_unlock(&self->queue.lock);
}

/* Submits the queued entries and waits for a completion. */
static void ring_turn(uring_queue *self)
{
    int result = io_uring_submit_and_wait(&self->ring, 1);

    if (result >= 0 || result == -EINTR) {
        self->stalls = 0;
    } else if ((result == -EAGAIN || result == -EBUSY) && self->stalls < SHERDI_IOQ_MAX_STALLS) {
        sherdi_ioq_pause(++self->stalls); /* room comes with completions, or with time */
    } else {
        ring_break(self, -result);
    }
}

/* Waits for a completion when nothing may be submitted. */
static void ring_turn_broken(uring_queue *self)
{
    struct io_uring_cqe *cqe;

    int is_quiet = self->num_queued == 0 && !self->is_wake_queued;

    if (is_quiet ? read(self->wake, &self->wake_count, sizeof(self->wake_count)) < 0
                 : io_uring_wait_cqe(&self->ring, &cqe) != 0) {
        sherdi_ioq_pause(SHERDI_IOQ_MAX_STALLS);
    }
}

static void *ring_main(void *raw)
{
    uring_queue *self  = raw;
    sherdi_ioq  *queue = &self->queue;
    int          stalls;

    (void)pthread_mutex_lock(&queue->lock);
    for (;;) {
        ring_fill(self);
        if (queue->is_stopping && self->num_queued == 0) {
            break;
        }
        (void)pthread_mutex_unlock(&queue->lock);
        if (self->ring_error != 0) {
            ring_turn_broken(self);
        } else {
            if (!self->is_wake_queued) {
                wake_queue(self);
            }
            ring_turn(self);
        }
        (void)pthread_mutex_lock(&queue->lock);
        self->is_idle = 0;
        stalls        = ring_reap(self);
        if (stalls > 0) {
            (void)pthread_mutex_unlock(&queue->lock);
            sherdi_ioq_pause(stalls);
            (void)pthread_mutex_lock(&queue->lock);
        }
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/* ----------------------------------------------------------------- table -- */

static void uring_wake(sherdi_ioq *queue)
{
    uring_queue   *self = (uring_queue *)queue;
    const uint64_t one  = 1;

    if (self->is_idle) {
        self->is_idle = write(self->wake, &one, sizeof(one)) != sizeof(one);
    }
}

static void ring_close(struct io_uring *ring)
{
    int fd = ring->ring_fd;

    sherdi_fork_hold();
    io_uring_queue_exit(ring);
    sherdi_fork_forget(fd);
}

static void uring_free(uring_queue *self)
{
    if (self->num_buffers > 0) {
        (void)io_uring_unregister_buffers(&self->ring); /* now, not when the kernel gets to it */
    }
    if (self->has_ring) {
        ring_close(&self->ring);
    }
    if (self->wake >= 0) {
        (void)close(self->wake);
    }
    sherdi_ioq_fini(&self->queue);
    sherdi_free(self->buffers);
    sherdi_free(self->requests);
    sherdi_free(self);
}

static void uring_destroy(sherdi_ioq *queue)
{
    uring_queue *self = (uring_queue *)queue;

    if (self->has_thread) {
        (void)pthread_mutex_lock(&queue->lock);
        queue->is_stopping = 1;
        uring_wake(queue);
        (void)pthread_mutex_unlock(&queue->lock);
        (void)pthread_join(self->thread, NULL);
    }
    uring_free(self);
}

/* Cuts memory to the size of registered buffers. Returns their number; with `out` NULL it only
 * counts. */
static size_t buffers_cut(const struct iovec *memory, int count, struct iovec *out)
{
    size_t made = 0;

    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < memory[i].iov_len; at += BUFFER_BYTES, made++) {
            if (out != NULL) {
                out[made].iov_base = (unsigned char *)memory[i].iov_base + at;
                out[made].iov_len  = sherdi_min_size(memory[i].iov_len - at, BUFFER_BYTES);
            }
        }
    }
    return made;
}

static size_t uring_pin(sherdi_ioq *queue, const struct iovec *memory, int count)
{
    uring_queue *self         = (uring_queue *)queue;
    size_t       num_buffers  = buffers_cut(memory, count, NULL);
    size_t       pinned_bytes = 0;
    int          result;

    assert(self->num_buffers == 0);
    self->buffers =
        sherdi_alloc_array(queue->mem, SHERDI_MEM_CONTROL, num_buffers, sizeof(*self->buffers));
    if (self->buffers == NULL) {
        errno = ENOMEM;
        return 0;
    }
    (void)buffers_cut(memory, count, self->buffers);
    result = io_uring_register_buffers(&self->ring, self->buffers, (unsigned)num_buffers);
    if (result != 0) {
        sherdi_free(self->buffers);
        self->buffers = NULL;
        errno         = -result;
        return 0;
    }
    self->num_buffers = (unsigned)num_buffers;
    for (unsigned i = 0; i < self->num_buffers; i++) {
        pinned_bytes += self->buffers[i].iov_len;
    }
    return pinned_bytes;
}

static const sherdi_ioq_ops URING_OPS = {
    .name    = "io_uring",
    .destroy = uring_destroy,
    .wake    = uring_wake,
    .pin     = uring_pin,
};

/* ---------------------------------------------------------------- set-up -- */

static int ring_setup(uring_queue *self)
{
    unsigned num_entries = (unsigned)self->queue.depth + 1;
    int      result      = -EINVAL;

    sherdi_fork_hold();
#ifdef IORING_SETUP_COOP_TASKRUN
    /* The thread returns to the kernel by itself, so no interrupt is needed to make it do so. */
    result = io_uring_queue_init(num_entries, &self->ring, IORING_SETUP_COOP_TASKRUN);
#endif
    if (result == -EINVAL) { /* kernels before 5.19 */
        result = io_uring_queue_init(num_entries, &self->ring, 0);
    }
    self->has_ring = result == 0;
    if (!self->has_ring) {
        (void)sherdi_fork_exclude(-1);
        return -result;
    }
    /* A child would keep the ring, and the memory that is registered with it, by the ring's
     * descriptor and by its mapping. */
    (void)io_uring_ring_dontfork(&self->ring);
    self->ring.ring_fd = sherdi_fork_exclude(self->ring.ring_fd);
    return self->ring.ring_fd < 0 ? ENOMEM : 0;
}

static sherd_status ring_open(uring_queue *self)
{
    char buffer[128];
    int  error = ring_setup(self);

    if (error == ENOMEM) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "io_uring has no memory for its ring (the limit on locked "
                           "memory, ulimit -l)");
    }
    if (error != 0) {
        return sherdi_fail(SHERD_E_NOTSUP, "io_uring is not available: %s%s",
                           strerror_r(error, buffer, sizeof(buffer)),
                           error == EPERM ? " (see sysctl kernel.io_uring_disabled and the "
                                            "container's seccomp profile)"
                                          : "");
    }
    self->wake = eventfd(0, EFD_CLOEXEC);
    if (self->wake < 0) {
        return sherdi_fail(SHERD_E_IO,
                           "cannot create the descriptor that wakes the transfer thread: %s",
                           strerror_r(errno, buffer, sizeof(buffer)));
    }
    return SHERD_OK;
}

static sherd_status ring_start(uring_queue *self)
{
    int error;

    self->requests = sherdi_alloc_array(self->queue.mem, SHERDI_MEM_CONTROL,
                                        (size_t)self->queue.depth, sizeof(*self->requests));
    if (self->requests == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int i = 0; i < self->queue.depth; i++) {
        request_free(self, &self->requests[i]);
    }
    SHERDI_TRY(ring_open(self));
    error = sherdi_thread_start(&self->thread, SHERDI_IOQ_STACK_BYTES, ring_main, self);
    if (error != 0) {
        return sherdi_fail(SHERD_E_NOMEM, "cannot start the thread for transfers: %s",
                           strerror(error));
    }
    self->has_thread = 1;
    return SHERD_OK;
}

sherd_status sherdi_ioq_uring_create(const sherdi_ioq_params *params, sherdi_mem *mem,
                                     sherdi_ioq **out)
{
    uring_queue *self = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*self));
    sherd_status status;

    if (self == NULL) {
        return SHERD_E_NOMEM;
    }
    self->wake = -1;
    sherdi_ioq_init(&self->queue, &URING_OPS, params, mem);
    self->queue.depth = params->depth < MAX_DEPTH ? params->depth : MAX_DEPTH;
    status            = ring_start(self);
    if (status != SHERD_OK) {
        uring_free(self);
        return status;
    }
    *out = &self->queue;
    return SHERD_OK;
}
