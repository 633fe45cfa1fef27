/* Transfers by threads with pread and pwrite; each thread has one request in flight. This is the
 * plain engine, for machines and containers without io_uring. */
#include "offload/io_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef struct threads_queue {
    sherdi_ioq     queue;
    pthread_cond_t has_work; /* used with queue.lock */
    pthread_t     *threads;  /* [depth] */
    int            num_started;
} threads_queue;

static ssize_t request_try(const sherdi_request *request)
{
    const sherdi_io *io = request->io;
    int              fd = io->file->stripes[request->stripe].fd;
    ssize_t          moved_bytes;

    if (io->is_write) {
        moved_bytes = pwrite(fd, request->memory, request->len_bytes, (off_t)request->offset_bytes);
    } else {
        moved_bytes = pread(fd, request->memory, request->len_bytes, (off_t)request->offset_bytes);
    }
    return moved_bytes < 0 ? -errno : moved_bytes;
}

/* Called with the lock held; returns with it held. */
static void request_run(sherdi_ioq *queue, sherdi_request *request)
{
    ssize_t result;

    do {
        (void)pthread_mutex_unlock(&queue->lock);
        if (request->stalls > 0) {
            sherdi_ioq_pause(request->stalls);
        }
        result = request_try(request);
        (void)pthread_mutex_lock(&queue->lock);
    } while (sherdi_ioq_complete(queue, request, result));
}

/* Wakes one thread; if it finds more than one request, it wakes the next. All of them at once would
 * only wait for the lock. */
static void threads_wake(sherdi_ioq *queue)
{
    (void)pthread_cond_signal(&((threads_queue *)queue)->has_work);
}

static void *worker_main(void *raw)
{
    threads_queue *self  = raw;
    sherdi_ioq    *queue = &self->queue;
    sherdi_request request;

    (void)pthread_mutex_lock(&queue->lock);
    for (;;) {
        if (sherdi_ioq_take(queue, &request)) {
            if (queue->first != NULL) {
                threads_wake(queue);
            }
            request_run(queue, &request);
        } else if (queue->is_stopping) {
            break;
        } else {
            (void)pthread_cond_wait(&self->has_work, &queue->lock);
        }
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/* ----------------------------------------------------------------- table -- */

static void threads_destroy(sherdi_ioq *queue)
{
    threads_queue *self = (threads_queue *)queue;

    (void)pthread_mutex_lock(&queue->lock);
    queue->is_stopping = 1;
    (void)pthread_cond_broadcast(&self->has_work);
    (void)pthread_mutex_unlock(&queue->lock);
    for (int i = 0; i < self->num_started; i++) {
        (void)pthread_join(self->threads[i], NULL);
    }
    (void)pthread_cond_destroy(&self->has_work);
    sherdi_ioq_fini(queue);
    sherdi_free(self->threads);
    sherdi_free(self);
}

static const sherdi_ioq_ops THREADS_OPS = {
    .name    = "threads",
    .destroy = threads_destroy,
    .wake    = threads_wake,
};

sherd_status sherdi_ioq_threads_create(const sherdi_ioq_params *params, sherdi_mem *mem,
                                       sherdi_ioq **out)
{
    threads_queue *self = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*self));
    sherd_status   status;
    int            error;

    if (self == NULL) {
        return SHERD_E_NOMEM;
    }
    self->threads =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)params->depth, sizeof(pthread_t));
    if (self->threads == NULL) {
        sherdi_free(self);
        return SHERD_E_NOMEM;
    }
    sherdi_ioq_init(&self->queue, &THREADS_OPS, params, mem);
    (void)pthread_cond_init(&self->has_work, NULL);
    for (; self->num_started < params->depth; self->num_started++) {
        error = sherdi_thread_start(&self->threads[self->num_started], SHERDI_IOQ_STACK_BYTES,
                                    worker_main, self);
        if (error != 0) {
            status = sherdi_fail(SHERD_E_NOMEM, "cannot start thread %d of %d for transfers: %s",
                                 self->num_started, params->depth, strerror(error));
            threads_destroy(&self->queue);
            return status;
        }
    }
    *out = &self->queue;
    return SHERD_OK;
}
