/* The link between host and device alone: what benchmarks of a GPU hold their steps against. */
#ifndef BENCH_LINK_H
#define BENCH_LINK_H

#include "kernels/backend.h"

#include <stdint.h>

#define BENCH_LINK_PORTION  ((size_t)16 << 20) /* bytes of one copy */
#define BENCH_LINK_PORTIONS 4                  /* that each memory has room for */

/* Two lanes of a device of its own, and memory on both sides: device and pinned. */
typedef struct bench_link {
    sherdi_mem      mem;
    sherdi_backend *host;
    sherdi_backend *down, *up;
    unsigned char  *from, *to;
    unsigned char  *host_down, *host_up;
} bench_link;

SHERD_MUST_USE sherd_status bench_link_open(bench_link *link, int device);
/** Copies this number of bytes both ways at once, and waits. */
SHERD_MUST_USE sherd_status bench_link_run(const bench_link *link, uint64_t down_bytes,
                                           uint64_t up_bytes, double *seconds_out);
void                        bench_link_close(bench_link *link);

#endif
