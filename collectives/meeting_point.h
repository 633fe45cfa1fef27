/* Where ranks meet that have a way to tell each other before: MPI, or a communicator of NCCL's. */
#ifndef SHERDI_COLLECTIVES_MEETING_POINT_H
#define SHERDI_COLLECTIVES_MEETING_POINT_H

#include "collectives/procs.h"

typedef struct meeting_point {
    job_key key; /* of words that rank 0 drew */
    char    address[1024];
} meeting_point;

/** Everybody's `len_bytes` to all [world_size * len_bytes], by rank; with the time limit of the meeting. */
typedef sherd_status (*meeting_exchange_fn)(void *ctx, const void *mine, void *all,
                                            size_t len_bytes);

/** Rank 0 opens a socket that the others can reach and tells them how, and a key: what sherdi_procs_open needs, in
 *  `procs`, whose rank, world_size and listener (-1) are there. `source`: of the key, for sentences. Collective.
 *  `point` must outlive the opening. */
sherd_status sherdi_meeting_point_agree(procs_params *procs, meeting_exchange_fn exchange,
                                        void *ctx, const char *source, meeting_point *point);
/** The same for the group of a rank whose world is split, one of sherdi_procs: fills in *procs for sherdi_procs_open.
 *  Every rank of the parent calls it, with how it fared up to here, and all get the same status. */
sherd_status sherdi_meeting_point_split(struct sherdi_split *split, sherd_status here,
                                        procs_params *procs, meeting_point *point);

#endif
