/* See ending.h. The messages bypass the calls of the world (tell_ending), so a rank that never
 * arrives does not block collectives. */
#include "collectives/ending.h"

#include "base/clock.h"
#include "base/hash.h"
#include "collectives/listeners.h"

#include <stdlib.h>
#include <time.h>

/* The endings of a world. */
typedef struct world_endings {
    world_listener  common;   /* first */
    pthread_mutex_t lock;     /* guards the list and its entries */
    pthread_cond_t  has_news; /* another rank has spoken, or the world has failed */
    sherdi_ending  *first;
    uint64_t        num_opened; /* since the world was made; part of each key */
} world_endings;

static void endings_failed(sherd_world *world, world_listener *self)
{
    world_endings *endings = (world_endings *)self;

    (void)world;
    (void)pthread_mutex_lock(&endings->lock);
    (void)pthread_cond_broadcast(&endings->has_news);
    (void)pthread_mutex_unlock(&endings->lock);
}

/* It is dropped when no ending with that key is open (any more). */
static void endings_told(sherd_world *world, world_listener *self, uint64_t key, int is_agreed)
{
    world_endings *endings = (world_endings *)self;

    (void)world;
    (void)pthread_mutex_lock(&endings->lock);
    for (sherdi_ending *ending = endings->first; ending != NULL; ending = ending->next) {
        if (ending->key == key) {
            ending->num_agreed += is_agreed;
            ending->num_refused += !is_agreed;
        }
    }
    (void)pthread_cond_broadcast(&endings->has_news);
    (void)pthread_mutex_unlock(&endings->lock);
}

static void endings_drop(world_listener *self)
{
    world_endings *endings = (world_endings *)self;

    (void)pthread_cond_destroy(&endings->has_news);
    (void)pthread_mutex_destroy(&endings->lock);
    free(endings);
}

static const world_listener_ops ENDINGS_OPS = {
    .failed = endings_failed, .told = endings_told, .drop = endings_drop};

static world_endings *endings_of(const sherd_world *world)
{
    return (world_endings *)sherdi_world_listener(world, &ENDINGS_OPS);
}

sherd_status sherdi_world_endings_make(sherd_world *world)
{
    world_endings     *endings = endings_of(world);
    pthread_condattr_t clock;

    if (endings != NULL) {
        return SHERD_OK;
    }
    endings = calloc(1, sizeof(*endings));
    if (endings == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the endings of a world");
    }
    endings->common.ops = &ENDINGS_OPS;
    (void)pthread_mutex_init(&endings->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&endings->has_news, &clock);
    (void)pthread_condattr_destroy(&clock);
    sherdi_world_listen(world, &endings->common);
    return SHERD_OK;
}

int64_t sherdi_world_timeout_ns(const sherd_world *world)
{
    return world->timeout_ns;
}

void sherdi_world_ending_open(sherd_world *world, sherdi_ending *ending, uint64_t key)
{
    world_endings *endings = endings_of(world);

    (void)pthread_mutex_lock(&endings->lock);
    *ending        = (sherdi_ending){.key = sherdi_hash_u64(key, endings->num_opened++)};
    ending->next   = endings->first;
    endings->first = ending;
    (void)pthread_mutex_unlock(&endings->lock);
}

/* Waits until all others have agreed, one has refused, the world has failed, or the time is up.
 * Returns 1 if all others have agreed and none has refused. Call it under the lock. */
static int others_await(sherd_world *world, world_endings *endings, const sherdi_ending *ending,
                        int64_t until_ns)
{
    const struct timespec until = {.tv_sec  = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};

    while (ending->num_agreed < world->world_size - 1 && ending->num_refused == 0 &&
           !sherdi_world_has_failed(world) && sherdi_now_ns() < until_ns) {
        (void)pthread_cond_timedwait(&endings->has_news, &endings->lock, &until);
    }
    return ending->num_agreed == world->world_size - 1 && ending->num_refused == 0;
}

/* Waits in this way, removes the ending from the list, and returns whether all have agreed. */
static int others_wait(sherd_world *world, sherdi_ending *ending, int64_t most_ns)
{
    world_endings  *endings = endings_of(world);
    sherdi_ending **at      = &endings->first;
    int             is_agreed;

    (void)pthread_mutex_lock(&endings->lock);
    is_agreed = others_await(world, endings, ending, sherdi_now_ns() + most_ns);
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
