/* See listeners.h. The core calls the listeners of a world at its failure and at its end. */
#include "collectives/listeners.h"

#include "collectives/threads.h"

void sherdi_world_listen(sherd_world *world, world_listener *listener)
{
    listener->next = atomic_load(&world->listeners);
    atomic_store(&world->listeners, listener);
}

world_listener *sherdi_world_listener(const sherd_world *world, const world_listener_ops *ops)
{
    world_listener *listener = atomic_load(&world->listeners);

    while (listener != NULL && listener->ops != ops) {
        listener = listener->next;
    }
    return listener;
}

void sherdi_world_told(sherd_world *world, uint64_t key, int is_agreed)
{
    for (world_listener *l = atomic_load(&world->listeners); l != NULL; l = l->next) {
        if (l->ops->told != NULL) {
            l->ops->told(world, l, key, is_agreed);
        }
    }
}

void sherdi_threads_tell_ending(sherd_world *world, uint64_t key, int is_agreed)
{
    thread_group *group = ((thread_world *)world)->group;

    (void)pthread_mutex_lock(&group->lock);
    for (int r = 0; r < group->world_size; r++) {
        if (group->worlds[r] != NULL && group->worlds[r] != world) {
            sherdi_world_told(group->worlds[r], key, is_agreed);
        }
    }
    (void)pthread_mutex_unlock(&group->lock);
}
