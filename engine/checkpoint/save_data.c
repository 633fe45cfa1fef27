/* The data files of a save: this rank writes them at once, or from a copy of the state on a thread
 * of its own. See save_impl.h. */
#include "engine/checkpoint/save_impl.h"

#include "base/checked.h"
#include "base/thread.h"
#include "engine/checkpoint/bytes.h"
#include "engine/checkpoint/frozen.h"
#include "engine/checkpoint/linked.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/values.h"
#include "engine/run/blobs.h"
#include "engine/run/blocks.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/restore.h"
#include "engine/run/update.h"
#include "engine/run/store.h"
#include "offload/checksum.h"

#include <string.h>

/* ----------------------------------------------------------------- one file -- */

static void progress_report(void *ctx, size_t more_bytes)
{
    sherdi_save *save = ctx;

    save->done_bytes += more_bytes;
    if (!save->is_async) {
        sherdi_engine_progress(save->engine, "sherd_checkpoint_save", save->params.progress,
                               save->params.progress_ctx, save->done_bytes, save->all_bytes);
    }
}

/* Adds the state's tensors to the header. If the state is linked, the file has only its
 * description. */
static sherd_status state_add(sherdi_save *save)
{
    sherd_engine               *engine = save->engine;
    sherdi_safetensors_builder *header = save->headers[SHERDI_DATA_STATE];
    char                       *text;
    sherd_status                status;

    if (!save->mine.is_linked) {
        return sherdi_shard_add(engine->plan, &engine->model, SHERDI_DATA_STATE, header);
    }
    SHERDI_TRY(sherdi_linked_describe(engine->plan, &engine->model, sherdi_store_state(engine),
                                      &engine->mem, &text));
    status = sherdi_safetensors_metadata(header, SHERDI_LINKED_KEY, text);
    sherdi_free(text);
    return status;
}

/* Blobs come last, so that the values before them lie at multiples of their size. */
static sherd_status tensors_add(sherdi_save *save, sherdi_data_file which)
{
    sherd_engine *engine = save->engine;

    if (which == SHERDI_DATA_FROZEN) {
        return sherdi_shard_add(engine->plan, &engine->model, which, save->headers[which]);
    }
    SHERDI_TRY(state_add(save));
    return sherdi_shard_add_blobs(engine->blobs, engine->rank, save->headers[which]);
}

sherd_status sherdi_save_header_make(sherdi_save *save, sherdi_data_file which)
{
    sherd_engine *engine = save->engine;
    size_t        extents;

    SHERDI_TRY(sherdi_safetensors_begin(&engine->mem, SHERD_ALIGN_BYTES, &save->headers[which]));
    SHERDI_TRY(tensors_add(save, which));
    extents = sherdi_div_up(sherdi_safetensors_data_bytes(save->headers[which]),
                            SHERDI_CHECKPOINT_EXTENT_BYTES);
    SHERDI_TRY(sherdi_safetensors_metadata(save->headers[which], "format", "sherd"));
    SHERDI_TRY(
        sherdi_safetensors_reserve(save->headers[which], "checksums", extents * SHERDI_HEX_DIGITS));
    return sherdi_safetensors_finish(save->headers[which], &save->header_bytes[which],
                                     &save->header_len[which]);
}

/* Returns the copy of all state of this rank, in the form of a data file; the writer's slots lie in
 * it. */
static unsigned char *snapshot_of(const sherdi_save *save)
{
    return save->engine->memory.buffers[SHERDI_BUFFER_SNAPSHOT];
}

/* Allocates the slots when the first file needs them. An asynchronous save uses its snapshot
 * instead. */
