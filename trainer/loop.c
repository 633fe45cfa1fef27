/* The steps of one rank: micro-batches, validation, and what is reported and saved of each. */
#include "trainer_impl.h"

#include "models/clock.h"
#include "memory.h"
#include "try.h"

#include <math.h>
#include <string.h>

#define MEMORY_SECONDS 10.0

/* The micro-batches of a step, on all ranks together. */
static long step_micros(const trainer *t)
{
    return t->info.train_batch_size / t->info.micro_batch_size;
}

sherd_status trainer_losses_take(trainer *t, double *sum_out)
{
    sherd_status status = passes_losses_take(t->passes, sum_out);

    return status == SHERD_OK ? status : trainer_fail(status, "%s", passes_why(t->passes));
}

/* Computes the mean loss over the same micro-batches whatever the number of ranks. A rank without a
 * remaining micro-batch takes part in the pass, which is collective, and does not count its
 * loss. */
static sherd_status validate(trainer *t, double *loss_out)
{
    double sum = 0.0;

    for (int i = 0; i < VALIDATION_BATCHES; i += t->world_size) {
        int    number = i + t->rank;
        double loss;

        if (order_validate(&t->data, (uint64_t)(number < VALIDATION_BATCHES ? number : 0),
                           VALIDATION_BATCHES, t->tokens,
                           t->tokens + trainer_micro_tokens(t)) != 0) {
            return trainer_data_fail(t);
        }
        TRY(passes_eval(t->passes, t->tokens, t->tokens + trainer_micro_tokens(t)));
        TRY(trainer_losses_take(t, &loss));
        sum += number < VALIDATION_BATCHES ? loss : 0.0;
    }
    *loss_out = 0.0;
    if (sherd_world_sum_f64(t->world, &sum, 1) != SHERD_OK) {
        return SHERD_E_PEER_LOST;
    }
    *loss_out = sum / VALIDATION_BATCHES;
    return SHERD_OK;
}

/* Asks for the held memory after each step if no later step is queued, else once in MEMORY_SECONDS:
 * a GPU may answer late, even after the queued work. */
static void memory_take(trainer *t, int is_last)
{
    double              now = clock_now_s();
    sherd_memory_report memory;

    if (!is_last && t->memory_asked_s > 0.0 && now - t->memory_asked_s < MEMORY_SECONDS) {
        return;
    }
    t->memory_asked_s         = now;
    memory                    = memory_of(t->engine);
    t->figures.memory_planned = memory.total_planned;
    t->figures.memory_held    = memory.total_held;
}

static void traffic_counted(const sherd_traffic_report *r, uint64_t out[REPORT_MEDIA])
{
    out[REPORT_WIRE]    = r->wire_counted;
    out[REPORT_DOWN]    = r->down_counted;
    out[REPORT_UP]      = r->up_counted;
    out[REPORT_READ]    = r->read_counted;
    out[REPORT_WRITTEN] = r->written_counted;
    out[REPORT_BETWEEN] = r->between_counted;
}

static void traffic_planned(const sherd_traffic_report *r, uint64_t out[REPORT_MEDIA])
{
    uint64_t n = (uint64_t)r->accumulation;

    out[REPORT_WIRE]    = n * r->wire_micro_planned + r->wire_step_planned;
    out[REPORT_DOWN]    = n * r->down_micro_planned + r->down_step_planned;
    out[REPORT_UP]      = n * r->up_micro_planned + r->up_step_planned;
    out[REPORT_READ]    = n * r->read_micro_planned + r->read_step_planned;
    out[REPORT_WRITTEN] = n * r->written_micro_planned + r->written_step_planned;
    out[REPORT_BETWEEN] = n * r->between_micro_planned + r->between_step_planned;
}

/* Sets this rank's terms of the sums: its traffic between the two reports. */
static void traffic_sum(const queued_step *q, step_sums *sums)
{
    uint64_t first[REPORT_MEDIA], last[REPORT_MEDIA], planned[REPORT_MEDIA];

    traffic_counted(&q->before, first);
    traffic_counted(&q->after, last);
    traffic_planned(&q->after, planned);
    for (int i = 0; i < REPORT_MEDIA; i++) {
        sums->counted[i] = (double)(last[i] - first[i]);
        sums->planned[i] = (double)planned[i];
        /* of what goes to other hosts, transports other than MPI know the plan alone */
        if (last[i] - first[i] != planned[i] && (i != REPORT_BETWEEN || last[i] > 0)) {
            sums->off_plan = 1.0;
        }
    }
}

