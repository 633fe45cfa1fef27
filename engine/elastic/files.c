/* The files of a move, where state or parameters rest on a drive. The new layout has files of its
 * own, and the old ones are not written: until all ranks have committed the new state, a failure
 * removes the new files, and afterwards the old ones go. A process that dies in between leaves one
 * of the two runs whole. */
#include "engine/elastic/move.h"

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

        if (from->plan != NULL && old_store(m) != NULL) {
            SHERDI_TRY(sherdi_stored_open(from->plan, old_store(m)->tiers, &m->engine->mem,
                                          &from->stored));
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
    sherdi_stored_write(&m->wire.to, segment);
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

/* Makes what was written the first generation, with the fingerprint of what the drive returns. */
static sherd_status generation_commit(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_STATE);
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_PARAMS);
    if (!engine->plan->has_generations) {
        return SHERD_OK;
    }
    SHERDI_TELL(storage, verify, engine, 1);
    SHERDI_TRY(sherdi_update_fingerprint(engine));
    SHERDI_TELL(storage, verify, engine, engine->settings.offload.verify_reads);
    note_write(m);
    return sherdi_store_commit(engine, engine->fingerprints.own);
}

/* Says which files are removed when their store is closed. */
static void files_choose(sherdi_move *m, int is_old_kept, int is_new_kept)
{
    if (old_store(m) != NULL) {
        old_store(m)->is_worth_keeping &= is_old_kept;
    }
    if (m->new_world != NULL && m->engine->storage.store != NULL) {
        m->engine->storage.store->is_worth_keeping &= is_new_kept;
    }
}

sherd_status sherdi_move_files_commit(sherdi_move *m)
{
    sherd_status   status = sherdi_stored_finish(m->wire.to.stored);
    sherdi_outcome all    = sherdi_outcome_of(sherdi_agree_world(m->all, status));

    if (all.status != SHERD_OK) {
        return sherdi_outcome_end(&all);
    }
    status = m->new_world == NULL ? SHERD_OK : generation_commit(m);
    all    = sherdi_outcome_of(sherdi_agree_world(m->all, status));
    if (all.status == SHERD_E_PEER_LOST) { /* others may have gone on: one of the runs is whole */
        m->is_begun = 1;
        return sherdi_outcome_end(&all);
    }
    files_choose(m, all.status != SHERD_OK, all.status == SHERD_OK);
    return sherdi_outcome_end(&all);
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