static sherd_status slots_need(sherdi_save *save)
{
    const sherdi_plan *plan = save->engine->plan;

    if (save->slots == NULL) {
        save->slots =
            sherdi_alloc(&save->engine->mem, SHERDI_MEM_HOST_STAGING,
                         plan->packing.checkpoint_slots * plan->packing.checkpoint_slot_bytes);
    }
    return save->slots == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

sherd_status sherdi_save_writer_make(sherdi_save *save, sherdi_data_file which)
{
    const sherdi_plan *plan      = save->engine->plan;
    int                is_copied = save->is_async && which == SHERDI_DATA_STATE;
    size_t             bytes     = sherdi_safetensors_data_bytes(save->headers[which]);
    char               name[SHERDI_CHECKPOINT_NAME_BYTES];

    SHERDI_TRY(is_copied ? SHERD_OK : slots_need(save));
    sherdi_data_file_name(which, save->engine->rank, save->engine->world_size, name);
    return sherdi_writer_open(
        &save->writers[which],
        &(sherdi_writer_params){
            .queue        = save->queue,
            .mem          = &save->engine->mem,
            .folder       = save->folder,
            .name         = name,
            .memory       = is_copied ? snapshot_of(save) : save->slots,
            .slot_bytes   = plan->packing.checkpoint_slot_bytes,
            .num_slots    = is_copied ? plan->packing.buffers[SHERDI_BUFFER_SNAPSHOT].bytes /
                                         plan->packing.checkpoint_slot_bytes
                                      : plan->packing.checkpoint_slots,
            .header_bytes = save->header_len[which],
            .data_bytes   = bytes,
            .progress     = progress_report,
            .progress_ctx = save,
        });
}

/* Completes a file, now that its checksums are known. */
static sherd_status file_finish(sherdi_save *save, sherdi_data_file which)
{
    sherdi_writer        *writer = &save->writers[which];
    sherdi_manifest_file *file   = &save->mine.files[which];

    if (writer->params.data_bytes > 0) { /* else the value is "" already */
        SHERDI_TRY(sherdi_safetensors_set(save->headers[which], "checksums", writer->checksums));
    }
    SHERDI_TRY(sherdi_writer_finish(writer, save->header_bytes[which]));
    file->bytes = save->header_len[which] + sherdi_safetensors_data_bytes(save->headers[which]);
    file->header_checksum = sherdi_checksum(save->header_bytes[which], save->header_len[which]);
    return SHERD_OK;
}

/* ------------------------------------------------------------------- values -- */

/* Adds the values that go into the file to the fingerprint, which thus shows whether the state has
 * changed in memory since its step. */
static void values_count(sherdi_save *save, size_t param, int part, size_t first, size_t count,
                         const float *values)
{
    uint64_t sum = sherdi_values_fingerprint(
        save->engine->host, save->engine->model.params[param].first_index + first, count, values);

    if (part == 0) {
        save->mine.fingerprint += sum;
    } else {
        const char *name =
            sherdi_param_segment(save->engine->plan, param)->optimizer->parts[part].name;

        save->mine.state_fingerprint +=
            sherdi_values_part_sum(sherdi_manifest_find_part(&save->manifest, name), sum);
    }
}

/* Writes a range of a part. Without an operation (op NULL, on the save's thread), the values are in
 * the file's slots already, and other kernels run meanwhile. It then works on at most one extent at
 * a time, so that one thread does it. */
static sherd_status piece_write(sherdi_save *save, const sherdi_op *op,
                                const sherdi_shard_range *piece, int part)
{
    sherdi_writer *writer = &save->writers[SHERDI_DATA_STATE];
    size_t         most   = op == NULL ? SHERDI_CHECKPOINT_EXTENT_BYTES : SIZE_MAX;
    size_t         at     = 0;

    while (at < piece->count) {
        unsigned char *to;
        float         *values;
        size_t         room;
        size_t         some;

        SHERDI_TRY(sherdi_writer_reserve(writer, &to, &room));
        values = (float *)(void *)to;
        some   = sherdi_min_size(sherdi_min_size(room, most) / sizeof(*values), piece->count - at);
        if (op != NULL) {
            SHERDI_TRY(sherdi_run_block_get(save->engine, op, part, piece->offset_elems + at, some,
                                            values));
        }
        values_count(save, piece->param, part, piece->first + at, some, values);
        sherdi_writer_advance(writer, some * sizeof(*values));
        at += some;
    }
    return SHERD_OK;
}

static sherd_status piece_copy(sherdi_save *save, const sherdi_op *op,
                               const sherdi_shard_range *piece, int part)
{
    float *to = (float *)(void *)(snapshot_of(save) + save->copied_bytes);

    save->copied_bytes += piece->count * sizeof(*to);
    return sherdi_run_block_get(save->engine, op, part, piece->offset_elems, piece->count, to);
}

typedef sherd_status (*piece_fn)(sherdi_save *save, const sherdi_op *op,
                                 const sherdi_shard_range *piece, int part);

static sherd_status pieces_each(sherdi_save *save, const sherdi_op *op, const sherdi_block *block,
                                piece_fn fn)
{
    const sherdi_plan  *plan   = save->engine->plan;
    int                 parts  = sherdi_segment_parts(sherdi_block_segment(plan, block));
    sherdi_shard_ranges pieces = sherdi_shard_saved(plan, &save->engine->model, block);
    sherdi_shard_range  piece;

    while (sherdi_shard_next(&pieces, &piece)) {
        for (int part = 0; part < parts; part++) {
            SHERDI_TRY(fn(save, op, &piece, part));
        }
    }
    return SHERD_OK;
}

static sherd_status block_save(void *ctx, const sherdi_op *op)
{
    sherdi_save *save = ctx;

    return pieces_each(save, op, op->block, save->is_async ? piece_copy : piece_write);
}

static sherd_status bytes_write(sherdi_save *save, const unsigned char *bytes, size_t len_bytes)
{
    sherdi_writer *writer = &save->writers[SHERDI_DATA_STATE];

    while (len_bytes > 0) {
        unsigned char *to;
        size_t         room;
        size_t         some;

        SHERDI_TRY(sherdi_writer_reserve(writer, &to, &room));
        some = sherdi_min_size(room, len_bytes);
        memcpy(to, bytes, some);
        sherdi_writer_advance(writer, some);
        bytes += some;
        len_bytes -= some;
    }
    return SHERD_OK;
}

/* Writes the snapshot, block by block, in the order in which the walk copied them. Blobs have no
 * room in the snapshot, so they go through slots whose values have been written. */
static sherd_status snapshot_write(sherdi_save *save)
{
    const sherdi_plan *plan = save->engine->plan;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        SHERDI_TRY(pieces_each(save, NULL, &plan->layout.blocks[b], piece_write));
    }
    return bytes_write(save, save->blobs, save->blobs_bytes);
}

