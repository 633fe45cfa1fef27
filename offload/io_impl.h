/* Shared by queue.c, its two engines (threads.c, uring.c) and file.c. The queue has the order of
 * transfers and counts their remaining bytes. An engine owns threads that take requests, carry them
 * out, and return the kernel's results to the queue. */
#ifndef SHERDI_OFFLOAD_IO_IMPL_H
#define SHERDI_OFFLOAD_IO_IMPL_H

#include "base/thread.h"
#include "offload/io.h"

#include <pthread.h>
#include <sys/types.h>

/* One file of a striped set. */
typedef struct sherdi_stripe {
    char  *path;
    int    fd;         /* -1: not open */
    int    is_direct;  /* O_DIRECT: transfers keep to the granularity */
    int    is_made;    /* by this open: removed again if opening fails midway */
    int    is_entered; /* its directory entry is known to be on the medium */
    dev_t  device;     /* of the file that the path led to at open */
    ino_t  inode;
    size_t len_bytes; /* at open */
} sherdi_stripe;

struct sherdi_file {
    sherdi_ioq    *queue;
    sherdi_stripe *stripes; /* [num_stripes] */
    int            num_stripes;
    int            is_scratch, is_plain, is_read_only;
    size_t         stripe_bytes;
    size_t         granularity_bytes;
};

/* A part of one transfer in one file: the unit that is in flight. */
typedef struct sherdi_request {
    sherdi_io             *io;
    int                    stripe;
    size_t                 offset_bytes; /* in the stripe's file */
    unsigned char         *memory;
    size_t                 len_bytes; /* bytes that are still to move */
    int                    stalls;    /* attempts in a row that moved nothing */
    uint64_t               ticket;    /* io_uring: its number among all entries ever queued */
    int                    is_queued; /* io_uring: has an entry without a completion */
    struct sherdi_request *next_free; /* io_uring */
} sherdi_request;

typedef struct sherdi_ioq_ops {
    const char *name;
    /* Finishes all transfers, ends and joins the threads, and frees the queue. */
    void (*destroy)(sherdi_ioq *queue);
    /* Called under the lock: there is a request to take. Never blocks. */
    void (*wake)(sherdi_ioq *queue);
    /* Optional. Registers memory. Returns the bytes, or 0 with errno set when that is not
     * possible. */
    size_t (*pin)(sherdi_ioq *queue, const struct iovec *memory, int count);
} sherdi_ioq_ops;

/* The common part; an engine's own struct starts with it. */
struct sherdi_ioq {
    const sherdi_ioq_ops *ops;
    sherdi_mem           *mem;
    size_t                request_bytes;
    int                   depth;
    int                   rank;
    sherdi_trace         *trace;
    int                   is_buffered_told; /* file.c has logged it */
    pthread_mutex_t       lock; /* guards all members below, and the queue's fields of transfers */
    pthread_cond_t        is_over;        /* a transfer is over */
    sherdi_io            *first, *last;   /* transfers with bytes that are not handed out yet */
    size_t under_way[SHERDI_IO_ACCOUNTS]; /* transfers that were started and are not over */
    int    is_stopping;
    sherdi_io_traffic traffic[SHERDI_IO_ACCOUNTS];
};

/* Stack of a queue's thread: small enough that it takes no huge page. */
#define SHERDI_IOQ_STACK_BYTES ((size_t)256 << 10)

/** Initialises the common part of zeroed memory; `fini` undoes it. */
void sherdi_ioq_init(sherdi_ioq *queue, const sherdi_ioq_ops *ops, const sherdi_ioq_params *params,
                     sherdi_mem *mem);
void sherdi_ioq_fini(sherdi_ioq *queue);
/** Takes the next request: of reads before those of writes, else in the order of transfers. Returns
 *  0 when there is none. Call it under the lock. */
int sherdi_ioq_take(sherdi_ioq *queue, sherdi_request *out);
/** Takes the result of pread, pwrite or a completion (bytes, or a negative errno). Returns 1 when
 *  the request, shortened to its remaining part, has to be made again. Call it under the lock. */
int sherdi_ioq_complete(sherdi_ioq *queue, sherdi_request *request, ssize_t result);
/** Ends a request, and so its transfer, as failed. Call it under the lock. */
void sherdi_ioq_drop(sherdi_ioq *queue, sherdi_request *request, int error);
/* A request fails after this number of attempts in a row that moved nothing. */
#define SHERDI_IOQ_MAX_STALLS 200
/** Sleeps before a request that moved nothing is made again, longer each time. Call it without the
 *  lock. */
void sherdi_ioq_pause(int stalls);

/** Locks an open file against all others. Returns an errno; EWOULDBLOCK when another run holds the
 *  lock, but not when another process only looked at the file for a moment. */
int sherdi_file_lock(int fd);
/** Finds the byte at `offset_bytes`: its stripe, and its offset there. Returns how many bytes
 *  follow it in that stripe without a gap. */
size_t sherdi_file_locate(const sherdi_file *file, size_t offset_bytes, int *stripe_out,
                          size_t *offset_out);

/** Create the engines. Errors: E_NOTSUP with a message when the engine is not built in, or the
 *  kernel does not allow it; E_NOMEM. */
sherd_status sherdi_ioq_threads_create(const sherdi_ioq_params *params, sherdi_mem *mem,
                                       sherdi_ioq **out);
sherd_status sherdi_ioq_uring_create(const sherdi_ioq_params *params, sherdi_mem *mem,
                                     sherdi_ioq **out);

#endif
