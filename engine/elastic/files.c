/* The files of a move, where state or parameters rest on a drive. The new layout has files of its
 * own, and the old ones are not written: until all ranks have committed the new state, a failure
 * removes the new files, and afterwards the old ones go. A process that dies in between leaves one
 * of the two runs whole. */
#include "engine/elastic/generation.h"
#include "engine/elastic/move.h"

#include "base/log.h"
#include "engine/program/program_rings.h"
#include "engine/run/agree.h"
#include "engine/run/loop.h"
#include "engine/run/store.h"
#include "engine/run/update.h"
#include "engine/run/updater.h"

#include <string.h>

static struct sherdi_store *old_store(const sherdi_move *m)
{
    return m->new_world == NULL ? m->engine->storage.store : m->old.storage.store;
}

void sherdi_move_files_rest(sherd_engine *engine)
{
    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        (void)sherdi_run_settle(engine, (sherdi_ring)ring); /* nothing is written now */
    }
}

sherd_status sherdi_move_files_open(sherdi_move *m)
{
    for (int r = 0; r < m->old_size; r++) {
        sherdi_holding *from = &m->from[r];

        const sherdi_remains *remains = m->is_aimed ? sherdi_generation_remains(m, r) : NULL;

        if (from->plan != NULL && old_store(m) != NULL) {
            SHERDI_TRY(sherdi_stored_open(from->plan,
                                          remains == NULL ? old_store(m)->tiers : remains->tiers,
                                          &m->engine->mem, &from->stored));
        }
    }
    return m->wire.to.plan == NULL || m->engine->storage.store == NULL
               ? SHERD_OK
               : sherdi_stored_open(m->wire.to.plan, m->engine->storage.store->tiers,
                                    &m->engine->mem, &m->wire.to.stored);
}

void sherdi_move_files_close(sherdi_move *m)
{
    for (int r = 0; r < m->old_size && m->from != NULL; r++) {
        sherdi_stored_close(m->from[r].stored);
        m->from[r].stored = NULL;
    }
    sherdi_stored_close(m->wire.to.stored);
    m->wire.to.stored = NULL;
}

/* ------------------------------------------------------------------- segments -- */

static void ahead_read(sherdi_move *m, int segment)
{
    for (int r = 0; r < m->old_size; r++) {
        sherdi_stored_ahead(m->from[r].stored, segment);
    }
}

/* The next segment is read while this one is written. */
sherd_status sherdi_move_files_segment(sherdi_move *m, int segment)
{
    sherdi_outcome own = {.status = SHERD_OK};

    for (int r = 0; r < m->old_size; r++) {
        sherdi_outcome_add(&own, sherdi_stored_read(m->from[r].stored, segment));
    }
    sherdi_outcome_add(&own, sherdi_stored_begin(m->wire.to.stored, segment));
    SHERDI_TRY(sherdi_move_wire_segment(&m->wire, segment));
    SHERDI_TRY(sherdi_move_wire_finish(&m->wire));
    ahead_read(m, segment + 1);
    if (m->wire.to.stored != NULL && !m->is_aimed) {
        sherdi_stored_put_values(&m->wire.to, segment);
        sherdi_outcome_add(&own, sherdi_pass_settle(&m->wire.pass, m->wire.lane));
    }
    sherdi_stored_write(m->wire.to.stored, segment);
    return sherdi_agree_world(m->all, sherdi_outcome_end(&own));
}

/* ------------------------------------------------------------------- the commit -- */

/* Writes the note as the engine will be: of what is in it, blobs and text are still the old ones. */
static void note_write(sherdi_move *m)
{
    sherd_engine *engine = m->engine;
    sherdi_blobs  blobs  = *engine->blobs;
    char          text[SHERDI_RUN_TEXT_BYTES];

    memcpy(text, engine->identity.run_text, sizeof(text));
    memcpy(engine->identity.run_text, m->hello.run_text, sizeof(text));
    *engine->blobs                 = m->blobs;
    engine->counters.step          = m->hello.at.step;
    engine->counters.skipped_steps = m->hello.at.skipped;
    sherdi_samples_set(engine, m->hello.at.micro, m->hello.samples);
    sherdi_store_note(engine, m->hello.at.step, &m->hello.at.scaler, 1);
    *engine->blobs = blobs;
    memcpy(engine->identity.run_text, text, sizeof(text));
}

/* Makes what was written the first generation, with the fingerprint of what the drive returns; after
 * a loss, parameters are made of that, too. */
static sherd_status generation_commit(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_STATE);
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_PARAMS);
    if (!engine->plan->has_generations) {
        return SHERD_OK;
    }
    SHERDI_TELL(storage, verify, engine, 1);
    if (m->is_aimed) {
        SHERDI_TRY(sherdi_update_walk_over(engine, SHERDI_WALK_REPUBLISH));
    }
    SHERDI_TRY(sherdi_update_fingerprint(engine));
    SHERDI_TELL(storage, verify, engine, engine->settings.offload.verify_reads);
    note_write(m);
    return sherdi_store_commit(engine, engine->fingerprints.own);
}

/* Returns this rank's share of the fingerprint of what is given. */
static uint64_t given_fingerprint(const sherdi_move *m)
{
    sherdi_state_record record;

    if (m->is_aimed) {
        return sherdi_generation_fingerprint(m);
    }
    if (m->old_world == NULL || old_store(m) == NULL || old_store(m)->state == NULL) {
        return 0;
    }
    (void)sherdi_state_get_note(old_store(m)->state, &record, sizeof(record));
    return record.note.fingerprint;
}

