/* Splitting a world of threads. */
#include "collectives/split.h"
#include "collectives/threads.h"

static int group_is_spread(const sherdi_split *split)
{
    const thread_group *parents = ((const thread_world *)split->parent)->group;
    int                 is      = 0;

    for (int r = 1; r < split->world_size && sherdi_world_has_device(split->parent); r++) {
        is |= parents->worlds[split->ranks[r]]->device->index !=
              parents->worlds[split->ranks[0]]->device->index;
    }
    return is;
}

/* The first rank creates the memory that the threads of the group share, with a reference for each
 * rank of the group. */
sherd_status sherdi_threads_split(sherdi_split *split, sherd_world **out)
{
    thread_params rank = {
        .world = &split->params, .rank = split->rank, .split = split, .adopt = sherdi_split_adopt};
    thread_group *made   = NULL;
    thread_group *group  = NULL;
    sherd_world  *world  = NULL;
    sherd_status  status = SHERD_OK;

    if (split->rank == 0) {
        status = sherdi_threads_group_create(split->world_size, split->world_size, &made);
    }
    group  = made;
    status = sherdi_split_tell(split, status, (void *)&group, sizeof(group));
    if (status != SHERD_OK) {
        sherdi_threads_group_drop(made, split->world_size);
        return status;
    }
    if (split->world_size > 0) {
        rank.is_spread = group_is_spread(split);
        status         = sherdi_threads_rank_create(group, &rank);
        world          = status == SHERD_OK ? group->worlds[split->rank] : NULL;
    }
    status = sherdi_split_tell(split, status, NULL, 0);
    if (status == SHERD_OK && rank.is_spread) {
        world->device->ops->peers->reach(group->worlds, group->world_size, split->rank);
    }
    *out = world;
    return status;
}
