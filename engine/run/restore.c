/* Goes back to a generation of the state on NVMe: the one of an earlier run (resume), or the one
 * before the last update (undo). Parameters are made anew from the master weights, so only the
 * state has to survive. */
#include "engine/run/restore.h"

#include "base/log.h"
#include "engine/modules.h"
#include "engine/optimizers/scaling.h"
#include "engine/program/program_rings.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"
#include "engine/run/store.h"
#include "engine/run/update.h"

#include <stdio.h>
#include <string.h>

sherd_status sherdi_call_block(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return engine->block_call.fn(engine->block_call.ctx, op);
}

/* Makes new parameters from the master weights. If one rank fails, all fail. */
static sherd_status republish(sherd_engine *engine, sherdi_walk walk)
{
    sherd_status status = sherdi_update_walk_over(engine, walk);
    uint64_t     unused;

    if (status == SHERD_OK) {
        status = sherdi_update_fingerprint(engine);
    }
    SHERDI_TRY(sherdi_update_agree(engine, status, engine->fingerprints.own,
                                   "while it read its state back", &unused));
    return sherdi_update_publish(engine);
}

/* Makes generation `wanted` the live one; this rank must be at it or one ahead. Gives its record.
 * On failure *has_begun says whether the drive may have gone back nevertheless. */
static sherd_status generation_aim(sherd_engine *engine, uint64_t wanted, sherdi_state_record *out,
                                   int *has_begun)
{
    *has_begun = 0;
    sherdi_store_record(engine, out);
    if (sherdi_store_live(engine) == wanted + 1) {
        sherd_status status = sherdi_run_generation(engine, SHERDI_OP_ROLLBACK);

        *has_begun = status != SHERD_E_STATE; /* which it says before it touches anything */
        SHERDI_TRY(status);
        *out = engine->storage.store->record;
    }
    if (sherdi_store_live(engine) != wanted) {
        return sherdi_fail(SHERD_E_STATE,
                           "the state on NVMe is at generation %llu (step %lld) and cannot go back "
                           "to generation %llu; load a checkpoint",
                           (unsigned long long)sherdi_store_live(engine), (long long)out->note.step,
                           (unsigned long long)wanted);
    }
    return SHERD_OK;
}

/* Returns the samples that the run had seen; an earlier version noted only their factors. */
static int64_t note_samples(const sherd_engine *engine, const sherdi_state_note *note)
{
    return note->samples != 0
               ? note->samples
               : sherdi_samples(note->micro_step, note->micro_batch_size, engine->world_size);
}

/* Restores counters, parameters (from the master weights) and blobs. If a rank fails, all fail. */
static sherd_status generation_take(sherd_engine *engine, const sherdi_state_record *from)
{
    sherd_status status = SHERD_OK;

    engine->counters.step = from->note.step;
    sherdi_samples_set(engine, from->note.micro_step, note_samples(engine, &from->note));
    engine->counters.skipped_steps = from->note.skipped_steps;
    engine->window.first_micro     = engine->counters.micro_step;
    sherdi_scaler_resume(&engine->scaler, &from->note.scaler);
    SHERDI_TRY(republish(engine, SHERDI_WALK_REPUBLISH));
    if (engine->fingerprints.own != from->note.fingerprint) {
        status = sherdi_fail(SHERD_E_IO,
                             "the state on NVMe is not what was written: it has fingerprint "
                             "%016llx and was committed with %016llx; load a checkpoint instead",
                             (unsigned long long)engine->fingerprints.own,
                             (unsigned long long)from->note.fingerprint);
    }
    SHERDI_TRY(sherdi_agree_status(engine, status));
    SHERDI_TRY(sherdi_store_blobs(engine));
    sherdi_store_agreed(engine);
    return SHERD_OK;
}

/* Gives the smallest live generation of all ranks. Ranks make the same commits in the same order,
 * and at the start they agree on a number (fill.c), so their generations differ by one at most. */
static sherd_status generation_smallest(sherd_engine *engine, uint64_t *out)
{
    *out = sherdi_store_live(engine);
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_GENERATION, SHERD_OK, *out, NULL));
    for (int r = 0; r < engine->world_size; r++) {
        uint64_t other = sherdi_agree_word_of(engine, r);

        *out = other < *out ? other : *out;
    }
    return SHERD_OK;
}

typedef struct steps_message {
    uint64_t status;
    int64_t  step, micro_step;
} steps_message;

_Static_assert(sizeof(steps_message) == SHERDI_WORDS_OF_STEPS * sizeof(uint64_t),
               "the table has the words of the message");

/* Ranks are at one step, or their state is no state of the model. `own` is the outcome on this rank
 * so far. */
