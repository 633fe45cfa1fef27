/* See limit.h. */
#include "bench/limit.h"

#include "bench/timing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A drive takes requests of few large pieces faster than of many small ones, and the engine's
 * memory has huge pages too. */
#define PAGE_BYTES ((size_t)2 << 20)
/* Twice the bytes in flight. */
#define MEMORY_BYTES (2 * BENCH_LIMIT_DEPTH * BENCH_LIMIT_BLOCK_BYTES)

static int file_make(const char *path, size_t size_bytes)
{
    int fd     = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int failed = fd < 0 || posix_fallocate(fd, 0, (off_t)size_bytes) != 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    return failed ? -1 : 0;
}

static int loop_open(bench_limit *limit, char *why, size_t why_bytes)
{
    bench_bare_params params = {.path         = limit->path,
                                .memory_bytes = MEMORY_BYTES,
                                .size_bytes   = limit->size_bytes,
                                .block_bytes  = BENCH_LIMIT_BLOCK_BYTES,
                                .depth        = BENCH_LIMIT_DEPTH};

    limit->memory = aligned_alloc(PAGE_BYTES, MEMORY_BYTES);
    if (limit->memory == NULL) {
        (void)snprintf(why, why_bytes, "no memory");
        return -1;
    }
    (void)madvise(limit->memory, MEMORY_BYTES, MADV_HUGEPAGE);
    memset(limit->memory, 0x5a, MEMORY_BYTES); /* a drive may shorten zeros */
    params.memory = limit->memory;
    limit->bare   = bench_bare_open(&params, why, why_bytes);
    return limit->bare != NULL && bench_bare_run(limit->bare, BENCH_BARE_WRITE, why, why_bytes) > 0
               ? 0
               : -1;
}

int bench_limit_open(const char *folder, size_t size_bytes, bench_limit *out, char *why,
                     size_t why_bytes)
{
    *out = (bench_limit){.size_bytes = size_bytes};
    (void)snprintf(out->path, sizeof(out->path), "%.480s/bench-limit.%d", folder, (int)getpid());
    if (file_make(out->path, size_bytes) != 0) {
        (void)snprintf(why, why_bytes, "%.200s: %s", out->path, strerror(errno));
    } else if (loop_open(out, why, why_bytes) == 0) {
        return 0;
    }
    bench_limit_close(out);
    return -1;
}

int bench_limit_rounds(bench_limit *limit, size_t rounds, char *why, size_t why_bytes)
{
    for (size_t i = 0; i < rounds && limit->rounds < BENCH_LIMIT_MOST_ROUNDS; i++) {
        for (int kind = 0; kind < BENCH_BARE_KINDS; kind++) {
            double rate = bench_bare_run(limit->bare, (bench_bare_kind)kind, why, why_bytes);

            if (rate <= 0) {
                return -1;
            }
            limit->rates[kind][limit->rounds] = rate;
        }
        limit->rounds++;
    }
    return 0;
}

double bench_limit_rate(const bench_limit *limit, bench_bare_kind kind)
{
    double values[BENCH_LIMIT_MOST_ROUNDS];

    if (limit->rounds == 0) {
        return 0;
    }
    memcpy(values, limit->rates[kind], sizeof(values));
    return bench_stat_of(values, limit->rounds).median;
}

void bench_limit_close(bench_limit *limit)
{
    bench_bare_close(limit->bare);
    free(limit->memory);
    (void)unlink(limit->path);
    limit->bare   = NULL;
    limit->memory = NULL;
}
