/* The transfers of the engine's tiers, and the generations of its state: see store.h. */
#include "engine/run/store.h"

#include "base/clock.h"
#include "collectives/broadcast.h"
#include "engine/run/agree.h"
#include "engine/run/blobs.h"
#include "engine/run/kernels.h"
#include "engine/run/restore.h"
#include "engine/run/updater.h"
#include "engine/program/program_rings.h"

#include <string.h>

/* -------------------------------------------------------------- transfers -- */

static sherd_status store_submit(sherd_engine *engine, const sherdi_op *op,
                                 const sherdi_follows *follows)
{
    sherdi_store   *store    = engine->storage.store;
    int             is_write = op->kind == SHERDI_OP_WRITE;
    sherdi_transfer transfer = {
        .tier     = store->tiers[op->ring],
        .memory   = sherdi_run_address(engine, op, is_write ? SHERDI_USE_SRC : SHERDI_USE_DST),
        .extent   = op->extent,
        .ring     = op->ring,
        .is_write = is_write,
        .account  = sherdi_updater_account(engine, op),
        .follows  = *follows,
    };
    uint64_t number = sherdi_drive_give(&store->drive, &transfer);

    (void)pthread_mutex_lock(&engine->lanes.own->lock);
    sherdi_order_enter(&engine->lanes.own->order, op, number);
    (void)pthread_mutex_unlock(&engine->lanes.own->lock);
    sherdi_drive_poll(&store->drive, sherdi_run_user(engine));
    return is_write && !engine->settings.offload.pipeline_write
               ? sherdi_drive_wait(&store->drive, number)
               : SHERD_OK;
}

static void store_poll(sherd_engine *engine)
{
    sherdi_drive_poll(&engine->storage.store->drive, sherdi_run_user(engine));
}

static sherd_status store_wait(sherd_engine *engine, uint64_t number)
{
    return sherdi_drive_wait(&engine->storage.store->drive, number);
}

/* Returns the failure of a ring whose buffer the operation uses. */
static sherd_status rings_check(const sherd_engine *engine, const sherdi_op *op)
{
    const int BUFFERS[SHERDI_RINGS] = {
        SHERDI_BUFFER_STATE_RING, SHERDI_BUFFER_PARAM_RING, SHERDI_BUFFER_GRAD_RING,
        engine->plan->machine.has_device ? SHERDI_BUFFER_HOST_ACTIVATIONS
                                         : SHERDI_BUFFER_ACTIVATIONS};

    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        for (int role = 0; role < SHERDI_USES; role++) {
            if (op->uses[role].where == BUFFERS[ring]) {
                SHERDI_TRY(sherdi_drive_status(&engine->storage.store->drive, (sherdi_ring)ring));
            }
        }
    }
    return SHERD_OK;
}

static sherd_status store_follow(sherd_engine *engine, const sherdi_op *op,
                                 const sherdi_follows *follows)
{
    for (size_t i = 0; i < follows->num_drives; i++) {
        SHERDI_TRY(store_wait(engine, follows->drives[i]));
    }
    if (follows->is_all_drives) {
        SHERDI_TRY(sherdi_drive_wait_all(&engine->storage.store->drive, sherdi_run_user(engine)));
    }
    return rings_check(engine, op);
}

const sherdi_transfers_ops sherdi_store_transfers = {
    .submit = store_submit,
    .poll   = store_poll,
    .wait   = store_wait,
    .follow = store_follow,
};

static sherd_status store_settle(sherd_engine *engine, sherdi_ring ring)
{
    return sherdi_drive_settle(&engine->storage.store->drive, ring);
}

static sherd_status store_settle_filled(sherd_engine *engine)
{
    sherd_status status = SHERD_OK;

    for (int ring = SHERDI_RING_STATE; ring <= SHERDI_RING_PARAMS; ring++) {
        sherd_status own = store_settle(engine, (sherdi_ring)ring);

        if (own != SHERD_OK) {
            sherdi_rings_write_again(&engine->run.progress, (sherdi_ring)ring);
            status = own;
        }
    }
    return status;
}

static void store_drop(sherd_engine *engine, sherdi_ring ring)
{
    sherdi_drive_drop(&engine->storage.store->drive, ring);
}

sherdi_storage_waits sherdi_store_waits_take(sherd_engine *engine, sherdi_user user,
                                             sherdi_ring ring)
{
    sherdi_storage_waits *waits = &engine->storage.store->drive.waits[user][ring];
    sherdi_storage_waits  taken = *waits;

    *waits = (sherdi_storage_waits){0};
    return taken;
}

static void store_report(sherd_engine *engine, sherd_step_report *report)
{
    sherdi_file_traffic traffic = sherdi_updater_traffic_take(engine);

    report->nvme_read_bytes    = traffic.read_bytes;
    report->nvme_written_bytes = traffic.written_bytes;
    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        sherdi_storage_waits waits =
            sherdi_store_waits_take(engine, SHERDI_USER_TRAINER, (sherdi_ring)ring);

        if (ring == SHERDI_RING_ACTIVATIONS) {
            continue; /* wait_activation_s has these */
        }
        *(ring == SHERDI_RING_PARAMS ? &report->wait_param_s : &report->wait_read_s) +=
            (double)waits.read_ns * 1e-9;
        report->wait_write_s += (double)waits.write_ns * 1e-9;
    }
}

