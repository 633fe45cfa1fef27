/* Starts and joins the threads that are ranks. See ranks.h. */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct rank_thread {
    pthread_t    thread;
    sherd_world *world;
    ranks_fn     run;
    void        *ctx;
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *rank = arg;

    rank->run(rank->world, rank->ctx);
    sherd_world_destroy(rank->world);
    return NULL;
}

/* Starts all ranks. If one cannot start, the world is aborted, so that the others return. */
static sherd_status ranks_start(rank_thread *ranks, int count)
{
    int          started = 0;
    sherd_status status  = SHERD_OK;

    while (started < count &&
           pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]) == 0) {
        started++;
    }
    if (started < count) {
        status = SHERD_E_NOMEM;
        sherd_world_abort(ranks[started].world, "a rank's thread could not be started");
    }
    for (int r = started; r < count; r++) {
        sherd_world_destroy(ranks[r].world);
    }
    for (int r = 0; r < started; r++) {
        (void)pthread_join(ranks[r].thread, NULL);
    }
    return status;
}

sherd_status ranks_run(int count, const sherd_world_params *params, ranks_fn run, void *ctx)
{
    rank_thread  *ranks  = calloc((size_t)count, sizeof(*ranks));
    sherd_world **worlds = calloc((size_t)count, sizeof(sherd_world *));
    sherd_status  status = SHERD_E_NOMEM;

    if (ranks != NULL && worlds != NULL) {
        status = sherd_world_threads_with(count, params, worlds);
    }
    if (status == SHERD_OK) {
        for (int r = 0; r < count; r++) {
            ranks[r] = (rank_thread){.world = worlds[r], .run = run, .ctx = ctx};
        }
        status = ranks_start(ranks, count);
    }
    free(ranks);
    free(worlds);
    return status;
}
