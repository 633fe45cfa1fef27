/* Starts and joins the threads that are ranks. See ranks.h. */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct rank_thread {
    pthread_t           thread;
    sherd_world        *world;
    ranks_fn            run;
    void               *ctx;
    struct rank_thread *next;
} rank_thread;

struct ranks {
    pthread_mutex_t lock;
    rank_thread    *first; /* not joined yet; under `lock` */
    void           *ctx;
};

static void *rank_main(void *arg)
{
    rank_thread *rank = arg;

    rank->run(rank->world, rank->ctx);
    sherd_world_destroy(rank->world);
    return NULL;
}

ranks *ranks_create(void *ctx)
{
    ranks *all = calloc(1, sizeof(*all));

    if (all != NULL) {
        (void)pthread_mutex_init(&all->lock, NULL);
        all->ctx = ctx;
    }
    return all;
}

sherd_status ranks_add(ranks *all, sherd_world *world, ranks_fn run)
{
    rank_thread *rank = malloc(sizeof(*rank));

    if (rank == NULL) {
        return SHERD_E_NOMEM;
    }
    *rank = (rank_thread){.world = world, .run = run, .ctx = all->ctx};
    (void)pthread_mutex_lock(&all->lock);
    if (pthread_create(&rank->thread, NULL, rank_main, rank) != 0) {
        (void)pthread_mutex_unlock(&all->lock);
        free(rank);
        return SHERD_E_NOMEM;
    }
    rank->next = all->first;
    all->first = rank;
    (void)pthread_mutex_unlock(&all->lock);
    return SHERD_OK;
}

void ranks_join(ranks *all)
{
    for (;;) {
        rank_thread *rank;

        (void)pthread_mutex_lock(&all->lock);
        rank       = all->first;
        all->first = rank == NULL ? NULL : rank->next;
        (void)pthread_mutex_unlock(&all->lock);
        if (rank == NULL) {
            break;
        }
        (void)pthread_join(rank->thread, NULL);
        free(rank);
    }
    (void)pthread_mutex_destroy(&all->lock);
    free(all);
}

/* Starts all ranks. If one cannot start, the world is aborted, so that the others return. */
static sherd_status ranks_start(ranks *all, int count, sherd_world **worlds, ranks_fn run)
{
    int          started = 0;
    sherd_status status  = SHERD_OK;

    while (started < count && status == SHERD_OK) {
        status = ranks_add(all, worlds[started], run);
        started += status == SHERD_OK;
    }
    if (started < count) {
        sherd_world_abort(worlds[started], "a rank's thread could not be started");
    }
    for (int r = started; r < count; r++) {
        sherd_world_destroy(worlds[r]);
    }
    return status;
}

sherd_status ranks_run(ranks *all, int count, const sherd_world_params *params, ranks_fn run)
{
    sherd_world **worlds = calloc((size_t)count, sizeof(sherd_world *));
    sherd_status  status = SHERD_E_NOMEM;

    if (all != NULL && worlds != NULL) {
        status = sherd_world_threads_with(count, params, worlds);
    }
    if (status == SHERD_OK) {
        status = ranks_start(all, count, worlds, run);
    }
    if (all != NULL) {
        ranks_join(all);
    }
    free(worlds);
    return status;
}
