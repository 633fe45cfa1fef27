/* DeepSpeed on one rank with its state on NVMe, for offload_trainer.c: trainer_peers.py's
 * contestant, driven by lines. */
#ifndef BENCH_OFFLOAD_PEER_H
#define BENCH_OFFLOAD_PEER_H

#include "models/arch.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct offload_peer_params {
    const char *python; /* interpreter with torch and deepspeed */
    const char *folder; /* on the drive */
    const char *precision;
    arch        sizes; /* of GPT-2 */
    size_t      batch, length;
    int         threads;
    double      limit_s; /* of its start and of its first step, which compiles */
} offload_peer_params;

typedef struct offload_peer {
    pid_t  process;
    FILE  *to, *said; /* its questions, and its output other than answers */
    int    from;
    double limit_s;
    char   folder[512]; /* its own, on the drive; its files remain there */
} offload_peer;

/** Starts it and runs its first two steps, with progress on standard error. -1: it is omitted, and
 *  the reason was printed. */
int offload_peer_start(const offload_peer_params *params, offload_peer *out);
/** Makes `count` steps. Returns the seconds of one, their mean; below 0: it ended. `peak_out`,
 *  unless NULL: the largest PSS meanwhile. */
double offload_peer_turn(offload_peer *peer, size_t count, size_t *peak_out);
void   offload_peer_stop(offload_peer *peer);

/** Waits until `fd` can be read and takes the largest PSS of the process meanwhile, fifty times in
 *  a second. Returns 0, or -1 after `limit_s`; `what`, unless NULL, is printed on standard error
 *  every ten seconds. */
int offload_peak_watch(pid_t process, int fd, double limit_s, const char *what, size_t *peak_out);

#endif
