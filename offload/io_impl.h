/* What queue.c, its two engines and file.c share. The queue keeps the order and the books; an engine
 * owns threads that take requests, carry them out and hand in what the kernel said. */
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
    int    slot;       /* in the ring's table of registered files; -1: none */
    int    is_direct;  /* O_DIRECT: transfers keep to the granularity */
    int    is_made;    /* by us: goes again when opening fails half-way */
    int    is_entered; /* its name is known to be on the medium */
    dev_t  device;     /* what path led to when it was opened */
    ino_t  inode;
    size_t len_bytes; /* then */
} sherdi_stripe;

struct sherdi_file {
    sherdi_ioq    *queue;
    sherdi_stripe *stripes; /* [num_stripes] */
    int            num_stripes;
    int            is_scratch, is_plain, is_read_only;
    size_t         stripe_bytes;
    size_t         granularity_bytes;
};

/* A part of one transfer in one file: what is in flight. */
typedef struct sherdi_request {
    sherdi_io             *io;
    int                    stripe;
    size_t                 offset_bytes; /* in the stripe's file */
    unsigned char         *memory;
    size_t                 len_bytes; /* still to move */
    int                    stalls;    /* times in a row that nothing was moved */
    uint64_t               ticket;    /* uring: its number among all entries that were queued */
    int                    is_queued; /* uring: has an entry without a completion */
    struct sherdi_request *next_free; /* uring */
} sherdi_request;

typedef struct sherdi_ioq_ops {
    const char *name;
    /* Ends and joins the threads, which finish all transfers first; frees the queue. */
    void (*destroy)(sherdi_ioq *queue);
    /* Under the lock: there is something to take. Never blocks. */
    void (*wake)(sherdi_ioq *queue);
    /* Optional. Registers memory; returns the bytes, 0 with errno set when it is not possible. */
    size_t (*pin)(sherdi_ioq *queue, const struct iovec *memory, int count);
    /* Optional. A file that transfers will use, and its end (all transfers over). */
    void (*attach)(sherdi_ioq *queue, sherdi_stripe *stripe);
    void (*detach)(sherdi_ioq *queue, sherdi_stripe *stripe);
} sherdi_ioq_ops;

/* The common part; an engine's own struct starts with it. */
struct sherdi_ioq {
    const sherdi_ioq_ops *ops;
    sherdi_mem           *mem;
    size_t                request_bytes;
    int                   depth;
    int                   rank;
    sherdi_trace         *trace;
    int                   is_buffered_told; /* by file.c, in the log */
    pthread_mutex_t       lock;             /* guards all below, and what a transfer keeps here */
    pthread_cond_t        is_over;          /* some transfer is */
    sherdi_io            *first, *last;     /* transfers with something left to hand out */
    size_t                under_way;        /* transfers that were started and are not over */
    int                   is_stopping;
    sherdi_io_traffic     traffic;
};

/* The stack of a thread of a queue: so small that no huge page is spent on it. */
#define SHERDI_IOQ_STACK_BYTES ((size_t)256 << 10)

/** Fills in the common part of zeroed memory; `fini` undoes it. */
void sherdi_ioq_init(sherdi_ioq *queue, const sherdi_ioq_ops *ops, const sherdi_ioq_params *params,
                     sherdi_mem *mem);
void sherdi_ioq_fini(sherdi_ioq *queue);
/** Under the lock: the next request in the order of transfers; 0 when there is none. */
int sherdi_ioq_take(sherdi_ioq *queue, sherdi_request *out);
/** Under the lock: what pread, pwrite or a completion said (bytes, or a negative errno). Returns 1 when the
 *  request, shortened to what is left, has to be made again. */
int sherdi_ioq_complete(sherdi_ioq *queue, sherdi_request *request, ssize_t result);
/** Under the lock: the request has failed for good and its transfer with it. */
void sherdi_ioq_drop(sherdi_ioq *queue, sherdi_request *request, int error);
/* Times in a row that a request may move nothing before it has failed. */
#define SHERDI_IOQ_MAX_STALLS 200
/** Before a request is made again that moved nothing: sleeps, longer each time. Without the lock. */
void sherdi_ioq_pause(int stalls);

/** Locks an open file against all others. Returns an errno: EWOULDBLOCK when somebody has it, and not for the moment
 *  of a look alone. */
int sherdi_file_lock(int fd);
/** Where the byte at `offset_bytes` lies: stripe and offset there. Returns how many bytes follow
 *  it in that stripe without a gap. */
size_t sherdi_file_locate(const sherdi_file *file, size_t offset_bytes, int *stripe_out,
                          size_t *offset_out);

/** The engines. E_NOTSUP with a sentence: not built in, or the kernel does not let us. */
sherd_status sherdi_ioq_threads_create(const sherdi_ioq_params *params, sherdi_mem *mem,
                                       sherdi_ioq **out);
sherd_status sherdi_ioq_uring_create(const sherdi_ioq_params *params, sherdi_mem *mem,
                                     sherdi_ioq **out);

#endif