/* ------------------------------------------------------------ generations -- */

/* The run's blobs are only in the note of rank 0, because rank 0's are the valid ones. */
static size_t run_blobs_bytes(const sherd_engine *engine)
{
    return engine->rank == 0 ? sherdi_blobs_bytes(engine->blobs, SHERDI_BLOB_GLOBAL, 0) : 0;
}

static size_t note_bytes(const sherd_engine *engine)
{
    const sherdi_blobs *blobs = engine->blobs;

    return sherdi_blobs_small(blobs) == 0
               ? sizeof(sherdi_state_record)
               : sizeof(sherdi_state_record) + sizeof(uint64_t) + run_blobs_bytes(engine) +
                     sherdi_blobs_bytes(blobs, SHERDI_BLOB_OF_RANK, engine->rank);
}

static size_t blob_bytes(const sherd_engine *engine)
{
    size_t extents;

    if (sherdi_store_state(engine) == NULL) {
        return 0;
    }
    extents = sherdi_plan_stored(engine->plan);
    return sherdi_state_commit_bytes(extents, note_bytes(engine)) -
           sherdi_state_commit_bytes(extents, sizeof(sherdi_state_record));
}

/* Writes the note: the record, the length of the run's blobs, the run's blobs, this rank's blobs.
 * Returns its length. */
static size_t note_write(const sherd_engine *engine, const sherdi_state_record *record)
{
    const sherdi_blobs *blobs = engine->blobs;
    unsigned char      *note  = engine->storage.store->note + sizeof(*record);
    uint64_t            run   = run_blobs_bytes(engine);

    memcpy(engine->storage.store->note, record, sizeof(*record));
    if (sherdi_blobs_small(blobs) > 0) {
        memcpy(note, &run, sizeof(run));
        if (run > 0) {
            sherdi_blobs_write(blobs, SHERDI_BLOB_GLOBAL, engine->rank, note + sizeof(run));
        }
        sherdi_blobs_write(blobs, SHERDI_BLOB_OF_RANK, engine->rank, note + sizeof(run) + run);
    }
    return note_bytes(engine);
}

/* Writes the note, if there is room. */
static void note_make(sherd_engine *engine)
{
    sherdi_store *store = engine->storage.store;

    if (store->state == NULL) { /* of a dry engine, or without generations */
        return;
    }
    store->note_failure.status = SHERD_OK;
    if (note_bytes(engine) > SHERDI_STATE_NOTE_BYTES) { /* blobs of a checkpoint can be larger */
        sherdi_outcome_add(
            &store->note_failure,
            sherdi_fail(SHERD_E_INVAL,
                        "the blobs of rank %d take %zu bytes, but with state on NVMe there is "
                        "room for %d; set fewer or shorter ones",
                        engine->rank, note_bytes(engine), SHERD_BLOB_MAX_BYTES));
        return;
    }
    store->note_bytes = note_write(engine, &store->record);
}

void sherdi_store_note(sherd_engine *engine, int64_t step, const sherdi_scaler *scaler,
                       int is_written)
{
    sherdi_state_record *record = &engine->storage.store->record;
    sherdi_state_note   *note   = &record->note;

    memset(record, 0, sizeof(*record));
    note->step             = step;
    note->micro_step       = engine->counters.micro_step;
    note->skipped_steps    = engine->counters.skipped_steps;
    note->scaler           = *scaler;
    note->accumulation     = engine->settings.batch.accumulation;
    note->micro_batch_size = engine->settings.batch.micro_batch_size;
    memcpy(note->run_text, engine->identity.run_text, sizeof(note->run_text));
    note->is_written = is_written;
    note->samples    = sherdi_samples_seen(engine);
    note_make(engine);
}

sherd_status sherdi_store_commit(sherd_engine *engine, uint64_t fingerprint)
{
    engine->storage.store->record.note.fingerprint = fingerprint;
    return sherdi_run_generation(engine, SHERDI_OP_COMMIT);
}

int64_t sherdi_store_step(sherd_engine *engine)
{
    sherdi_state_record record;

    if (!engine->plan->has_generations) {
        return -1;
    }
    if (!engine->updater.is_queued) {
        sherdi_store_record(engine, &record);
        engine->storage.store->stored_step = record.note.step;
    }
    return engine->storage.store->stored_step;
}

/* Sends the run's blobs of rank 0, which are the valid ones, to all ranks. Collective. */
static sherd_status run_blobs_share(sherd_engine *engine, unsigned char *bytes, uint64_t *len)
{
    SHERDI_TRY(sherdi_world_broadcast(engine->world, len, sizeof(*len), 0));
    return *len == 0 ? SHERD_OK : sherdi_world_broadcast(engine->world, bytes, *len, 0);
}

