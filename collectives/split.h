/* Splitting a world (the parent) into worlds of some of its ranks: the arguments of a transport's
 * split. split.c has the call, and family.c the connection of parent and child afterwards. All ranks
 * of the parent take part, whichever group they are in. Over the parent they exchange the data that a transport needs to make the world of each group. */
#ifndef SHERDI_COLLECTIVES_SPLIT_H
#define SHERDI_COLLECTIVES_SPLIT_H

#include "collectives/world_impl.h"

/* Most bytes that the first rank of a group sends to the others at a time. */
#define SPLIT_TOLD_BYTES ((size_t)1280)

typedef struct sherdi_split {
    sherd_world       *parent;
    int                rank;       /* in the group */
    int                world_size; /* of the group; 0: this rank is in none */
    int               *ranks;      /* [world_size] ranks of the parent, in the group's order */
    sherd_world_params params;     /* the parent's, which the group's world gets too */
    int first, stride; /* of a group of an engine: ranks of the parent, for messages; 0: none */
    int is_over;       /* the ranks have agreed that the split failed */
} sherdi_split;

/** Agrees on a status. All ranks of the parent call it with their own status (`here`), and all get
 *  the same result: SHERD_OK, or the failure that is the cause, with its rank and message. On
 *  success the `data` of the first rank of each group has replaced that of the group's other ranks.
 *  `len_bytes` is at most SPLIT_TOLD_BYTES and the same on all ranks. Allocates nothing. */
sherd_status sherdi_split_tell(sherdi_split *split, sherd_status here, void *data,
                               size_t len_bytes);

/** A transport's split calls it once for the world that it makes, after sherdi_world_init and
 *  before anything can wait on that world. From then on `child` fails when the parent fails, or
 *  when a rank of the parent cannot go on with the split. */
void sherdi_split_adopt(const sherdi_split *split, sherd_world *child);

/** Gives the parameters with which a world is made that is like another one. */
void sherdi_split_params(const sherd_world *parent, sherd_world_params *out);

/** The split of a world of threads. */
sherd_status sherdi_threads_split(sherdi_split *split, sherd_world **out);

#endif
