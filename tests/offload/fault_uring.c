/* Makes the n-th transfer go wrong: stands before io_uring_submit and its forms and before pread
 * and pwrite. Linked into a test (fault_uring.h), or preloaded into any program (the shared library
 * sherd_fault) with these variables:
 *
 *   SHERD_FAULT_KIND   eio, enospc, eagain, eintr, short, busy, ring (see fault_uring.h)
 *   SHERD_FAULT_NTH    which one, from 1 on; unset or 0: none
 *   SHERD_FAULT_COUNT  so many in a row, 1 when unset; 0: all from there on
 *   SHERD_FAULT_ONLY   read or write: the others are not counted; both when unset
 *
 * Counted are reads and writes of at least 512 bytes, retries included, over all threads and rings
 * of the process. With io_uring the queued entry is rewritten before it is submitted: for an errno
 * to one that does nothing and completes with it (IORING_NOP_INJECT_RESULT), for short to half its
 * length. */
#undef _FILE_OFFSET_BITS /* pread and pread64 are two symbols here */
#include "tests/offload/fault_uring.h"

#include "sherd_build.h"

#ifdef SHERDI_HAVE_URING
#include <liburing.h>
#endif

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SMALLEST_BYTES 512
#define PAGE_BYTES     4096

/* In linux/io_uring.h from 6.10 on. */
#define NOP_INJECT_RESULT (1U << 0)

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static fault_kind      fault_now;
static fault_only      fault_which;
static int             fault_nth, fault_count, fault_counted, fault_hit;

void fault_arm(fault_kind kind, fault_only only, int nth, int count)
{
    (void)pthread_mutex_lock(&fault_lock);
    fault_now     = kind;
    fault_which   = only;
    fault_nth     = nth;
    fault_count   = count;
    fault_counted = 0;
    fault_hit     = 0;
    (void)pthread_mutex_unlock(&fault_lock);
}

int fault_seen(void)
{
    int seen;

    (void)pthread_mutex_lock(&fault_lock);
    seen = fault_counted;
    (void)pthread_mutex_unlock(&fault_lock);
    return seen;
}

int fault_hits(void)
{
    int hits;

    (void)pthread_mutex_lock(&fault_lock);
    hits = fault_hit;
    (void)pthread_mutex_unlock(&fault_lock);
    return hits;
}

__attribute__((constructor)) static void fault_read_environment(void)
{
    static const char *const NAMES[] = {"none",  "eio",   "enospc", "eagain",
                                        "eintr", "short", "busy",   "ring"};
    const char              *kind    = getenv("SHERD_FAULT_KIND");
    const char              *nth     = getenv("SHERD_FAULT_NTH");
    const char              *count   = getenv("SHERD_FAULT_COUNT");
    const char              *only    = getenv("SHERD_FAULT_ONLY");

    for (int i = 0; kind != NULL && nth != NULL && i <= FAULT_RING; i++) {
        if (strcmp(kind, NAMES[i]) == 0) {
            fault_arm((fault_kind)i,
                      only == NULL                ? FAULT_ANY
                      : strcmp(only, "read") == 0 ? FAULT_READS
                                                  : FAULT_WRITES,
                      atoi(nth), count == NULL ? 1 : atoi(count));
        }
    }
}

static _Atomic unsigned fault_late_us;

/* Counts one; whether it goes wrong. Under the lock. */
static int one_is_due(void)
{
    fault_counted++;
    if (fault_nth == 0 || fault_counted < fault_nth ||
        (fault_count > 0 && fault_counted >= fault_nth + fault_count)) {
        return 0;
    }
    fault_hit++;
    return 1;
}

/* What is to happen to this request. */
static fault_kind request_fault(int is_write, size_t len_bytes)
{
    fault_kind kind = FAULT_NONE;

    (void)pthread_mutex_lock(&fault_lock);
    if (len_bytes >= SMALLEST_BYTES && fault_now != FAULT_BUSY && fault_now != FAULT_RING &&
        fault_which != (is_write ? FAULT_READS : FAULT_WRITES) && one_is_due()) {
        kind = fault_now;
    }
    (void)pthread_mutex_unlock(&fault_lock);
    if (kind != FAULT_NONE && fault_late_us > 0) {
        (void)usleep(fault_late_us);
    }
    return kind;
}

void fault_late(unsigned us)
{
    fault_late_us = us;
}

static int kind_errno(fault_kind kind)
{
    switch (kind) {
    case FAULT_EIO:
    case FAULT_RING:
        return EIO;
    case FAULT_ENOSPC:
        return ENOSPC;
    case FAULT_EAGAIN:
    case FAULT_BUSY:
        return EAGAIN;
    case FAULT_EINTR:
        return EINTR;
    case FAULT_NONE:
    case FAULT_SHORT:
        break;
    }
    return 0;
}

static size_t half(size_t len_bytes)
{
    size_t kept_bytes = len_bytes / 2 / PAGE_BYTES * PAGE_BYTES;

    return kept_bytes > 0 ? kept_bytes : len_bytes < PAGE_BYTES ? len_bytes : PAGE_BYTES;
}

