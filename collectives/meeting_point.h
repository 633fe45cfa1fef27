/* Chooses where ranks meet when they can already exchange data by other means: over MPI, over a
 * communicator of NCCL, or over the parent of a world that is split. The result is an address and a
 * key for sherdi_procs_open. */
#ifndef SHERDI_COLLECTIVES_MEETING_POINT_H
#define SHERDI_COLLECTIVES_MEETING_POINT_H

#include "collectives/procs.h"

typedef struct meeting_point {
    job_key key; /* made of random words of rank 0 */
    char    address[1024];
} meeting_point;

/** Gives `len_bytes` of each rank to all ranks: `all` is [world_size * len_bytes], by rank. Must
 *  keep the time limit of the meeting. */
typedef sherd_status (*meeting_exchange_fn)(void *ctx, const void *mine, void *all,
                                            size_t len_bytes);

/** Rank 0 opens a socket that the other ranks can reach, and sends them its addresses and a random
 *  key. Sets listener, key and address of `procs` for sherdi_procs_open; its rank, world_size and
 *  listener (-1) must be set before. `source` names the origin of the key in messages. Collective.
 *  `point` must live until the world is open. */
sherd_status sherdi_meeting_point_agree(procs_params *procs, meeting_exchange_fn exchange,
                                        void *ctx, const char *source, meeting_point *point);
/** The same for one group of a parent world that is split; the parent is a sherdi_procs. Fills
 *  *procs for sherdi_procs_open. Every rank of the parent calls it with its own status so far
 *  (`here`), and all get the same status. */
sherd_status sherdi_meeting_point_split(struct sherdi_split *split, sherd_status here,
                                        procs_params *procs, meeting_point *point);

#endif
