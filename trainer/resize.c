/* Another number of ranks while the training goes on: threads leave, or start. The engine moves to
 * the world of those that train afterwards; the next step has the same global batch. turns.c is for
 * processes. */
#include "trainer_impl.h"

#include "ranks.h"
#include "try.h"

#include <stdlib.h>

/* What rank 0 prepares for all. It lasts until the engines have moved. */
struct resize {
    int          ranks;
    sherd_world *worlds[OPTIONS_MOST_RANKS];
    trainer      like; /* the rank whose position newcomers take over */
};

/* What the ranks wait for: whether rank 0 has made the plan. */
static sherd_status plan_agree(trainer *t, sherd_status status)
{
    double failed = status == SHERD_OK ? 0 : 1;

    TRY(sherd_world_sum_f64(t->world, &failed, 1));
    return failed == 0 ? SHERD_OK
           : status != SHERD_OK
               ? status
               : trainer_fail(SHERD_E_NOMEM, "rank 0 could not make a world of %d ranks",
                              t->place.wanted);
}

/* One rank that comes new: it declares the model, and gets everything else by the move. */
static sherd_status newcomer_open(trainer *t)
{
    sherd_world *alone = NULL;
    sherd_status status;

    TRY(sherd_world_self(&alone));
    status = sherd_engine_create(alone, t->job->config, &t->engine);
    sherd_world_destroy(alone);
    TRY(status);
    TRY(trainer_declare(t, t->engine));
    TRY(sherd_engine_move(t->engine, t->world));
    TRY(trainer_model_open(t));
    return SHERD_OK;
}

static void newcomer_run(sherd_world *world, void *ctx)
{
    trainer_job *job = ctx;
    trainer      t   = job->resize->like; /* which lasts until the move */
    sherd_status status;

    t.world = t.place.first_world = world;
    t.rank                        = sherd_world_rank(world);
    t.world_size                  = sherd_world_size(world);
    t.engine                      = NULL;
    t.passes                      = NULL;
    t.threads                     = NULL;
    t.tokens                      = NULL;
    t.r                           = NULL;
    t.has_batch                   = 0;
    t.saved.r                     = NULL;
    t.saved.run                   = t.run;
    t.o.is_first_validated        = 0;
    status                        = newcomer_open(&t);
    if (status == SHERD_OK) {
        t.saved.world  = t.world;
        t.saved.engine = t.engine;
        status         = trainer_go_on(&t);
    }
    trainer_end(&t, status);
    if (t.world != world) {
        sherd_world_destroy(t.world);
    }
}

/* Rank 0: makes the worlds, and starts those that come new. */
static sherd_status plan_make(trainer *t)
{
    struct resize *plan = calloc(1, sizeof(*plan));
    sherd_status   status;

    if (plan == NULL) {
        return trainer_fail(SHERD_E_NOMEM, "out of memory");
    }
    plan->ranks = t->place.wanted;
    plan->like  = *t;
    status      = sherd_world_threads_with(plan->ranks, t->job->params, plan->worlds);
    if (status != SHERD_OK) {
        free(plan);
        return status;
    }
    t->job->resize = plan;
    for (int r = t->world_size; status == SHERD_OK && r < plan->ranks; r++) {
        status = ranks_add(t->job->ranks, plan->worlds[r], newcomer_run);
    }
    if (status != SHERD_OK) { /* those that have started wait for the move */
        sherd_world_abort(plan->worlds[0], "a thread for a new rank could not be started");
        return trainer_fail(status, "a thread for a new rank could not be started");
    }
    return SHERD_OK;
}

sherd_status trainer_resize_tell(trainer *t, const sherd_move_report *move)
{
    if (t->r == NULL) {
        return SHERD_OK;
    }
    report_say(t->r, "%d ranks after step %ld, before %d: %.1f MB moved in %.3f s", move->new_size,
               t->step, move->old_size, 1e-6 * (double)move->moved_bytes, move->seconds);
    return report_resize_write(t->r, t->step, move) == 0
               ? SHERD_OK
               : trainer_fail(SHERD_E_IO, "the log cannot be written");
}

sherd_status trainer_place_take(trainer *t, sherd_world *world)
{
    sherd_world *old = t->world;

    t->world       = world;
    t->saved.world = world;
    t->rank        = sherd_world_rank(world);
    t->world_size  = sherd_world_size(world);
    if (old != t->place.first_world) {
        sherd_world_destroy(old);
    }
    return sherd_engine_query(t->engine, &t->info);
}

sherd_status trainer_resize(trainer *t)
{
    sherd_world      *next   = NULL;
    struct resize    *plan   = NULL;
    sherd_status      status = t->rank == 0 ? plan_make(t) : SHERD_OK;
    sherd_move_report move;

    TRY(plan_agree(t, status));
    plan = t->job->resize;
    next = t->rank < plan->ranks ? plan->worlds[t->rank] : NULL;
    TRY(sherd_engine_move(t->engine, next));
    /* the move is collective: newcomers have read the plan */
    if (t->rank == 0) {
        t->job->resize = NULL;
        free(plan);
    }
    if (next == NULL) {
        t->place.has_left = 1;
        return SHERD_OK;
    }
    TRY(trainer_place_take(t, next));
    sherd_move_report_init(&move);
    TRY(sherd_move_query(t->engine, &move));
    return trainer_resize_tell(t, &move);
}