typedef struct commit_message {
    uint64_t status, given, taken;
} commit_message;

/* All ranks have committed, or none goes on; and all values are those that were given. The ranks of
 * each replica have the fingerprint together. */
static sherd_status commit_agree(sherdi_move *m, sherd_status here)
{
    const sherdi_outcome own   = sherdi_outcome_of(here);
    commit_message       mine  = {.status = (uint64_t)here, .given = given_fingerprint(m)};
    uint64_t             given = 0;
    uint64_t             taken = 0;
    sherdi_messages      messages;
    sherd_status         status;

    if (m->new_world != NULL && m->engine->plan->has_generations) {
        mine.taken = m->engine->fingerprints.own;
    }
    status = sherdi_world_tell(m->all, &mine, sizeof(mine), SHERDI_MOVE_CALL, &messages);
    SHERDI_TRY(sherdi_outcome_end(&own));
    SHERDI_TRY(status);
    for (int r = 0; r < sherd_world_size(m->all); r++) {
        const commit_message *its = sherdi_message_of(&messages, r);

        if (its->status != SHERD_OK) {
            return sherdi_fail((sherd_status)its->status,
                               SHERDI_MOVE_CALL ": rank %d could not commit the new layout: %s; "
                                                "its own sherd_last_error() says more",
                               r, sherd_status_text((sherd_status)its->status));
        }
        given += its->given * (uint64_t)m->plans.new_plan->num_replicas;
        taken += its->taken * (uint64_t)m->plans.old_plan->num_replicas;
    }
    return given == taken
               ? SHERD_OK
               : sherdi_fail(SHERD_E_IO,
                             SHERDI_MOVE_CALL ": a drive did not return what was written: the "
                                              "state has fingerprint %016llx after the move, and "
                                              "had %016llx",
                             (unsigned long long)taken, (unsigned long long)given);
}

/* Remembers a run, the newest first. */
static void orphan_add(sherd_engine *engine, uint64_t run)
{
    uint64_t *orphans = engine->elastic->orphans;

    if (run != 0) {
        memmove(&orphans[1], &orphans[0], (SHERDI_MOVE_ORPHANS - 1) * sizeof(orphans[0]));
        orphans[0] = run;
    }
}

/* Of the last two meetings, the first decides where all ranks go on, and the second that nobody goes
 * back. What a rank leaves that is lost meanwhile, the sweep removes. */
sherd_status sherdi_move_files_commit(sherdi_move *m)
{
    struct sherdi_store *store = m->new_world == NULL ? NULL : m->engine->storage.store;
    sherd_status         status;

    SHERDI_TRY(sherdi_agree_world(m->all, sherdi_stored_finish(m->wire.to.stored)));
    status = commit_agree(m, m->new_world == NULL ? SHERD_OK : generation_commit(m));
    if (status != SHERD_OK) {
        if (store != NULL) {
            store->is_worth_keeping = 0;
            orphan_add(m->engine, m->engine->storage.run);
        }
        return status;
    }
    m->is_old_kept = sherdi_agree_world(m->all, SHERD_OK) != SHERD_OK;
    if (old_store(m) != NULL) {
        old_store(m)->is_worth_keeping &= m->is_old_kept;
        orphan_add(m->engine, m->new_world == NULL ? 0 : m->old.storage.run);
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- the sweep -- */

static sherd_status orphan_found(void *ctx, const sherdi_state_found *found)
{
    const sherd_engine *engine = ctx;

    for (int i = 0; i < SHERDI_MOVE_ORPHANS; i++) {
        if (found->id.run == engine->elastic->orphans[i] && found->id.run != 0 &&
            !found->is_locked && sherdi_state_remove(found->path) == SHERD_OK) {
            sherdi_log(SHERD_LOG_INFO, engine->rank,
                       "removed %s: its rank was lost while the engine moved", found->path);
        }
    }
    return SHERD_OK;
}

void sherdi_move_files_sweep(sherd_engine *engine)
{
    const sherdi_offload_settings *at = &engine->settings.offload.state;

    if (engine->rank == 0 && engine->elastic->orphans[0] != 0 && at->num_folders > 0 &&
        sherdi_state_find(at->folders[0], orphan_found, engine) != SHERD_OK) {
        sherdi_log(SHERD_LOG_WARN, engine->rank, "%s", sherd_last_error());
    }
}

/* Counts what the files of the new layout have moved, which no step has. */
void sherdi_move_files_count(sherdi_move *m)
{
    struct sherdi_store *store = m->new_world == NULL ? NULL : m->engine->storage.store;

    for (int r = 0; r < m->old_size; r++) {
        m->report.nvme_read_bytes += sherdi_stored_bytes(m->from[r].stored);
    }
    if (store != NULL && store->queue != NULL) {
        sherdi_io_traffic traffic = sherdi_ioq_traffic(store->queue);

        m->report.nvme_read_bytes += traffic.read_bytes;
        m->report.nvme_written_bytes += traffic.written_bytes;
    }
}

void sherdi_move_files_settle(sherd_engine *engine)
{
    if (engine->storage.store == NULL) {
        return;
    }
    if (engine->plan->has_generations) {
        sherdi_store_agreed(engine);
    }
    (void)sherdi_updater_traffic_take(engine); /* the report of the move has it */
    sherdi_loop_fetch_ahead(engine);
}
