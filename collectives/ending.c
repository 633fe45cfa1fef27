/* Endings: the end of something that all ranks have. Each rank notifies the others when it reaches
 * the end, and waits for them up to a limit. The messages bypass the calls of the world
 * (tell_ending), so a rank that never arrives does not block collectives. */
#include "collectives/world_impl.h"

#include "base/clock.h"
#include "base/hash.h"

#include <time.h>

void sherdi_world_endings_init(world_endings *endings)
{
    pthread_condattr_t clock;

    (void)pthread_mutex_init(&endings->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&endings->has_news, &clock);
    (void)pthread_condattr_destroy(&clock);
}

void sherdi_world_endings_wake(world_endings *endings)
{
    (void)pthread_mutex_lock(&endings->lock);
    (void)pthread_cond_broadcast(&endings->has_news);
    (void)pthread_mutex_unlock(&endings->lock);
}

void sherdi_world_endings_fini(world_endings *endings)
{
    (void)pthread_cond_destroy(&endings->has_news);
    (void)pthread_mutex_destroy(&endings->lock);
}

int64_t sherdi_world_timeout_ns(const sherd_world *world)
{
    return world->timeout_ns;
}

void sherdi_world_ending_open(sherd_world *world, sherdi_ending *ending, uint64_t key)
{
    world_endings *endings = &world->endings;

    (void)pthread_mutex_lock(&endings->lock);
    *ending        = (sherdi_ending){.key = sherdi_hash_u64(key, endings->num_opened++)};
    ending->next   = endings->first;
    endings->first = ending;
    (void)pthread_mutex_unlock(&endings->lock);
}

void sherdi_world_ending_note(sherd_world *world, uint64_t key, int is_agreed)
{
    world_endings *endings = &world->endings;

    (void)pthread_mutex_lock(&endings->lock);
    for (sherdi_ending *ending = endings->first; ending != NULL; ending = ending->next) {
        if (ending->key == key) {
            ending->num_agreed += is_agreed;
            ending->num_refused += !is_agreed;
        }
    }
    (void)pthread_cond_broadcast(&endings->has_news);
    (void)pthread_mutex_unlock(&endings->lock);
    if (!is_agreed) {
        world_family *family = atomic_load(&world->family);

        if (family != NULL) {
            family->ops->refused(world, key);
        }
    }
}

/* Waits until all others have agreed, one has refused, the world has failed, or the time is up.
 * Returns 1 if all others have agreed and none has refused. Call it under the lock. */
static int others_await(sherd_world *world, const sherdi_ending *ending, int64_t until_ns)
{
    const struct timespec until = {.tv_sec  = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};

    while (ending->num_agreed < world->world_size - 1 && ending->num_refused == 0 &&
           !sherdi_world_has_failed(world) && sherdi_now_ns() < until_ns) {
        (void)pthread_cond_timedwait(&world->endings.has_news, &world->endings.lock, &until);
    }
    return ending->num_agreed == world->world_size - 1 && ending->num_refused == 0;
}

/* Waits in this way, removes the ending from the list, and returns whether all have agreed. */
static int others_wait(sherd_world *world, sherdi_ending *ending, int64_t most_ns)
{
    world_endings  *endings = &world->endings;
    sherdi_ending **at      = &endings->first;
    int             is_agreed;

    (void)pthread_mutex_lock(&endings->lock);
    is_agreed = others_await(world, ending, sherdi_now_ns() + most_ns);
    while (*at != ending) {
        at = &(*at)->next;
    }
    *at = ending->next;
    (void)pthread_mutex_unlock(&endings->lock);
    return is_agreed;
}

int sherdi_world_ending_close(sherd_world *world, sherdi_ending *ending, int is_agreed,
                              int64_t most_ns)
{
    int is_alone  = world->world_size == 1 || (world->ops->caps & SHERDI_WORLD_SIMULATES) != 0;
    int has_words = !is_alone && world->ops->tell_ending != NULL;
    int is_all;

    if (ending->key == 0) {
        return is_agreed;
    }
    if (has_words) {
        world->ops->tell_ending(world, ending->key, is_agreed);
    }
    is_all = others_wait(world, ending, is_agreed && has_words ? most_ns : 0) || is_alone;
    if (has_words && is_agreed && !is_all && most_ns > 0) {
        /* ranks that arrive later then preserve the same files as this rank */
        world->ops->tell_ending(world, ending->key, 0);
    }
    *ending = (sherdi_ending){0};
    return is_agreed && is_all;
}