/* Adds to a report of traffic. */
static void traffic_add(sherd_traffic_report *r, const uint64_t bytes[REPORT_MEDIA], int sign)
{
    uint64_t *to[REPORT_MEDIA] = {
        [REPORT_WIRE] = &r->wire_counted,       [REPORT_DOWN] = &r->down_counted,
        [REPORT_UP] = &r->up_counted,           [REPORT_READ] = &r->read_counted,
        [REPORT_WRITTEN] = &r->written_counted, [REPORT_BETWEEN] = &r->between_counted};

    for (int i = 0; i < REPORT_MEDIA; i++) {
        *to[i] += sign > 0 ? bytes[i] : 0 - bytes[i];
    }
}

/* Waits for the update of the queued step. The traffic of a queued update counts when a call has
 * waited for it: here, and so for its own step. */
static sherd_status step_wait(trainer *t, queued_step *q)
{
    sherd_traffic_report reports[2];
    uint64_t             bytes[2][REPORT_MEDIA];

    for (int i = 0; i < 2; i++) {
        sherd_traffic_report_init(&reports[i]);
        TRY(sherd_engine_traffic(t->engine, &reports[i]));
        traffic_counted(&reports[i], bytes[i]);
        if (i == 0) {
            TRY(sherd_step_wait(t->engine, &q->report));
        }
    }
    for (int i = 0; i < REPORT_MEDIA; i++) {
        bytes[1][i] -= bytes[0][i];
        t->reported[i] += bytes[1][i];
    }
    traffic_add(&q->after, bytes[1], 1);
    return SHERD_OK;
}

/* Completes the report of a step in whose update a rank was lost. The survivors know the norm. */
static sherd_status report_complete(trainer *t, queued_step *q)
{
    q->is_recovered = 0;
    if (t->place.told < q->step) {
        q->report.step        = t->info.step;
        q->report.was_updated = t->info.step > t->place.updates;
    }
    return sherd_engine_fingerprint(t->engine, &q->report.fingerprint);
}

static void figures_take(trainer *t, const queued_step *q)
{
    t->figures.ranks_off_plan = (int)q->sums.off_plan;
    t->figures.engine         = q->report;
    for (int i = 0; i < REPORT_MEDIA; i++) {
        t->figures.counted[i] = (uint64_t)q->sums.counted[i];
        t->figures.planned[i] = (uint64_t)q->sums.planned[i];
    }
}

/* Counts what this rank has sent so far; to other hosts where the plan has several. */
static sherd_status sent_count(const trainer *t, const queued_step *q, uint64_t out[2])
{
    sherd_traffic_report report;

    out[1] = 0;
    if (q->after.between_micro_planned + q->after.between_step_planned > 0) {
        sherd_traffic_report_init(&report);
        TRY(sherd_engine_traffic(t->engine, &report));
        out[1] = report.between_counted;
    }
    sherd_world_traffic(t->world, &out[0], NULL);
    return SHERD_OK;
}

static int is_validated(const trainer *t, long step)
{
    return t->is_stopping || step == t->o.steps ||
           (t->o.eval_every > 0 && step % t->o.eval_every == 0);
}

/* Waits for the losses of the queued step, sums over the ranks and reports the step. `is_last`: no
 * step is queued after it, so the model can be validated. Does nothing if no step is pending. */
static sherd_status step_print(trainer *t, int is_last)
{
    queued_step *q    = &t->queued;
    report_step  line = {.validation_loss = (double)NAN};
    uint64_t     sent[2][2]; /* to other ranks, and to other hosts */
    double       now;

    if (!q->is_untold) {
        return SHERD_OK;
    }
    q->is_untold = 0;
    memory_take(t, is_last);
    TRY(step_wait(t, q));
    TRY(q->is_recovered ? report_complete(t, q) : SHERD_OK);
    traffic_sum(q, &q->sums);
    TRY(trainer_losses_take(t, &q->sums.losses)); /* 0 if losses_tell has taken them */
    TRY(sent_count(t, q, sent[0]));
    TRY(sherd_world_sum_f64(t->world, (double *)&q->sums, sizeof(q->sums) / sizeof(double)));
    TRY(sent_count(t, q, sent[1]));
    t->reported[REPORT_WIRE] += sent[1][0] - sent[0][0];
    t->reported[REPORT_BETWEEN] += sent[1][1] - sent[0][1];
    t->is_stopping |= q->sums.stopping > 0.0;
    t->place.wanted = q->sums.ranks > 0 ? (int)q->sums.ranks : t->place.wanted;
    q->sums.losses += trainer_has_turns(t) ? t->place.losses : 0.0;
    t->last_loss   = q->sums.losses / (double)step_micros(t);
    t->first_loss  = q->step == t->first_step + 1 ? t->last_loss : t->first_loss;
    t->fingerprint = q->report.fingerprint;
    figures_take(t, q);
    now          = clock_now_s();
    line.figures = t->figures;
    line.step    = q->step;
    line.loss    = t->last_loss;
    line.tokens  = q->sequences * t->o.length;
    line.seconds = now - t->since_s;
    t->since_s   = now;
    t->seconds += line.seconds;
    speed_add(&t->times, line.seconds);
    if (is_last && is_validated(t, q->step)) {
        TRY(validate(t, &line.validation_loss));
        t->last_validation = line.validation_loss;
        TRY(sherd_monitor_write(t->engine, "Train/Samples/validation_loss", line.validation_loss));
    }
    TRY(sherd_monitor_write(t->engine, "Train/Samples/train_loss", t->last_loss));
    if (t->r != NULL && report_write(t->r, &line) != 0) {
        return trainer_fail(SHERD_E_IO, "the log cannot be written");
    }
    return SHERD_OK;
}

