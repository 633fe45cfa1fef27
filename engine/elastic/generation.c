/* See generation.h. */
#include "engine/elastic/generation.h"

#include "base/log.h"
#include "engine/elastic/lost.h"
#include "engine/modules.h"
#include "engine/run/agree.h"

#include <stdio.h>
#include <string.h>

/* What this rank gives of an old rank: its own files, or those of a lost rank. */
struct sherdi_given {
    sherdi_remains      remains; /* zeros: they are this rank's own */
    int                 is_own;
    sherdi_state_record record;
    sherdi_blobs        blobs; /* of the note; mem NULL: none were read */
};

static sherdi_state *own_state(const sherdi_move *m)
{
    return sherdi_store_state(m->engine);
}

sherd_status sherdi_generation_rest(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    m->is_aimed                     = 1;
    m->report.dropped_micro_batches = engine->window.micro_seen + engine->window.has_begun;
    (void)SHERDI_ASK(updater, join, engine); /* what fails in it, fails by the lost rank */
    sherdi_modules_abandon(engine);
    SHERDI_TELL(lanes, drain, engine);
    sherdi_move_files_rest(engine);
    m->hello.at = (sherdi_standing){0}; /* the notes say it */
    return sherdi_state_abandon(own_state(m));
}

/* ------------------------------------------------------------------- the files -- */

/* Returns the status of a read of what rank `rank` has left. */
static sherd_status gone_fail(const sherdi_move *m, int rank, sherd_status status)
{
    char why[SHERDI_ERROR_BYTES];

    if (status != SHERD_E_STATE) {
        return status;
    }
    (void)snprintf(why, sizeof(why), "rank %d has left nothing to go on from: %s", rank,
                   sherd_last_error());
    return sherdi_lost_gone(m->engine, why);
}

/* Opens what a lost rank has left. Other replicas have its frozen parameters, too. */
static sherd_status remains_open(sherdi_move *m, int rank, sherdi_remains *out)
{
    sherd_engine *engine = m->engine;

    SHERDI_TRY(sherdi_remains_open(engine, engine->storage.store->queue, engine->storage.run, rank,
                                   m->old_size, &engine->settings.batch, &engine->plan->machine,
                                   out));
    return sherdi_lost_replicas_keep(m) ? SHERD_OK
                                        : sherdi_remains_check_frozen(out, &engine->model);
}

static sherd_status files_open(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    m->given = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)m->old_size,
                                  sizeof(*m->given));
    if (m->given == NULL) {
        return SHERD_E_NOMEM;
    }
    m->given[engine->rank].is_own = 1;
    for (int r = 0; r < m->old_size; r++) {
        if (m->goes[r] < 0 && sherdi_lost_giver(m, r) == sherd_world_rank(m->new_world)) {
            SHERDI_TRY(gone_fail(m, r, remains_open(m, r, &m->given[r].remains)));
            sherdi_log(SHERD_LOG_INFO, engine->rank,
                       "rank %d acts for rank %d, which is lost; its state is on a drive",
                       engine->rank, r);
        }
    }
    return SHERD_OK;
}

typedef struct generation_message {
    uint64_t status, generation;
} generation_message;

/* Gives the smallest newest generation of all ranks of the old world. */
static sherd_status smallest_find(sherdi_move *m, sherd_status here, uint64_t *out)
{
    const sherdi_outcome own  = sherdi_outcome_of(here);
    generation_message   mine = {.status     = (uint64_t)here,
                                 .generation = sherdi_state_generation(own_state(m))};
    sherdi_messages      messages;
    sherd_status         status;

    for (int r = 0; r < m->old_size && here == SHERD_OK; r++) {
        if (m->given[r].remains.state != NULL &&
            sherdi_remains_generation(&m->given[r].remains) < mine.generation) {
            mine.generation = sherdi_remains_generation(&m->given[r].remains);
        }
    }
    status = sherdi_world_tell(m->new_world, &mine, sizeof(mine), SHERDI_MOVE_CALL, &messages);
    SHERDI_TRY(sherdi_outcome_end(&own));
    SHERDI_TRY(status);
    *out = UINT64_MAX;
    for (int r = 0; r < m->new_size; r++) {
        const generation_message *its = sherdi_message_of(&messages, r);

        if (its->status == SHERD_E_STATE) {
            return sherdi_lost_gone(m->engine,
                                    "a rank that is lost has left nothing to go on from, "
                                    "as another one says");
        }
        if (its->status != SHERD_OK) {
            return sherdi_fail((sherd_status)its->status,
                               SHERDI_MOVE_CALL ": rank %d could not read what a lost rank has "
                                                "left: %s; its own sherd_last_error() says more",
                               r, sherd_status_text((sherd_status)its->status));
        }
        *out = its->generation < *out ? its->generation : *out;
    }
    return SHERD_OK;
}

