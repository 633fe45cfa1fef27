/* Worlds of ranks that are threads of one process: what making them takes. */
#ifndef SHERDI_COLLECTIVES_THREADS_H
#define SHERDI_COLLECTIVES_THREADS_H

#include "collectives/peers.h"

typedef struct thread_pages thread_pages; /* threads.c */

typedef struct thread_group {
    atomic_int      owners;
    atomic_int      readers; /* see peers_device_ops */
    void           *shared;  /* control block and bounce buffers */
    thread_pages   *pending; /* made by index 0 for all to take; meetings order the access */
    pthread_mutex_t lock;    /* guards `worlds` */
    int             world_size;
    sherd_world   **worlds; /* [world_size] by rank; NULL before a world lives and after */
} thread_group;

typedef struct thread_world {
    sherd_world   world;
    sherdi_peers  peers;
    thread_group *group;
} thread_world;

/* Arguments of sherdi_threads_rank_create for one rank. */
typedef struct thread_params {
    const sherd_world_params *world;
    int                       rank;
    int                       is_spread; /* not all ranks have this rank's device */
    /* the split that makes the world, and sherdi_split_adopt; NULL: none */
    const struct sherdi_split *split;
    void (*adopt)(const struct sherdi_split *split, sherd_world *child);
} thread_params;

extern const sherdi_world_ops sherdi_threads_ops;

/** Creates the worlds of all ranks as threads of this process; `params` are checked already. */
sherd_status sherdi_threads_create(int world_size, const sherd_world_params *params,
                                   sherd_world **worlds_out);

/** Makes what the ranks share, with a number of owners; drop gives up some of them. */
sherd_status sherdi_threads_group_create(int world_size, int owners, thread_group **out);
void         sherdi_threads_group_drop(thread_group *group, int owners);
/** Creates the world of one rank, which stands in the group then, and takes over one ownership of
 *  the group, also if it fails. */
sherd_status sherdi_threads_rank_create(thread_group *group, const thread_params *params);

#endif