/* Returns whether `step` is reported before the next one begins: if no update overlaps with the
 * passes, or if it validates or saves then. */
static int is_reported_at_once(const trainer *t, long step)
{
    int is_beside = passes_device(t->passes)[0] != '\0' || t->is_host_updating;

    return !is_beside || t->job->is_elastic || is_validated(t, step) ||
           saves_is_due(&t->saved, step);
}

/* Sets the tokens of the micro-batch that comes next in this rank's order. */
static sherd_status batch_set(trainer *t)
{
    uint64_t first = t->sequences + (uint64_t)t->rank * t->data.batch;

    if (order_train(&t->data, first, t->tokens, t->tokens + trainer_micro_tokens(t)) != 0) {
        return trainer_data_fail(t);
    }
    passes_batch_set(t->passes, t->tokens, t->tokens + trainer_micro_tokens(t));
    t->has_batch = 1;
    return SHERD_OK;
}

/* Finds which micro-batches of the step are this rank's. */
static sherd_status share_take(const trainer *t, sherd_share *out)
{
    sherd_share_init(out);
    if (!t->job->is_elastic) { /* all ranks have data, also in a build without the call */
        out->count = out->calls = t->info.accumulation;
        return SHERD_OK;
    }
    return sherd_step_share(t->engine, out);
}

/* Makes forward and backward of the next micro-batch, or takes part in it without data. */
static sherd_status micro_batch_run(trainer *t, int has_data)
{
    if (!has_data) {
        return sherd_micro_batch_skip(t->engine);
    }
    if (!t->has_batch) {
        TRY(batch_set(t));
    }
    t->has_batch = 0;
    return passes_train(t->passes, NULL, NULL);
}

/* Sums the losses of the window before its update. */
static sherd_status losses_tell(trainer *t)
{
    uint64_t sent[2];
    double   sum;

    passes_losses_close(t->passes);
    TRY(trainer_losses_take(t, &sum));
    sherd_world_traffic(t->world, &sent[0], NULL);
    TRY(sherd_world_sum_f64(t->world, &sum, 1));
    sherd_world_traffic(t->world, &sent[1], NULL);
    t->reported[REPORT_WIRE] += sent[1] - sent[0];
    t->place.losses = sum;
    return SHERD_OK;
}

/* Makes the micro-batches of one optimizer step, without waiting for its update. The step before it
 * is reported after the first micro-batch, and before the call that changes the engine's report.
 * The tokens of the micro-batch that follows are set while a GPU still computes this one. Some ranks
 * may be without data in the last micro-batch. */
sherd_status trainer_window_run(trainer *t)
{
    uint64_t    end = t->sequences + (uint64_t)t->info.train_batch_size;
    sherd_share share;

    TRY(share_take(t, &share));
    for (int k = 0; k < share.calls; k++) {
        int is_last = k == share.calls - 1;

        TRY(micro_batch_run(t, k < share.count));
        TRY(step_print(t, 0));
        t->sequences += (uint64_t)t->world_size * t->data.batch;
        t->sequences = t->sequences < end ? t->sequences : end;
        /* not earlier: the first acquire of a run commits, too */
        if (is_last) {
            TRY(saves_mark(&t->saved, &(saves_position){t->step + 1, t->sequences}));
        }
        if (is_last ? !is_reported_at_once(t, t->step + 1) : k + 1 < share.count) {
            TRY(batch_set(t));
        }
        if (is_last && trainer_has_turns(t)) {
            TRY(losses_tell(t));
        }
        TRY(sherd_step_queue(t->engine));
    }
    passes_losses_close(t->passes);
    return SHERD_OK;
}

