/* See bare.h. */
#include "bench/bare.h"
#include "models/clock.h"

#include <liburing.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bench_bare {
    bench_bare_params p;
    struct io_uring   ring;
    int               fd;
};

static int fail(char *why, size_t why_bytes, const char *what, const char *reason)
{
    (void)snprintf(why, why_bytes, "%s: %s", what, reason);
    return -1;
}

static int ring_open(bench_bare *bare, char *why, size_t why_bytes)
{
    struct iovec range = {.iov_base = bare->p.memory, .iov_len = bare->p.memory_bytes};
    int          error = -EINVAL;

#ifdef IORING_SETUP_DEFER_TASKRUN
    error = io_uring_queue_init((unsigned)bare->p.depth, &bare->ring,
                                IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
#endif
    if (error == -EINVAL) {
        error = io_uring_queue_init((unsigned)bare->p.depth, &bare->ring, 0);
    }
    if (error != 0) {
        return fail(why, why_bytes, "io_uring", strerror(-error));
    }
    error = io_uring_register_buffers(&bare->ring, &range, 1);
    if (error == 0) {
        error = io_uring_register_files(&bare->ring, &bare->fd, 1);
    }
    if (error != 0) {
        io_uring_queue_exit(&bare->ring);
        return fail(why, why_bytes, "io_uring", strerror(-error));
    }
    return 0;
}

bench_bare *bench_bare_open(const bench_bare_params *params, char *why, size_t why_bytes)
{
    bench_bare *bare = calloc(1, sizeof(*bare));

    if (bare == NULL) {
        (void)fail(why, why_bytes, "bare loop", "no memory");
        return NULL;
    }
    bare->p  = *params;
    bare->fd = open(params->path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (bare->fd < 0) {
        (void)fail(why, why_bytes, params->path, strerror(errno));
    } else if (ring_open(bare, why, why_bytes) == 0) {
        return bare;
    } else {
        (void)close(bare->fd);
    }
    free(bare);
    return NULL;
}

/* Subtracts the completed requests from the number in flight. */
static int reap(bench_bare *bare, size_t *in_flight, char *why, size_t why_bytes)
{
    struct io_uring_cqe *cqe;
    unsigned             head;
    unsigned             count  = 0;
    int                  failed = 0;

    io_uring_for_each_cqe(&bare->ring, head, cqe)
    {
        if (cqe->res != (int)bare->p.block_bytes) {
            failed = fail(why, why_bytes, "bare loop",
                          cqe->res < 0 ? strerror(-cqe->res) : "a short transfer");
        }
        count++;
    }
    io_uring_cq_advance(&bare->ring, count);
    *in_flight -= count;
    return failed;
}

/* Where the number-th block is. Of both kinds, those with even numbers are read in the first half
 * of the file. */
static size_t offset_of(const bench_bare *bare, bench_bare_kind kind, size_t number)
{
    size_t block = bare->p.block_bytes;
    size_t half  = bare->p.size_bytes / block / 2 * block;

    if (kind != BENCH_BARE_BOTH) {
        return number * block;
    }
    return number / 2 * block + (number % 2 == 0 ? 0 : half);
}

static void request_make(bench_bare *bare, bench_bare_kind kind, size_t number)
{
    struct io_uring_sqe *sqe    = io_uring_get_sqe(&bare->ring);
    size_t               block  = bare->p.block_bytes;
    size_t               slots  = bare->p.memory_bytes / block;
    unsigned char       *memory = bare->p.memory + number % slots * block;
    size_t               at     = offset_of(bare, kind, number);

    if (kind == BENCH_BARE_WRITE || (kind == BENCH_BARE_BOTH && number % 2 == 1)) {
        io_uring_prep_write_fixed(sqe, 0, memory, (unsigned)block, at, 0);
    } else {
        io_uring_prep_read_fixed(sqe, 0, memory, (unsigned)block, at, 0);
    }
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

double bench_bare_run(bench_bare *bare, bench_bare_kind kind, char *why, size_t why_bytes)
{
    size_t count     = bare->p.size_bytes / bare->p.block_bytes;
    size_t in_flight = 0;
    double start_s   = clock_now_s();

    for (size_t number = 0; number < count || in_flight > 0;) {
        for (; number < count && in_flight < bare->p.depth; number++) {
            request_make(bare, kind, number);
            in_flight++;
        }
        if (io_uring_submit_and_wait(&bare->ring, 1) < 0) {
            (void)fail(why, why_bytes, "bare loop", "submission failed");
            return 0;
        }
        if (reap(bare, &in_flight, why, why_bytes) != 0) {
            return 0;
        }
    }
    return (double)count * (double)bare->p.block_bytes / (clock_now_s() - start_s);
}

void bench_bare_close(bench_bare *bare)
{
    if (bare != NULL) {
        io_uring_queue_exit(&bare->ring);
        (void)close(bare->fd);
        free(bare);
    }
}
