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

/* What the summary says of the beginning of a run. */
typedef struct beginning {
    long     step;
    uint64_t sequences;
    double   loss, validation;
} beginning;

/* Newcomers learn it from rank 0, in the turn that has taken them in. */
static sherd_status beginning_tell(trainer *t)
{
    beginning first = {.step       = t->first_step,
                       .sequences  = t->first_sequences,
                       .loss       = t->first_loss,
                       .validation = t->first_validation};

    TRY(sherd_world_broadcast(t->world, &first, sizeof(first), 0));
    t->first_step       = first.step;
    t->first_sequences  = first.sequences;
    t->first_loss       = first.loss;
    t->first_validation = first.validation;
    return SHERD_OK;
}

/* Sets the position to that of the engine's state. */
static sherd_status position_take(trainer *t)
{
    const saves_position *anchor = &t->place.anchor;
    sherd_share           share;

    sherd_share_init(&share);
    TRY(sherd_step_share(t->engine, &share));
    t->sequences = (uint64_t)share.window_first * (uint64_t)t->info.micro_batch_size;
    t->step      = anchor->step +
              (long)((int64_t)(t->sequences - anchor->sequences) / t->info.train_batch_size);
    return SHERD_OK;
}

/* Finds how far the run is, from what came with the state. A step is to come before this process
 * ends. */
static sherd_status newcomer_position(trainer *t)
{
    TRY(saves_mark_read(&t->saved, &t->place.anchor));
    TRY(position_take(t));
    t->first_step      = t->step - 1;
    t->first_sequences = t->sequences - (uint64_t)t->info.train_batch_size;
    t->place.told      = t->step;
    t->place.updates   = t->info.step;
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
    return newcomer_position(t);
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

sherd_status trainer_turn(trainer *t)
{
    sherd_move_report move;
    sherd_world      *next   = NULL;
    int               before = t->world_size;
    sherd_status      status;

    if (t->place.is_new) { /* the turn that has taken it in */
        t->place.is_new = 0;
        return beginning_tell(t);
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
        TRY(beginning_tell(t));
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

/* Returns whether this rank has not reported the step that the state has. A rank 0 may have died
 * before it had written what the others took for reported: then it is not in the log. */
static int has_untold(const trainer *t)
{
    return t->place.told < t->step || (t->r != NULL && t->o.log_path != NULL &&
                                       report_last_step(t->r) < t->step && t->step > t->first_step);
}

/* Makes that step the queued one, if a survivor has not reported it. Its report is not complete
 * where the call that should have set it was ended by the loss. */
static sherd_status untold_take(trainer *t)
{
    double       untold = has_untold(t);
    queued_step *q      = &t->queued;

    TRY(sherd_world_sum_f64(t->world, &untold, 1));
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
    char lost[256] = "", who[300];
    int  len       = 0;

    if (t->rank != 0) {
        return SHERD_OK;
    }
    for (int r = 0; r < loss->before && len < 240; r++) {
        if (all[r] == 0) {
            len += snprintf(lost + len, sizeof(lost) - (size_t)len, "%s%d", len > 0 ? ", " : "", r);
        }
    }
    loss->lost = lost;
    if (len == 0) {
        (void)snprintf(who, sizeof(who), "newcomers are lost");
    } else {
        (void)snprintf(who, sizeof(who), "rank %s of %d lost", lost, loss->before);
    }
    report_say(t->r, "%s: %d rank%s after step %ld, %.1f MB moved in %.3f s, %.3f s in all", who,
               loss->after, loss->after == 1 ? " goes on" : "s go on", loss->step,
               1e-6 * (double)loss->move.moved_bytes, loss->move.seconds, loss->all_s);
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
    t->place.is_new = 0;
    all[old_rank]   = 1; /* the others are lost */
    TRY(sherd_world_sum_f64(t->world, all, (size_t)loss->before));
    TRY(position_take(t));
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
