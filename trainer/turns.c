/* Ranks that are processes, and come, leave or are lost while the training goes on (sherd launch
 * --elastic). The launcher starts and counts them; sherd_world_turn says between two steps who goes
 * on. resize.c is for threads. */
#include "trainer_impl.h"

#include "models/clock.h"
#include "try.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most moves of as many survivors, if they end with the loss of a rank. */
#define MOST_TRIES 3

int trainer_has_turns(const trainer *t)
{
    return t->job->is_elastic && t->job->ranks == NULL;
}

/* ---- the position in the run ---- */

/* What newcomers do not know of the run. Rank 0 has been there longer. */
typedef struct beginning {
    long     step;
    uint64_t sequences;
    double   loss, validation;
} beginning;

static sherd_status beginning_tell(trainer *t, int root)
{
    beginning first = {.step       = t->first_step,
                       .sequences  = t->first_sequences,
                       .loss       = t->first_loss,
                       .validation = t->first_validation};

    TRY(sherd_world_broadcast(t->world, &first, sizeof(first), root));
    t->first_step       = first.step;
    t->first_sequences  = first.sequences;
    t->first_loss       = first.loss;
    t->first_validation = first.validation;
    return SHERD_OK;
}

/* Sets the position to that of the engine's state. */
static sherd_status position_take(trainer *t)
{
    sherd_share share;

    sherd_share_init(&share);
    TRY(sherd_step_share(t->engine, &share));
    t->sequences = (uint64_t)share.window_first * (uint64_t)t->info.micro_batch_size;
    t->step      = t->first_step +
              (long)((t->sequences - t->first_sequences) / (uint64_t)t->info.train_batch_size);
    return SHERD_OK;
}

/* ---- newcomers ---- */

/* Declares the model, waits for the ranks, and gets everything else by the move. */
static sherd_status newcomer_open(trainer *t, const sherd_world_params *params)
{
    sherd_world *alone = NULL;
    sherd_status status;

    TRY(sherd_world_self(&alone));
    status = sherd_engine_create(alone, t->job->config, &t->engine);
    sherd_world_destroy(alone);
    TRY(status);
    TRY(trainer_declare(t, t->engine));
    TRY(trainer_run_describe(t));
    TRY(sherd_world_join(params, &t->world));
    if (t->world == NULL) {
        t->place.has_left = 1; /* it is not needed */
        return SHERD_OK;
    }
    t->rank       = sherd_world_rank(t->world);
    t->world_size = sherd_world_size(t->world);
    return sherd_engine_move(t->engine, t->world);
}

/* Does so until it is a rank. A death among the others may end a move, not the job. */
static sherd_status newcomer_become_rank(trainer *t, const sherd_world_params *params)
{
    sherd_status status = newcomer_open(t, params);

    while (status == SHERD_E_PEER_LOST && t->world != NULL) {
        sherd_engine_destroy(t->engine);
        sherd_world_destroy(t->world);
        t->engine = NULL;
        t->world  = NULL;
        status    = newcomer_open(t, params);
    }
    TRY(status);
    if (t->place.has_left) {
        return SHERD_OK;
    }
    TRY(trainer_model_open(t));
    trainer_saves_init(t);
    t->place.is_new = 1;
    return SHERD_OK;
}

void trainer_join(trainer_job *job, const sherd_world_params *params)
{
    trainer t = {
        .job = job, .o = *job->o, .start_s = clock_now_s(), .last_validation = (double)NAN};
    sherd_status status;

    t.o.is_first_validated = 0;
    status                 = newcomer_become_rank(&t, params);
    if (status == SHERD_OK && !t.place.has_left) {
        job->on_loop();
        status = trainer_go_on(&t);
    }
    trainer_end(&t, status);
    sherd_world_destroy(t.world);
}

/* ---- ranks ---- */

