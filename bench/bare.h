/* A file's requests by io_uring alone, without an engine: the limit that benchmarks hold the
 * engine's transfers against. */
#ifndef BENCH_BARE_H
#define BENCH_BARE_H

#include <stddef.h>

typedef enum bench_bare_kind {
    BENCH_BARE_READ = 0,
    BENCH_BARE_WRITE,
    BENCH_BARE_BOTH, /* reads and writes in turn, of the two halves of the file */
    BENCH_BARE_KINDS,
} bench_bare_kind;

typedef struct bench_bare_params {
    const char    *path;   /* of a file that has size_bytes */
    unsigned char *memory; /* whole blocks, aligned to pages; it is used in turn, and registered */
    size_t         memory_bytes, size_bytes, block_bytes, depth;
} bench_bare_params;

typedef struct bench_bare bench_bare;

/** Returns NULL with a sentence in `why`. */
bench_bare *bench_bare_open(const bench_bare_params *params, char *why, size_t why_bytes);
/** Moves size_bytes. Returns the bytes per second; 0 after a failure, with a sentence in `why`. */
double bench_bare_run(bench_bare *bare, bench_bare_kind kind, char *why, size_t why_bytes);
void   bench_bare_close(bench_bare *bare); /* accepts NULL */

#endif
