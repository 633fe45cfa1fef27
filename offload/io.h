/* Asynchronous transfers between memory and files: one queue per rank, many requests in flight,
 * several files. Two engines implement one interface: io_uring (uring.c), and a pool of threads
 * with pread and pwrite (threads.c) where io_uring is not available.
 *
 * A transfer is cut into requests of at most `request_bytes`. Requests leave in the order in which
 * the transfers were started, but reads go before writes that were not begun; each leaves as a
 * batch, and the requests of the next transfer fill the queue while the last ones of this transfer
 * are still under way. Every completion is checked: a short one is resumed, EINTR and EAGAIN are
 * tried again, and anything else ends the transfer with E_IO and a message that names the file, the
 * offset and the failure.
 *
 * Files are opened with O_DIRECT where the file system accepts it. Offsets, lengths and addresses
 * are multiples of sherdi_file_granularity; SHERD_ALIGN_BYTES always is such a multiple. */
#ifndef SHERDI_OFFLOAD_IO_H
#define SHERDI_OFFLOAD_IO_H

#include "base/mem.h"
#include "base/trace.h"
#include "base/status.h"

#include <sys/uio.h>

typedef struct sherdi_ioq  sherdi_ioq;
typedef struct sherdi_file sherdi_file;

/* ---- the queue ---- */

typedef enum sherdi_ioq_kind {
    SHERDI_IOQ_AUTO = 0, /* io_uring, else threads, which the log says once */
    SHERDI_IOQ_URING,
    SHERDI_IOQ_THREADS,
} sherdi_ioq_kind;

typedef struct sherdi_ioq_params {
    sherdi_ioq_kind kind;          /* AUTO also reads SHERD_IO=io_uring|threads */
    size_t          request_bytes; /* most bytes of a request; rounded up to SHERD_ALIGN_BYTES */
    int             depth;         /* requests in flight, from 1 on; io_uring takes up to 4096 */
    int             rank;          /* for the log */
    sherdi_trace   *trace; /* receives every transfer; may be NULL; must outlive the queue */
} sherdi_ioq_params;

/** Creates a queue and starts its threads, which no signal reaches. Errors: E_NOTSUP when the kind
 *  was asked for by name and is not available, E_INVAL when SHERD_IO names no kind, E_NOMEM. */
sherd_status sherdi_ioq_create(const sherdi_ioq_params *params, sherdi_mem *mem, sherdi_ioq **out);
/** Waits for the requests in flight, then destroys the queue. Close its files before. Accepts
 *  NULL. */
void sherdi_ioq_destroy(sherdi_ioq *queue);
/** Returns "io_uring" or "threads". */
const char *sherdi_ioq_name(const sherdi_ioq *queue);

/** Registers memory that transfers will use, so that the kernel keeps it pinned. Call it once,
 *  before the first transfer. Where the limit on locked memory forbids it, transfers work without,
 *  and the log says so once. *pinned_bytes_out is the number of registered bytes. */
void sherdi_ioq_register(sherdi_ioq *queue, const struct iovec *memory, int count,
                         size_t *pinned_bytes_out);

#define SHERDI_IO_ACCOUNTS 3

/* Bytes that were moved since the queue was made; a request that was repeated counts once. */
typedef struct sherdi_io_traffic {
    uint64_t read_bytes, written_bytes;
} sherdi_io_traffic;
sherdi_io_traffic sherdi_ioq_traffic(const sherdi_ioq *queue);
/** The same of one account. A transfer counts in the account that its thread had chosen when it was
 *  started. */
sherdi_io_traffic sherdi_ioq_traffic_of(const sherdi_ioq *queue, int account);
/** Chooses the account for transfers that the calling thread starts from now on, in any queue; 0 at
 *  first. Returns the one before. */
int sherdi_io_account(int account);
/** Waits until all transfers of an account that were started are over; their owners learn the
 *  outcome when they wait for them. */
void sherdi_ioq_settle(sherdi_ioq *queue, int account);

/* ---- files ---- */

enum {
    SHERDI_FILE_CREATE  = 1 << 0, /* must not exist; mode 0600, space reserved */
    SHERDI_FILE_SCRATCH = 1 << 1, /* with CREATE: unlinked at once, removed with the process */
    /* Files that are shared between runs: they are not locked, and changes by others in the
     * meantime are not checked. */
    SHERDI_FILE_PLAIN = 1 << 2, /* with CREATE, in one folder: mode 0644 as the umask leaves it */
    SHERDI_FILE_READ  = 1 << 3, /* alone: must exist, is only read and never changed */
};

