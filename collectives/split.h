/* Worlds of some ranks of another world, its parent: split.c has the call and family.c what is left between the two
 * when it is over. All ranks of the parent take part, whichever group they are of; they tell each other what a
 * transport needs to make a world of each group by the parent's own exchange. */
#ifndef SHERDI_COLLECTIVES_SPLIT_H
#define SHERDI_COLLECTIVES_SPLIT_H

#include "collectives/world_impl.h"

/* What the first rank of a group may tell the others at most. */
#define SPLIT_TOLD_BYTES ((size_t)1280)

typedef struct sherdi_split {
    sherd_world       *parent;
    int                rank;       /* in the group */
    int                world_size; /* of the group; 0: this rank is of none */
    int               *ranks;      /* [world_size] of the parent, in the order of the group */
    sherd_world_params params;     /* those of the parent, which the world of the group has too */
    int                is_over;    /* the ranks have agreed that it failed */
} sherdi_split;

/** The ranks of the parent, all of them, come with how each fared up to here and leave with how they fared
 *  together: with the first failure, its rank and its sentence. On success `data` of the first rank of a group has
 *  reached the others of the group; `len_bytes` is SPLIT_TOLD_BYTES at most and the same on all. Allocates nothing. */
sherd_status sherdi_split_tell(sherdi_split *split, sherd_status here, void *data,
                               size_t len_bytes);

/** Of a transport's split, for the world that it makes: once, after sherdi_world_init and before there is anything that
 *  waits. From then on a failure of the parent, and a rank of the group that cannot go on, fail `child`. */
void sherdi_split_adopt(const sherdi_split *split, sherd_world *child);

#endif
