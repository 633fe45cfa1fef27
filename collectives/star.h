/* Control data over sockets: a star of connections around rank 0, for transports whose library moves device
 * memory only. Small and rare; several hosts allowed. Every call meets, and rank 0 compares what the
 * ranks call. */
#ifndef SHERDI_COLLECTIVES_STAR_H
#define SHERDI_COLLECTIVES_STAR_H

#include "collectives/procs.h"

typedef struct sherdi_star {
    sherdi_procs *procs;
    int          *lines; /* rank 0: [world_size], -1 for itself; others: [1] */
} sherdi_star;

/** After the ranks have met; all do. */
sherd_status sherdi_star_open(sherdi_star *star, sherdi_procs *procs);
/** Half-open too. */
void sherdi_star_close(sherdi_star *star);

/* As the slots of the same names; host memory. */

sherd_status sherdi_star_barrier(sherdi_star *star);
sherd_status sherdi_star_all_gather(sherdi_star *star, const sherdi_all_gather_args *args);
sherd_status sherdi_star_broadcast(sherdi_star *star, void *data, size_t len_bytes, int root);
sherd_status sherdi_star_sum_u64(sherdi_star *star, uint64_t *values, size_t count);

#endif