/* A newcomer learns where the run is, from rank 0, in the turn that has taken it in. */
static sherd_status newcomer_learn(trainer *t)
{
    TRY(beginning_tell(t, 0));
    TRY(position_take(t));
    t->place.told    = t->step;
    t->place.updates = t->info.step;
    t->place.is_new  = 0;
    return SHERD_OK;
}

sherd_status trainer_turn(trainer *t)
{
    sherd_move_report move;
    sherd_world      *next   = NULL;
    int               before = t->world_size;
    sherd_status      status;

    if (t->place.is_new) {
        return newcomer_learn(t);
    }
    TRY(sherd_world_turn(t->world, &next));
    if (next == t->world) {
        return SHERD_OK;
    }
    status = saves_settle(&t->saved); /* newcomers know nothing of a save that is under way */
    if (status == SHERD_OK) {
        status = sherd_engine_move(t->engine, next);
    }
    if (status != SHERD_OK) {
        sherd_world_destroy(next);
        return status;
    }
    if (next == NULL) {
        t->place.has_left = 1;
        return SHERD_OK;
    }
    TRY(trainer_place_take(t, next));
    if (t->world_size > before) {
        TRY(beginning_tell(t, 0));
    }
    sherd_move_report_init(&move);
    TRY(sherd_move_query(t->engine, &move));
    return trainer_resize_tell(t, &move);
}

/* ---- losses ---- */

/* Moves the engine to the world of the survivors. */
static sherd_status survivors_move(trainer *t, sherd_world *next)
{
    char         what[512], text[SAVES_ADVICE_BYTES];
    sherd_status status;

    if (sherd_world_size(next) < t->o.least_ranks) {
        return trainer_fail(
            SHERD_E_STATE, "%d of %d ranks are left, and --elastic wants at least %d; %s",
            sherd_world_size(next), t->world_size, t->o.least_ranks, saves_advice(&t->o, text));
    }
    t->place.tries      = sherd_world_size(next) == t->place.tried_size ? t->place.tries + 1 : 1;
    t->place.tried_size = sherd_world_size(next);
    status              = sherd_engine_move(t->engine, next);
    if (status != SHERD_OK && (status != SHERD_E_PEER_LOST || t->place.tries == MOST_TRIES)) {
        status = status == SHERD_E_PEER_LOST ? SHERD_E_STATE : status;
        (void)snprintf(what, sizeof(what), "%s", sherd_last_error());
        return trainer_fail(status, "%d of %d ranks are left, and cannot go on: %s; %s",
                            sherd_world_size(next), t->world_size, what, saves_advice(&t->o, text));
    }
    return status;
}

/* What a survivor is to the others. */
enum { IS_LOST = 0, IS_NEW = 1, IS_THERE = 2 };

/* Finds who is lost, and tells those that are new where the run began: `all` is by the ranks before
 * the loss. */
static sherd_status survivors_meet(trainer *t, const report_loss *loss, int old_rank, double *all)
{
    int root = 0;

    all[old_rank] = t->place.is_new ? IS_NEW : IS_THERE;
    TRY(sherd_world_sum_f64(t->world, all, (size_t)loss->before));
    for (int r = 0; r < loss->before && all[r] != IS_THERE; r++) {
        root += all[r] != IS_LOST;
    }
    if (root == t->world_size) {
        return trainer_fail(SHERD_E_STATE,
                            "all ranks but newcomers are lost, before these knew how "
                            "far the run is");
    }
    TRY(beginning_tell(t, root));
    return position_take(t);
}

/* Returns whether this rank has not reported the step that the state has. A rank 0 may have died
 * before it had written what the others took for reported: then it is not in the log. */
static int has_untold(const trainer *t)
{
    return !t->place.is_new && (t->place.told < t->step ||
                                (t->r != NULL && t->o.log_path != NULL &&
                                 report_last_step(t->r) < t->step && t->step > t->first_step));
}