/* ----------------------------------------------------------------- all of it -- */

/* Takes this rank's fingerprint from the last step, or computes it. At stage 0 every rank has all
 * values, so only rank 0 counts. */
static sherd_status own_fingerprint(sherdi_save *save)
{
    SHERDI_TRY(sherdi_update_fingerprint(save->engine));
    save->mine.fingerprint = (save->engine->plan->layout.is_sliced || save->engine->rank == 0) &&
                                     sherdi_shard_is_saver(save->engine->plan)
                                 ? save->engine->fingerprints.own
                                 : 0;
    return SHERD_OK;
}

static sherd_status blobs_save(sherdi_save *save)
{
    const sherdi_blobs *blobs = save->engine->blobs;
    const sherdi_blob  *blob;
    size_t              next = 0;

    while ((blob = sherdi_shard_next_blob(blobs, save->engine->rank, &next)) != NULL) {
        SHERDI_TRY(bytes_write(save, blob->data, blob->len_bytes));
    }
    return SHERD_OK;
}

/* Copies the blobs, since the trainer may set others while an asynchronous save writes these. */
static sherd_status blobs_copy(sherdi_save *save)
{
    const sherdi_blobs *blobs = save->engine->blobs;
    const sherdi_blob  *blob;
    size_t              next = 0;
    size_t              at   = 0;

    save->blobs_bytes =
        sherdi_safetensors_data_bytes(save->headers[SHERDI_DATA_STATE]) - save->copied_bytes;
    save->blobs = sherdi_alloc(&save->engine->mem, SHERDI_MEM_CONTROL, save->blobs_bytes);
    if (save->blobs == NULL) {
        return SHERD_E_NOMEM;
    }
    while ((blob = sherdi_shard_next_blob(blobs, save->engine->rank, &next)) != NULL) {
        memcpy(save->blobs + at, blob->data, blob->len_bytes);
        at += blob->len_bytes;
    }
    return SHERD_OK;
}