/* ------------------------------------------------------------- io_uring -- */

#ifdef SHERDI_HAVE_URING

static void entry_spoil(struct io_uring_sqe *sqe)
{
    int        is_write = sqe->opcode == IORING_OP_WRITE || sqe->opcode == IORING_OP_WRITE_FIXED;
    int        is_read  = sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READ_FIXED;
    fault_kind kind     = is_read || is_write ? request_fault(is_write, sqe->len) : FAULT_NONE;

    if (kind == FAULT_SHORT) {
        sqe->len = (unsigned)half(sqe->len);
    } else if (kind != FAULT_NONE) {
        sqe->opcode    = IORING_OP_NOP;
        sqe->flags     = 0;
        sqe->fd        = -1;
        sqe->off       = 0;
        sqe->addr      = 0;
        sqe->len       = (unsigned)-kind_errno(kind);
        sqe->rw_flags  = (int)NOP_INJECT_RESULT;
        sqe->buf_index = 0;
    }
}

/* The entries that were queued since the last submission. Returns what the submission itself is to
 * give instead, or 0. */
static int ring_spoil(struct io_uring *ring)
{
    struct io_uring_sq *sq     = &ring->sq;
    int                 result = 0;

    (void)pthread_mutex_lock(&fault_lock);
    if ((fault_now == FAULT_BUSY || fault_now == FAULT_RING) && one_is_due()) {
        result = -kind_errno(fault_now);
    }
    (void)pthread_mutex_unlock(&fault_lock);
    if (result == 0) {
        for (unsigned at = sq->sqe_head; at != sq->sqe_tail; at++) {
            entry_spoil(&sq->sqes[at & *sq->kring_mask]);
        }
    }
    return result;
}

#define NEXT(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

int io_uring_submit(struct io_uring *ring)
{
    int result = ring_spoil(ring);

    return result != 0 ? result : NEXT(io_uring_submit)(ring);
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr)
{
    int result = ring_spoil(ring);

    return result != 0 ? result : NEXT(io_uring_submit_and_wait)(ring, wait_nr);
}

int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe_ptr,
                                     unsigned wait_nr, struct __kernel_timespec *ts,
                                     sigset_t *sigmask)
{
    int result = ring_spoil(ring);

    return result != 0
               ? result
               : NEXT(io_uring_submit_and_wait_timeout)(ring, cqe_ptr, wait_nr, ts, sigmask);
}

int fault_can_inject(void)
{
    struct io_uring      ring;
    struct io_uring_sqe *sqe;
    struct io_uring_cqe *cqe;
    int                  can_inject = 0;

    if (io_uring_queue_init(1, &ring, 0) != 0) {
        return 0;
    }
    sqe = io_uring_get_sqe(&ring);
    io_uring_prep_nop(sqe);
    sqe->len      = 77;
    sqe->rw_flags = (int)NOP_INJECT_RESULT;
    if (NEXT(io_uring_submit_and_wait)(&ring, 1) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0) {
        can_inject = cqe->res == 77;
    }
    io_uring_queue_exit(&ring);
    return can_inject;
}

#else

int fault_can_inject(void)
{
    return 0;
}

#endif

/* --------------------------------------------------------- pread, pwrite -- */

typedef ssize_t (*read_fn)(int, void *, size_t, off64_t);
typedef ssize_t (*write_fn)(int, const void *, size_t, off64_t);

static ssize_t read_spoiled(const char *name, int fd, void *memory, size_t len_bytes,
                            off64_t offset)
{
    read_fn    next = (read_fn)(uintptr_t)dlsym(RTLD_NEXT, name);
    fault_kind kind = request_fault(0, len_bytes);

    if (kind != FAULT_NONE && kind != FAULT_SHORT) {
        errno = kind_errno(kind);
        return -1;
    }
    return next(fd, memory, kind == FAULT_SHORT ? half(len_bytes) : len_bytes, offset);
}

static ssize_t write_spoiled(const char *name, int fd, const void *memory, size_t len_bytes,
                             off64_t offset)
{
    write_fn   next = (write_fn)(uintptr_t)dlsym(RTLD_NEXT, name);
    fault_kind kind = request_fault(1, len_bytes);

    if (kind != FAULT_NONE && kind != FAULT_SHORT) {
        errno = kind_errno(kind);
        return -1;
    }
    return next(fd, memory, kind == FAULT_SHORT ? half(len_bytes) : len_bytes, offset);
}

ssize_t pread(int fd, void *memory, size_t len_bytes, off_t offset)
{
    return read_spoiled("pread", fd, memory, len_bytes, offset);
}

ssize_t pread64(int fd, void *memory, size_t len_bytes, off64_t offset)
{
    return read_spoiled("pread64", fd, memory, len_bytes, offset);
}

ssize_t pwrite(int fd, const void *memory, size_t len_bytes, off_t offset)
{
    return write_spoiled("pwrite", fd, memory, len_bytes, offset);
}

ssize_t pwrite64(int fd, const void *memory, size_t len_bytes, off64_t offset)
{
    return write_spoiled("pwrite64", fd, memory, len_bytes, offset);
}