static sherd_status steps_compare(sherd_engine *engine, sherd_status own,
                                  const sherdi_state_note *note)
{
    steps_message        mine  = {.step = note->step, .micro_step = note->micro_step};
    const steps_message *first = NULL;

    SHERDI_TRY(sherdi_agree_on(engine, SHERDI_EXCHANGE_STEPS, own, &mine, NULL, NULL));
    first = sherdi_agree_message(engine, 0);
    for (int r = 1; r < engine->world_size; r++) {
        const steps_message *other = sherdi_agree_message(engine, r);

        if (other->step != first->step || other->micro_step != first->micro_step) {
            return sherdi_fail(SHERD_E_STATE,
                               "the state of run %016llx on NVMe does not belong together: rank 0 "
                               "is at step %lld and rank %d at step %lld; load a checkpoint",
                               (unsigned long long)engine->storage.run, (long long)first->step, r,
                               (long long)other->step);
        }
    }
    return SHERD_OK;
}

static void differs_add(sherd_engine *engine, const char *what, const char *was, const char *is)
{
    char  *text = engine->identity.resume_differs;
    size_t len  = strlen(text);

    (void)snprintf(text + len, sizeof(engine->identity.resume_differs) - len,
                   "%s%s was %s and is %s", len == 0 ? "" : ", ", what, was, is);
}

static void number_compare(sherd_engine *engine, const char *what, int was, int is)
{
    char texts[2][16];

    if (was != is) {
        (void)snprintf(texts[0], sizeof(texts[0]), "%d", was);
        (void)snprintf(texts[1], sizeof(texts[1]), "%d", is);
        differs_add(engine, what, texts[0], texts[1]);
    }
}

/* Reports a run that differs from the one that wrote the state: values stay correct, but the steps
 * use other data than that run's would. */
static void run_compare(sherd_engine *engine, const sherdi_state_note *note)
{
    number_compare(engine, "gradient_accumulation_steps", note->accumulation,
                   engine->settings.batch.accumulation);
    number_compare(engine, "train_micro_batch_size_per_gpu", note->micro_batch_size,
                   engine->settings.batch.micro_batch_size);
    if (strncmp(note->run_text, engine->identity.run_text, sizeof(note->run_text)) != 0) {
        char was[SHERDI_RUN_TEXT_BYTES + 2];
        char is[SHERDI_RUN_TEXT_BYTES + 2];

        (void)snprintf(was, sizeof(was), "\"%.*s\"", SHERDI_RUN_TEXT_BYTES - 1, note->run_text);
        (void)snprintf(is, sizeof(is), "\"%s\"", engine->identity.run_text);
        differs_add(engine, "the description", was, is);
    }
    if (engine->identity.resume_differs[0] != '\0' && engine->rank == 0) {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "run %016llx is resumed with other settings, so the steps use other data than "
                   "they would have: %s",
                   (unsigned long long)engine->storage.run, engine->identity.resume_differs);
    }
}

sherd_status sherdi_restore_resume(sherd_engine *engine)
{
    sherdi_state_record found = {0};
    uint64_t            wanted;
    int                 has_begun;
    sherd_status        status;

    SHERDI_TRY(generation_smallest(engine, &wanted));
    status = generation_aim(engine, wanted, &found, &has_begun);
    SHERDI_TRY(steps_compare(engine, status, &found.note));
    SHERDI_TRY(generation_take(engine, &found));
    for (size_t p = 0; p < engine->model.num_params; p++) {
        engine->fill.is_filled[p] = !engine->model.params[p].is_frozen;
    }
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_STATE);
    sherdi_log(SHERD_LOG_INFO, engine->rank, "resumed from step %lld of run %016llx",
               (long long)engine->counters.step, (unsigned long long)engine->storage.run);
    run_compare(engine, &found.note);
    return SHERD_OK;
}

/* ------------------------------------------------------------------ begin -- */

/* Commits until this rank's state is at generation `wanted`. */
static sherd_status state_commit(sherd_engine *engine, uint64_t wanted)
{
    while (sherdi_store_live(engine) < wanted) {
        SHERDI_TRY(sherdi_update_fingerprint(engine));
        sherdi_store_note(engine, engine->counters.step, &engine->scaler, 0);
        SHERDI_TRY(sherdi_store_commit(engine, engine->fingerprints.own));
    }
    return SHERD_OK;
}

/* Commits the filled values, so that all ranks are at the same generation: after a start that
 * failed some of them may be ahead. */
