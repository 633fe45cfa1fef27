/* See listeners.h. The core calls the listeners of a world at its failure and at its end. */
#include "collectives/listeners.h"

#include "collectives/threads.h"

static void company_failed(sherd_world *world)
{
    for (world_listener *l = atomic_load(&world->listeners); l != NULL; l = l->next) {
        l->ops->failed(world, l);
    }
}

/* Leaves the family of the world's parent, if it has one and has not left it yet. */
static void company_leave(sherd_world *world)
{
    if (world->kin != NULL) {
        world->kin->ops->leave(world);
    }
}

static void company_drop(sherd_world *world)
{
    world_listener *listener = atomic_load(&world->listeners);

    company_leave(world);
    while (listener != NULL) {
        world_listener *next = listener->next;

        listener->ops->drop(listener);
        listener = next;
    }
}

const world_company_ops sherdi_world_company = {company_failed, company_leave, company_drop};

void sherdi_world_listen(sherd_world *world, world_listener *listener)
{
    listener->next = atomic_load(&world->listeners);
    atomic_store(&world->listeners, listener);
    world->company = &sherdi_world_company;
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
