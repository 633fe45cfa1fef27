/* The limit of a drive: how fast the bare loop of bare.h reads and writes a file of its own there.
 * Rounds may be before and after the compared measurement, since drives drift. */
#ifndef BENCH_LIMIT_H
#define BENCH_LIMIT_H

#include "bench/bare.h"

#define BENCH_LIMIT_MOST_ROUNDS 64

/* Requests as the engine makes them by default. */
#define BENCH_LIMIT_BLOCK_BYTES ((size_t)1 << 20)
#define BENCH_LIMIT_DEPTH       ((size_t)8)

typedef struct bench_limit {
    char           path[512]; /* of the file */
    size_t         size_bytes;
    unsigned char *memory;
    bench_bare    *bare;
    double         rates[BENCH_BARE_KINDS][BENCH_LIMIT_MOST_ROUNDS]; /* bytes per second */
    size_t         rounds;
} bench_limit;

/** Makes the file, of size_bytes. Returns 0, or -1 with a sentence in `why`. */
int bench_limit_open(const char *folder, size_t size_bytes, bench_limit *out, char *why,
                     size_t why_bytes);
/** Adds rounds. Returns as above. */
int bench_limit_rounds(bench_limit *limit, size_t rounds, char *why, size_t why_bytes);
/** Returns the median of all rounds, in bytes per second; 0: there was none. */
double bench_limit_rate(const bench_limit *limit, bench_bare_kind kind);
/** Removes the file; the measurements remain. */
void bench_limit_close(bench_limit *limit);

#endif