/* Makes that step the queued one, if a survivor has not reported it. Its report is not complete
 * where the call that should have set it was ended by the loss. */
static sherd_status untold_take(trainer *t)
{
    double       untold = has_untold(t);
    queued_step *q      = &t->queued;

    TRY(sherd_world_sum_f64(t->world, &untold, 1));
    if (t->place.is_new) {
        t->place.told    = t->step;
        t->place.updates = t->info.step;
        t->place.is_new  = 0;
    }
    if (untold > 0) {
        q->step         = t->step;
        q->sequences    = t->sequences;
        q->is_untold    = 1;
        q->is_recovered = 1;
        memset(&q->sums, 0, sizeof(q->sums));
        q->sums.stopping = *t->job->is_stopping ? 1.0 : 0.0;
    }
    return SHERD_OK;
}

/* Tells the user, and the log. */
static sherd_status loss_tell(trainer *t, report_loss *loss, const double *all)
{
    char lost[256] = "";
    int  len       = 0;

    if (t->rank != 0) {
        return SHERD_OK;
    }
    for (int r = 0; r < loss->before && len < 240; r++) {
        if (all[r] == IS_LOST) {
            len += snprintf(lost + len, sizeof(lost) - (size_t)len, "%s%d", len > 0 ? ", " : "", r);
        }
    }
    loss->lost = lost;
    report_say(t->r,
               "rank%s %s of %d lost: %d ranks go on after step %ld, %.1f MB moved in %.3f s, "
               "%.3f s in all",
               loss->before - loss->after > 1 ? "s" : "", lost, loss->before, loss->after,
               loss->step, 1e-6 * (double)loss->move.moved_bytes, loss->move.seconds, loss->all_s);
    return report_loss_write(t->r, loss) == 0
               ? SHERD_OK
               : trainer_fail(SHERD_E_IO, "the log cannot be written");
}

/* Drops what is under way in the window. */
static sherd_status window_drop(trainer *t)
{
    double losses;

    (void)trainer_fail(SHERD_OK, "%s", "");
    t->has_batch        = 0;
    t->queued.is_untold = 0;
    saves_drop(&t->saved);
    passes_losses_close(t->passes);
    return passes_losses_take(t->passes, &losses);
}

/* Says what was lost, and goes on; `all` has room for the ranks before the loss. */
static sherd_status survivors_go_on(trainer *t, report_loss *loss, int old_rank, double start_s,
                                    double *all)
{
    TRY(survivors_meet(t, loss, old_rank, all));
    TRY(t->rank == 0 && t->r == NULL ? trainer_report_take(t) : SHERD_OK);
    TRY(untold_take(t));
    sherd_move_report_init(&loss->move);
    TRY(sherd_move_query(t->engine, &loss->move));
    loss->after = t->world_size;
    loss->step  = t->step;
    loss->all_s = clock_now_s() - start_s;
    TRY(loss_tell(t, loss, all));
    t->place.tried_size = 0;
    return SHERD_OK;
}

sherd_status trainer_recover(trainer *t)
{
    report_loss  loss  = {.before = t->world_size};
    double       start = clock_now_s();
    int          rank  = t->rank;
    sherd_world *next  = NULL;
    double      *all;
    sherd_status status;

    TRY(window_drop(t));
    status = sherd_world_shrink(t->world, &next);
    if (status != SHERD_OK) { /* also if the others have gone on without this rank */
        return trainer_fail(SHERD_E_STATE, "%s", sherd_last_error());
    }
    status = survivors_move(t, next);
    if (status != SHERD_OK) {
        sherd_world_destroy(next);
        return status;
    }
    TRY(trainer_place_take(t, next));
    all = calloc((size_t)loss.before, sizeof(*all));
    if (all == NULL) {
        return trainer_fail(SHERD_E_NOMEM, "out of memory");
    }
    status = survivors_go_on(t, &loss, rank, start, all);
    free(all);
    return status;
}