/* Refuses to save bits that have changed in memory since the last step as if they were its
 * result. */
static sherd_status fingerprint_check(const sherdi_save *save)
{
    const sherd_engine *engine = save->engine;

    if (engine->plan->layout.is_sliced && sherdi_shard_is_saver(engine->plan) &&
        save->known.has_own && save->mine.fingerprint != save->known.own) {
        return sherdi_fail(SHERD_E_NUMERIC,
                           "the master weights of rank %d have fingerprint %016llx and had "
                           "%016llx after the last step: they changed in memory in between; go "
                           "back to an earlier checkpoint",
                           engine->rank, (unsigned long long)save->mine.fingerprint,
                           (unsigned long long)save->known.own);
    }
    return SHERD_OK;
}

static sherd_status state_finish(sherdi_save *save)
{
    SHERDI_TRY(file_finish(save, SHERDI_DATA_STATE));
    return fingerprint_check(save);
}

sherd_status sherdi_save_data(sherdi_save *save)
{
    if (save->headers[SHERDI_DATA_FROZEN] != NULL) {
        SHERDI_TRY(sherdi_frozen_save(save->engine, &save->writers[SHERDI_DATA_FROZEN]));
        SHERDI_TRY(file_finish(save, SHERDI_DATA_FROZEN));
    }
    if (save->headers[SHERDI_DATA_STATE] == NULL) {
        return SHERD_OK;
    }
    save->known = save->engine->fingerprints;
    SHERDI_TRY(save->mine.is_linked ? own_fingerprint(save)
                                    : sherdi_restore_save(save->engine, block_save, save));
    if (save->is_async) {
        return blobs_copy(save);
    }
    SHERDI_TRY(blobs_save(save));
    return save->mine.is_linked ? file_finish(save, SHERDI_DATA_STATE) : state_finish(save);
}

/* ----------------------------------------------------------------- the thread -- */

static void *thread_run(void *ctx)
{
    sherdi_save *save   = ctx;
    sherd_status status = snapshot_write(save);

    save->thread_outcome = sherdi_outcome_of(status == SHERD_OK ? state_finish(save) : status);
    atomic_store(&save->is_over, 1);
    return NULL;
}

sherd_status sherdi_save_thread_join(sherdi_save *save)
{
    if (save->has_thread) {
        (void)pthread_join(save->thread, NULL);
        save->has_thread = 0;
    }
    return sherdi_outcome_end(&save->thread_outcome);
}

/* A rank that has no state, or gets no thread, has finished at once. The save ends when all ranks
 * have finished. */
void sherdi_save_thread_start(sherdi_save *save)
{
    if (save->headers[SHERDI_DATA_STATE] == NULL) {
        atomic_store(&save->is_over, 1);
    } else if (sherdi_thread_start(&save->thread, 0, thread_run, save) == 0) {
        save->has_thread = 1;
    } else {
        save->thread_outcome = sherdi_outcome_of(
            sherdi_fail(SHERD_E_NOMEM, "cannot start the thread of an asynchronous save"));
        atomic_store(&save->is_over, 1);
    }
}