/* Queues one step, and counts only the traffic of the engine in it. */
static sherd_status step_queue(trainer *t)
{
    queued_step q = {
        .is_untold = 1, .step = t->step + 1, .sums.stopping = *t->job->is_stopping ? 1.0 : 0.0};

    if (t->rank == 0 && t->job->wanted != NULL) {
        q.sums.ranks = *t->job->wanted;
    }
    t->since_s = t->queued.is_untold ? t->since_s : clock_now_s();
    sherd_step_report_init(&q.report);
    sherd_traffic_report_init(&q.before);
    sherd_traffic_report_init(&q.after);
    TRY(sherd_engine_traffic(t->engine, &q.before));
    t->is_host_updating = q.before.update_host_planned > 0;
    memset(t->reported, 0, sizeof(t->reported));
    if (trainer_has_turns(t)) { /* the step before is reported; for trainer_recover */
        q.is_untold = 0;
        t->queued   = q;
        q.is_untold = 1;
    }
    TRY(trainer_window_run(t));
    TRY(sherd_engine_traffic(t->engine, &q.after));
    traffic_add(&q.after, t->reported, -1);
    t->step++;
    q.sequences = t->sequences;
    t->queued   = q;
    return SHERD_OK;
}

/* Returns whether a resumed run makes no step. */
static int has_nothing_to_do(const trainer *t)
{
    return t->is_resumed && t->first_step >= t->o.steps;
}

/* Saves a checkpoint after this step if it is time for one. */
static sherd_status step_save(trainer *t, int stop)
{
    saves_position position = {.step = t->step, .sequences = t->sequences};

    return trainer_saves_checked(t,
                                 saves_step(&t->saved, &position, stop || t->step == t->o.steps));
}

static void stop_say(const trainer *t)
{
    if (saves_has(&t->saved, t->step)) {
        report_say(t->r, "stopped after step %ld; --resume goes on from %s/%s", t->step,
                   t->o.save_dir, t->saved.tag);
    } else {
        report_say(t->r, "stopped after step %ld%s", t->step,
                   t->info.state_run != 0 ? "; its state stays, --resume goes on from it" : "");
    }
}

/* Returns whether the last checkpoint is missing: for a user who asked for checkpoints it matters
 * most. */
int trainer_is_unsaved(const trainer *t)
{
    return t->o.save_dir != NULL && t->step > t->first_step && !saves_has(&t->saved, t->step);
}

/* Returns whether state on NVMe must remain: a run that makes no step preserves the state that it
 * found, but not state that it has just made from a checkpoint. The state may be deleted if the run
 * is over or if a checkpoint has its last step. */
static int must_keep_state(const trainer *t, int stop)
{
    return (has_nothing_to_do(t) && t->info.is_resumed) || trainer_is_unsaved(t) ||
           (stop && !saves_has(&t->saved, t->step));
}

/* Reports the step that is queued, and saves. */
static sherd_status loop_tell(trainer *t, int *stop)
{
    TRY(step_print(t, 1));
    *stop = t->is_stopping;
    TRY(step_save(t, *stop));
    t->place.told    = t->step;
    t->place.updates = t->queued.report.step;
    return SHERD_OK;
}

/* Makes a step, and changes the ranks before it (processes) or after it (threads). */
static sherd_status loop_step(trainer *t, int *stop)
{
    if (trainer_has_turns(t)) {
        TRY(trainer_turn(t));
        if (t->place.has_left) {
            return SHERD_OK;
        }
    }
    TRY(step_queue(t));
    if (is_reported_at_once(t, t->step)) {
        TRY(loop_tell(t, stop));
    }
    if (t->place.wanted > 0 && t->place.wanted != t->world_size && !*stop && t->step < t->o.steps) {
        TRY(trainer_resize(t));
    }
    return SHERD_OK;
}

sherd_status trainer_loop_run(trainer *t)
{
    int stop = 0;

    /* A run without steps is validated only here. */
    if (t->o.is_first_validated || t->step >= t->o.steps) {
        TRY(validate(t, &t->first_validation));
        t->last_validation = t->first_validation;
    }
    if (trainer_has_turns(t) && !t->place.is_new) {
        TRY(sherd_engine_query(t->engine, &t->info)); /* after a checkpoint was loaded */
        t->place.updates = t->info.step;
    }
    while (t->step < t->o.steps && !stop) {
        sherd_status status = loop_step(t, &stop);

        while (status == SHERD_E_PEER_LOST && trainer_has_turns(t)) {
            status = trainer_recover(t);
            if (status == SHERD_OK && t->queued.is_untold) {
                status = loop_tell(t, &stop);
            }
        }
        TRY(status);
        if (t->place.has_left) {
            return SHERD_OK;
        }
    }
    if (t->step == t->first_step) {
        TRY(sherd_engine_fingerprint(t->engine, &t->fingerprint));
    }
    if (stop && t->r != NULL) {
        stop_say(t);
    }
    if (has_nothing_to_do(t) && t->r != NULL) {
        report_say(t->r, "nothing to do: %ld steps are done and --steps is %ld%s", t->step,
                   t->o.steps, t->info.is_resumed ? "; the state stays" : "");
    }
    return must_keep_state(t, stop) ? sherd_engine_keep_state(t->engine, 1) : SHERD_OK;
}
