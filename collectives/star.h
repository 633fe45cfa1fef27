/* Control data over sockets, as a star of connections around rank 0, for transports whose library
 * moves device memory only (nccl). The data is small and rare, and the ranks may be on several
 * hosts. Every call meets, and rank 0 compares the ranks' calls. */
#ifndef SHERDI_COLLECTIVES_STAR_H
#define SHERDI_COLLECTIVES_STAR_H

#include "collectives/procs.h"

typedef struct sherdi_star {
    sherdi_procs *procs;
    int          *lines; /* rank 0: [world_size], -1 for itself; others: [1] */
} sherdi_star;

/** Collective; call it after the ranks have met. */
sherd_status sherdi_star_open(sherdi_star *star, sherdi_procs *procs);
/** Accepts a star that is not completely open. */
void sherdi_star_close(sherdi_star *star);

/* Like the functions of the table with the same names; for host memory. */

sherd_status sherdi_star_barrier(sherdi_star *star);
sherd_status sherdi_star_all_gather(sherdi_star *star, const sherdi_all_gather_args *args);
sherd_status sherdi_star_broadcast(sherdi_star *star, void *data, size_t len_bytes, int root);
sherd_status sherdi_star_sum_u64(sherdi_star *star, uint64_t *values, size_t count);

#endif