sherd_status sherdi_note_find_blobs(const unsigned char *note, size_t len_bytes,
                                    sherdi_note_blobs *out)
{
    size_t   head = sizeof(sherdi_state_record) + sizeof(uint64_t);
    uint64_t run  = 0;

    *out = (sherdi_note_blobs){0};
    if (len_bytes <= sizeof(sherdi_state_record)) {
        return SHERD_OK;
    }
    if (len_bytes >= head) {
        memcpy(&run, note + sizeof(sherdi_state_record), sizeof(run));
    }
    if (len_bytes < head || run > len_bytes - head) {
        return sherdi_fail(
            SHERD_E_IO,
            "the blobs that belong to the state on NVMe are damaged; load a checkpoint instead");
    }
    *out = (sherdi_note_blobs){.run       = note + head,
                               .run_bytes = (size_t)run,
                               .own       = note + head + run,
                               .own_bytes = len_bytes - head - (size_t)run};
    return SHERD_OK;
}

sherd_status sherdi_store_blobs(sherd_engine *engine)
{
    unsigned char    *note   = engine->storage.store->note;
    size_t            len    = 0;
    size_t            head   = sizeof(sherdi_state_record) + sizeof(uint64_t);
    sherdi_note_blobs found  = {0};
    uint64_t          run    = 0;
    sherd_status      status = SHERD_OK;

    sherdi_blobs_clear(engine->blobs, 0);
    if (engine->storage.store->state != NULL) {
        len = sherdi_state_get_note(engine->storage.store->state, note, SHERDI_STATE_NOTE_BYTES);
    }
    status = sherdi_note_find_blobs(note, len, &found);
    run    = found.run_bytes;
    if (status == SHERD_OK && found.own != NULL) {
        status = sherdi_blobs_read(engine->blobs, found.own, found.own_bytes);
    }
    SHERDI_TRY(sherdi_agree_status(engine, status));
    SHERDI_TRY(run_blobs_share(engine, note == NULL ? NULL : note + head, &run));
    if (run > 0) {
        status = sherdi_blobs_read(engine->blobs, note + head, run);
    }
    return sherdi_agree_status(engine, status);
}

sherd_status sherdi_call_generation(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_store *store = engine->storage.store;
    sherdi_state *state = store == NULL ? NULL : store->state;
    int64_t       start = sherdi_now_ns();

    (void)number_out;
    if (state == NULL) {
        return SHERD_OK;
    }
    if (op->kind == SHERDI_OP_ABANDON) {
        return sherdi_state_abandon(state);
    }
    if (op->kind != SHERDI_OP_COMMIT) {
        SHERDI_TRY(sherdi_state_rollback(state));
        (void)sherdi_state_get_note(state, &store->record, sizeof(store->record));
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_outcome_end(&store->note_failure));
    memcpy(store->note, &store->record, sizeof(store->record));
    SHERDI_TRY(sherdi_state_commit(state, store->note, store->note_bytes));
    store->is_worth_keeping = 1;
    store->is_changed       = 1;
    store->drive.waits[sherdi_run_user(engine)][SHERDI_RING_STATE].write_ns +=
        sherdi_now_ns() - start;
    return SHERD_OK;
}

uint64_t sherdi_store_live(const sherd_engine *engine)
{
    const sherdi_store *store = engine->storage.store;

    return store->state == NULL ? store->dry.live : sherdi_state_generation(store->state);
}

void sherdi_store_record(const sherd_engine *engine, sherdi_state_record *out)
{
    const sherdi_store *store = engine->storage.store;

    *out = store->dry.record;
    if (store->state != NULL) {
        (void)sherdi_state_get_note(store->state, out, sizeof(*out));
    }
}

int sherdi_store_has_previous(const sherd_engine *engine)
{
    const sherdi_store *store = engine->storage.store;

    return store->state == NULL ? store->dry.has_previous : sherdi_state_has_previous(store->state);
}

void sherdi_store_agreed(sherd_engine *engine)
{
    engine->storage.store->agreed = sherdi_store_live(engine);
}

static void store_verify(sherd_engine *engine, int is_on)
{
    if (engine->storage.store->state != NULL) {
        sherdi_state_verify(engine->storage.store->state, is_on);
    }
}

static sherd_status commit_written(sherd_engine *engine)
{
    sherdi_store_note(engine, engine->counters.step, &engine->scaler, 1);
    return sherdi_store_commit(engine, engine->fingerprints.own);
}

const sherdi_storage_ops sherdi_storage_drive = {
    .resume         = sherdi_restore_resume,
    .stop           = sherdi_store_stop,
    .close          = sherdi_store_close,
    .settle         = store_settle,
    .settle_filled  = store_settle_filled,
    .drop           = store_drop,
    .report         = store_report,
    .traffic        = sherdi_updater_traffic,
    .note           = sherdi_store_note,
    .commit         = sherdi_store_commit,
    .commit_written = commit_written,
    .agreed         = sherdi_store_agreed,
    .restore        = sherdi_restore_agreed,
    .stored_step    = sherdi_store_step,
    .verify         = store_verify,
    .blob_bytes     = blob_bytes,
};