sherd_status sherdi_restore_begin(sherd_engine *engine)
{
    uint64_t wanted = 0;
    uint64_t unused;

    if (!engine->plan->has_generations || engine->storage.is_resumed) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_GENERATION, SHERD_OK,
                                 sherdi_store_live(engine) + (uint64_t)sherdi_fill_commits(engine),
                                 NULL));
    for (int r = 0; r < engine->world_size; r++) {
        uint64_t other = sherdi_agree_word_of(engine, r);

        wanted = other > wanted ? other : wanted;
    }
    return sherdi_update_agree(engine, state_commit(engine, wanted), 0, SHERDI_FILL_BEGINS,
                               &unused);
}

/* ------------------------------------------------------------------- load -- */

/* Before the start: takes the values of bound parameters that were not filled so far, since a load
 * that lacks them would write over them. */
static sherd_status bound_fill(sherd_engine *engine)
{
    int is_started = engine->phase != SHERDI_PHASE_SEALED;

    for (size_t p = 0; p < engine->model.num_params && !is_started; p++) {
        if (engine->model.params[p].bound_data != NULL && !engine->model.params[p].is_frozen &&
            !engine->fill.is_filled[p]) {
            SHERDI_TRY(sherdi_fill_param(engine, p, NULL, NULL));
            engine->fill.is_filled[p] = 0; /* the trainer may still fill it, or write its memory */
        }
    }
    return is_started ? SHERD_OK : sherdi_fill_settle(engine);
}

/* Drops gathered units, operations in flight, and writes that are not committed. Local. E_IO,
 * E_DEVICE. */
static sherd_status run_drop(sherd_engine *engine)
{
    sherd_status status;

    if (SHERDI_ASK(updater, join, engine) == SHERD_OK) {
        SHERDI_TELL(updater, report, engine, &engine->boundary);
        sherdi_modules_reported(engine);
    }
    sherdi_modules_dropped(engine);
    SHERDI_TELL(updater, forget, engine);
    engine->fingerprints.is_unreported = 0;
    for (int ring = 0; ring < SHERDI_RINGS;
         ring++) { /* failures of dropped operations do not matter */
        (void)sherdi_run_settle(engine, (sherdi_ring)ring);
    }
    status = sherdi_program_forget(&engine->run.program);
    return status == SHERD_OK ? sherdi_run_generation(engine, SHERDI_OP_ABANDON) : status;
}

static sherd_status parts_load(sherd_engine *engine, sherdi_walk walk,
                               const sherdi_load_parts *parts)
{
    sherd_status own = run_drop(engine);

    SHERDI_TRY(sherdi_agree_status(engine, own == SHERD_OK ? bound_fill(engine) : own));
    SHERDI_TRY(parts->frozen(parts->ctx));
    engine->block_call.fn  = parts->block;
    engine->block_call.ctx = parts->ctx;
    SHERDI_TRY(republish(engine, walk));
    SHERDI_TRY(parts->check(parts->ctx));
    SHERDI_TRY(sherdi_agree_status(engine, parts->take(parts->ctx)));
    SHERDI_TRY(sherdi_agree_status(engine, SHERDI_ASK(storage, commit_written, engine)));
    SHERDI_TELL(storage, agreed, engine);
    return SHERD_OK;
}

sherd_status sherdi_restore_save(sherd_engine *engine, sherdi_block_fn fn, void *ctx)
{
    engine->block_call.fn  = fn;
    engine->block_call.ctx = ctx;
    sherdi_run_drop_ahead(engine, SHERDI_RING_STATE);
    return sherdi_update_walk_over(engine, SHERDI_WALK_SAVE);
}

sherd_status sherdi_restore_load(sherd_engine *engine, sherdi_walk walk,
                                 const sherdi_load_parts *parts)
{
    sherd_status status = parts_load(engine, walk, parts);

    if (status != SHERD_OK) {
        sherdi_engine_poison(engine, status);
        return status;
    }
    sherdi_loop_window_begin(engine);
    if (engine->phase == SHERDI_PHASE_SEALED) {
        return SHERD_OK;
    }
    engine->phase = SHERDI_PHASE_RUNNING;
    sherdi_loop_fetch_ahead(engine);
    return sherdi_modules_replaced(engine);
}

/* ------------------------------------------------------------------- undo -- */

static sherd_status undo_check(const sherd_engine *engine)
{
    SHERDI_TRY(sherdi_engine_check_caller(engine, "sherd_step_undo"));
    if (engine->failure.why.status != SHERD_OK) { /* an undo may mend it */
        return engine->failure.why.status == SHERD_E_DEVICE || engine->plan == NULL ||
                       engine->failure.is_final || !engine->plan->has_generations
                   ? sherdi_engine_check_alive(engine, "sherd_step_undo")
                   : SHERD_OK;
    }
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_step_undo", SHERDI_NEED_SEALED));
    if (!engine->plan->has_generations) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "nothing to go back to: the state rests in memory, where updates replace it; only "
            "offload_optimizer with device nvme keeps the step before");
    }
    return sherdi_engine_need(engine, "sherd_step_undo",
                              SHERDI_NEED_NO_EVAL | SHERDI_NEED_RELEASED);
}