/* Aims a state at the generation, and reads its note. */
static sherd_status given_aim(sherdi_move *m, struct sherdi_given *given, uint64_t generation)
{
    sherdi_blobs     *of_run = given == &m->given[0] ? &given->blobs : NULL;
    sherdi_note_blobs found;
    unsigned char    *note = m->engine->storage.store->note;
    size_t            len;

    sherdi_blobs_init(&given->blobs, &m->engine->mem);
    if (given->remains.state != NULL) {
        SHERDI_TRY(sherdi_remains_aim(&given->remains, generation, &given->record));
        return sherdi_remains_blobs(&given->remains, of_run, &given->blobs);
    }
    SHERDI_TRY(sherdi_state_aim(own_state(m), generation));
    len = sherdi_state_get_note(own_state(m), note, SHERDI_STATE_NOTE_BYTES);
    memcpy(&given->record, note, sizeof(given->record));
    SHERDI_TRY(sherdi_note_find_blobs(note, len, &found));
    if (of_run != NULL && found.run_bytes > 0) {
        SHERDI_TRY(sherdi_blobs_read(of_run, found.run, found.run_bytes));
    }
    return found.own_bytes == 0 ? SHERD_OK
                                : sherdi_blobs_read(&given->blobs, found.own, found.own_bytes);
}

/* Large blobs are in no note: this rank has its own. */
static sherd_status large_add(sherdi_move *m)
{
    const sherdi_blobs *blobs = m->engine->blobs;

    for (size_t i = 0; i < blobs->count; i++) {
        const sherdi_blob *blob = &blobs->list[i];

        if (blob->is_large) {
            SHERDI_TRY(sherdi_blobs_put(&m->given[m->engine->rank].blobs, blob->key, blob->kind,
                                        blob->rank, 1, blob->data, blob->len_bytes));
        }
    }
    return SHERD_OK;
}

static sherd_status all_aim(sherdi_move *m, uint64_t generation)
{
    const sherdi_state_note *note = &m->given[m->engine->rank].record.note;

    for (int r = 0; r < m->old_size; r++) {
        if (m->given[r].is_own || m->given[r].remains.state != NULL) {
            SHERDI_TRY(gone_fail(m, r, given_aim(m, &m->given[r], generation)));
        }
    }
    m->hello.at      = (sherdi_standing){.step    = note->step,
                                         .skipped = note->skipped_steps,
                                         .micro   = note->micro_step,
                                         .scaler  = note->scaler};
    m->hello.samples = note->samples;
    return large_add(m);
}

sherd_status sherdi_generation_find(sherdi_move *m)
{
    uint64_t generation;

    SHERDI_TRY(smallest_find(m, files_open(m), &generation));
    return sherdi_agree_world(m->new_world, all_aim(m, generation));
}

/* ---------------------------------------------------------------- what is given -- */

const sherdi_remains *sherdi_generation_remains(const sherdi_move *m, int old_rank)
{
    return m->given == NULL || m->given[old_rank].remains.state == NULL
               ? NULL
               : &m->given[old_rank].remains;
}

const sherdi_blobs *sherdi_generation_blobs(const sherdi_move *m, int old_rank)
{
    return m->given == NULL || m->given[old_rank].blobs.mem == NULL ? NULL
                                                                    : &m->given[old_rank].blobs;
}

uint64_t sherdi_generation_fingerprint(const sherdi_move *m)
{
    uint64_t sum = 0;

    for (int r = 0; r < m->old_size; r++) {
        sum += m->given[r].record.note.fingerprint;
    }
    return sum;
}

void sherdi_generation_close(sherdi_move *m, int is_kept)
{
    for (int r = 0; m->given != NULL && r < m->old_size; r++) {
        sherdi_remains_close(&m->given[r].remains, is_kept);
        if (m->given[r].blobs.mem != NULL) {
            sherdi_blobs_fini(&m->given[r].blobs);
        }
    }
    sherdi_free(m->given);
    m->given = NULL;
}