typedef struct sherdi_file_params {
    const char *const *folders; /* one file in each; the bytes are striped over them */
    int                num_folders;
    const char        *name;           /* of the first file; the others add ".1", ".2", ... */
    size_t             capacity_bytes; /* with READ: the length that the file must have; 0: any */
    size_t   stripe_bytes; /* a multiple of SHERD_ALIGN_BYTES; matters with several folders only */
    uint32_t flags;
} sherdi_file_params;

/** Opens a file and locks it (exclusively, against other processes and other opens in this one);
 *  PLAIN and READ do not lock. CREATE checks that there is enough free space and reserves it. A
 *  path that is a symbolic link is not followed. Errors name the path: E_IO (does not exist, no
 *  permission, no space with the bytes that are missing, another length), E_STATE (in use by
 *  another process).
 *
 *  A READ file may have any length. Its last page is read as a whole, up to the multiple of
 *  SHERD_ALIGN_BYTES after its end, and counts as a page in the traffic; bytes after the end that
 *  the file had when it was opened read as zero. Reads beyond that page fail, and so do reads of
 *  bytes that the file does not have any more. */
sherd_status sherdi_file_open(sherdi_ioq *queue, const sherdi_file_params *params,
                              sherdi_file **out);
/** Closes a file; its transfers must be over. `is_removed`: unlinks it first. Accepts NULL. */
void sherdi_file_close(sherdi_file *file, int is_removed);
/** Syncs a file: earlier writes are on the medium when this returns (fdatasync of every stripe). */
sherd_status sherdi_file_sync(sherdi_file *file);
/** Returns the bytes of a READ file, of all its stripes, as they were when it was opened. */
size_t sherdi_file_len(const sherdi_file *file);
/** Cuts a PLAIN file, which is written in whole pages, to its actual length. Call it before sync,
 *  when transfers are over. E_IO. */
sherd_status sherdi_file_trim(sherdi_file *file, size_t len_bytes);
/** Returns the number of which offsets, lengths and addresses must be multiples. */
size_t sherdi_file_granularity(const sherdi_file *file);
/** Returns the path of the first stripe, for messages. */
const char *sherdi_file_path(const sherdi_file *file);
/** Returns 0 when somebody unlinked one of its stripes, else 1 (SCRATCH: always 1). */
int sherdi_file_is_linked(const sherdi_file *file);
/** Returns whether one of its stripes has a second name: then another file shares its contents. */
int sherdi_file_is_shared(const sherdi_file *file);
/** Makes other names for the same stripes, by hard links: folders [stripes], "name" in the first,
 *  "name.1" in the second, and so on. Syncs the folders. A failure leaves none of them: E_NOTSUP
 *  where links cannot be made (another file system, one without links, a file that has lost its own
 *  name), E_IO. */
sherd_status sherdi_file_link(const sherdi_file *file, const char *const *folders,
                              const char *name);
/** Removes these names again. */
void sherdi_file_unlink(const sherdi_file *file, const char *const *folders, const char *name);
/** Syncs a folder: creations, renames, links and removals in it are on the medium when this
 *  returns. E_IO. */
sherd_status sherdi_folder_sync(const char *folder);

/* ---- transfers ---- */

/* A transfer, in the caller's storage; it and its memory are borrowed from start until wait has
 * returned. The first fields are the caller's; the rest are the queue's and start as zero. */
typedef struct sherdi_io {
    sherdi_file   *file;
    int            is_write;
    unsigned char *memory; /* a write reads it, a read writes it */
    size_t         offset_bytes;
    size_t         len_bytes;
    const char    *what;   /* for the message of a failure: "state", "parameters"; static storage */
    size_t         number; /* ... and its number: "state 17" */

    int64_t           start_ns;            /* for the trace */
    struct sherdi_io *next;                /* in the queue's list */
    size_t            started_bytes;       /* handed out as requests so far */
    size_t            left_bytes;          /* not completed yet */
    int               is_started, is_done; /* is_done under the queue's lock */
    int               account;             /* in which it counts */
    /* errno of the first request that failed, or a value below 0 of queue.c's; 0: none */
    int    error;
    size_t error_offset; /* in the stripe's file */
    int    error_stripe;
} sherdi_io;

/** Starts a transfer, from any thread. Never blocks and never fails: wait returns what goes wrong.
 *  With len_bytes 0 it is done at once. */
void sherdi_io_start(sherdi_ioq *queue, sherdi_io *io);
/** Returns whether a transfer is done; one that was never started is. Never blocks. */
int sherdi_io_is_done(sherdi_ioq *queue, const sherdi_io *io);
/** Blocks until the transfer is over, however it ended; then it may be started again. E_IO. */
sherd_status sherdi_io_wait(sherdi_ioq *queue, sherdi_io *io);

#endif