/* For an engine that is not poisoned: the last commit must be the update that is undone. */
static sherd_status update_check(const sherd_engine *engine)
{
    sherdi_state_record live;

    if (engine->counters.step == 0) {
        return sherdi_fail(
            SHERD_E_STATE,
            "there is no update that could be undone: no step has updated anything yet");
    }
    sherdi_store_record(engine, &live);
    if (live.note.is_written) {
        return sherdi_fail(SHERD_E_STATE,
                           "nothing to go back to: values or counters were written after the last "
                           "update, or the engine was moved, and that replaced the state before "
                           "it");
    }
    return SHERD_OK;
}

/* A rank that has nothing to go back to says so before another rank has begun. */
static sherd_status previous_check(const sherd_engine *engine)
{
    return sherdi_store_has_previous(engine)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             "nothing to go back to: the update was undone already, or the state "
                             "before it made room when a checkpoint was saved after the update");
}

/* Drops the window and all that is under way. */
static sherd_status window_drop(sherd_engine *engine)
{
    sherd_status status = run_drop(engine);

    sherdi_loop_window_begin(engine);
    return status;
}

/* Whether any rank has begun to go back, or cannot say. Collective. */
static int any_has_begun(sherd_engine *engine, int has_begun)
{
    return sherdi_agree_word(engine, SHERDI_EXCHANGE_BEGUN, SHERD_OK, (uint64_t)has_begun, NULL) !=
               SHERD_OK ||
           sherdi_agree_sum(engine, engine->plan->replica) > 0;
}

/* After a failure: if no rank has begun to go back, the engine is as it was. Else nothing but
 * another undo, which takes all ranks to `wanted`, brings them together. */
static sherd_status generation_failed(sherd_engine *engine, uint64_t wanted, int has_begun,
                                      sherd_status status)
{
    const sherdi_outcome failed = sherdi_outcome_of(status);

    has_begun = any_has_begun(engine, has_begun);
    status    = sherdi_outcome_end(&failed);
    if (has_begun) {
        engine->storage.store->agreed = wanted;
        sherdi_engine_poison(engine, status);
    }
    return status;
}

sherd_status sherdi_restore_generation(sherd_engine *engine, uint64_t wanted)
{
    sherdi_state_record found;
    int                 has_begun = 0;
    sherd_status        status    = window_drop(engine);

    if (status == SHERD_OK) {
        status = generation_aim(engine, wanted, &found, &has_begun);
    }
    status = sherdi_agree_status(engine, status);
    if (status == SHERD_OK) {
        status    = generation_take(engine, &found);
        has_begun = 1;
    }
    if (status != SHERD_OK) {
        return generation_failed(engine, wanted, has_begun, status);
    }
    engine->failure.why.status = SHERD_OK;
    engine->phase              = SHERDI_PHASE_RUNNING;
    sherdi_loop_fetch_ahead(engine);
    return sherdi_modules_replaced(engine);
}

sherd_status sherdi_restore_agreed(sherd_engine *engine)
{
    return sherdi_restore_generation(engine, engine->storage.store->agreed);
}

sherd_status sherd_step_undo(sherd_engine *engine)
{
    uint64_t wanted;

    SHERDI_TRY(undo_check(engine));
    SHERDI_TRY(sherdi_world_status(engine->world));
    if (engine->failure.why.status == SHERD_OK) {
        (void)SHERDI_ASK(queue, tell,
                         engine); /* an update that has failed is undone like one that has not */
    }
    wanted = engine->storage.store->agreed;
    if (engine->failure.why.status == SHERD_OK) {
        SHERDI_TRY(update_check(engine));
        SHERDI_TRY(sherdi_agree_status(engine, previous_check(engine)));
        wanted--;
    }
    return sherdi_restore_generation(engine, wanted);
}

/* ---------------------------------------------------------------- describe -- */

sherd_status sherd_engine_describe_run(sherd_engine *engine, const char *text)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_engine_describe_run", SHERDI_NEED_OPEN));
    SHERDI_TRY(sherdi_api_need(text != NULL, "sherd_engine_describe_run", "text"));
    if (strlen(text) >= sizeof(engine->identity.run_text)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_engine_describe_run: the text has %zu bytes, and at most %zu are "
                           "kept; shorten it",
                           strlen(text), sizeof(engine->identity.run_text) - 1);
    }
    memset(engine->identity.run_text, 0, sizeof(engine->identity.run_text));
    memcpy(engine->identity.run_text, text, strlen(text));
    return SHERD_OK;
}
