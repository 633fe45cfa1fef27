/* Another package's rows in the same rounds: a script (peers.py, gpu_peers.py) that receives
 * commands as lines on its standard input, "setup WORDS" and "run INDEX REPEATS". */
#ifndef BENCH_PEERS_H
#define BENCH_PEERS_H

#include <stddef.h>
#include <stdio.h>

#define BENCH_MAX_PEERS 8

typedef struct bench_peers {
    FILE  *to, *from; /* NULL: there are none */
    char   names[BENCH_MAX_PEERS][64];
    size_t count;
} bench_peers;

/** Runs `script` with the interpreter `python`. These three end the program, with a sentence, when
 *  it ends. */
void bench_peers_start(bench_peers *peers, const char *python, const char *script);
/** The measurement, in words that the script reads (a size, then a number of threads or of a
 *  device, say). Fills names and count, 0 without a script. */
void bench_peers_setup(bench_peers *peers, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/** Seconds of one call of row `index`, over `repeats`. */
double bench_peer_seconds(bench_peers *peers, size_t index, size_t repeats);

#endif
