/* Saving. The ranks agree on the folder, and every rank writes its own data files. Then the ranks
 * exchange whether this succeeded and the checksums of their files, and rank 0 writes the manifest
 * and renames the folder. While they write, the ranks do not synchronize. save_data.c writes the
 * data of a rank; folder.h says why a checkpoint is complete or does not exist. */
#include "engine/checkpoint/save_impl.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/checkpoint/linked.h"
#include "engine/checkpoint/shard.h"
#include "engine/run/blobs.h"
#include "engine/run/differences.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/marks.h"
#include "engine/modules.h"
#include "engine/run/needs.h"
#include "engine/run/update.h"
#include "engine/run/store.h"
#include "offload/checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------ manifest -- */

static void text_copy(char *to, size_t room, const char *from)
{
    (void)snprintf(to, room, "%s", from);
}

/* Enters an optimizer and its parts. Parts with the same name are one entry in the list of parts;
 * the optimizer defines the meaning of a part. */
static sherd_status optimizer_describe(sherdi_manifest *m, const sherdi_optimizer *optimizer)
{
    sherdi_manifest_optimizer *out = &m->optimizers[m->num_optimizers];

    if (m->num_optimizers == SHERDI_CHECKPOINT_OPTIMIZERS) {
        return sherdi_fail(SHERD_E_NOTSUP, "a checkpoint has at most %d optimizers",
                           SHERDI_CHECKPOINT_OPTIMIZERS);
    }
    text_copy(out->name, sizeof(out->name), sherdi_optimizer_name(optimizer));
    for (int i = 0; i < optimizer->num_parts; i++) {
        int part = sherdi_manifest_find_part(m, optimizer->parts[i].name);

        if (part < 0 && m->num_parts == SHERDI_CHECKPOINT_PARTS) {
            return sherdi_fail(SHERD_E_NOTSUP,
                               "the optimizers of the groups have more than %d kinds of state "
                               "together, more than a checkpoint can hold; use fewer optimizers",
                               SHERDI_CHECKPOINT_PARTS);
        }
        if (part < 0) {
            part = m->num_parts++;
            text_copy(m->parts[part].name, sizeof(m->parts[0].name), optimizer->parts[i].name);
            m->parts[part].held = -1;
        }
        out->parts |= 1u << part;
    }
    m->num_optimizers++;
    return SHERD_OK;
}

/* Records in which encoding a part was held. Segments may have it in different ones (fp32
 * parameters keep fp32 masters); the one that loses most counts. */
static void held_describe(sherdi_manifest *m, const sherdi_segment *segment)
{
    for (int i = 0; i < sherdi_segment_parts(segment); i++) {
        int  part = sherdi_manifest_find_part(m, segment->optimizer->parts[i].name);
        int *held = &m->parts[part].held;

        if (*held < 0 || sherdi_encoding_loss(sherdi_encoding_name(segment->encodings[i])) >
                             sherdi_encoding_loss(sherdi_manifest_held(m, part))) {
            *held = (int)segment->encodings[i];
        }
    }
}

static sherd_status optimizers_describe(sherdi_save *save)
{
    const sherdi_plan *plan = save->engine->plan;

    for (size_t o = 0; o < plan->layout.num_optimizers; o++) {
        SHERDI_TRY(optimizer_describe(&save->manifest, plan->layout.optimizers[o].optimizer));
    }
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        held_describe(&save->manifest, &plan->layout.segments[s]);
    }
    return SHERD_OK;
}

/* The manifest has the optimizers in the order of the plan. */
static sherdi_manifest_segment segment_described(const sherdi_manifest *m, const sherdi_plan *plan,
                                                 const sherdi_segment *segment)
{
    const sherdi_optimizer *own       = segment->optimizer;
    sherdi_manifest_segment described = {.slice_elems = segment->slice_elems,
                                         .is_frozen   = own == NULL};

    if (own != NULL) {
        described.optimizer =
            m->optimizers[sherdi_plan_optimizer_of(plan, own) - plan->layout.optimizers];
        described.has_optimizer = m->num_optimizers > 1;
    }
    for (int i = 0; i < m->num_parts; i++) {
        if (described.optimizer.parts >> i & 1) {
            described.named[described.num_named++] = i;
        }
    }
    return described;
}

static sherd_status params_describe(sherdi_save *save)
{
    const sherdi_model *model = &save->engine->model;
    const sherdi_plan  *plan  = save->engine->plan;
    sherdi_manifest    *m     = &save->manifest;

    m->params =
        sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, model->num_params, sizeof(*m->params));
    m->segments = sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, plan->layout.num_segments + 1,
                                     sizeof(*m->segments));
    m->files =
        sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, (size_t)m->world_size, sizeof(*m->files));
    if (m->params == NULL || m->segments == NULL || m->files == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        m->segments[m->num_segments++] = segment_described(m, plan, &plan->layout.segments[s]);
    }
    for (size_t p = 0; p < model->num_params; p++) {
        sherdi_manifest_param *param = &m->params[p];

        param->name = sherdi_strdup(m->mem, model->params[p].name);
        if (param->name == NULL) {
            return SHERD_E_NOMEM;
        }
        m->num_params++;
        param->ndim = model->params[p].ndim;
        memcpy(param->shape, model->params[p].shape, sizeof(param->shape));
        param->elems        = model->params[p].elems;
        param->is_frozen    = model->params[p].is_frozen;
        param->dtype        = sherdi_param_segment(plan, p)->types.compute;
        param->has_dtype    = param->dtype != m->compute_dtype;
        param->segment      = (size_t)plan->layout.params[p].segment;
        param->offset_elems = plan->layout.params[p].offset_elems;
    }
    return SHERD_OK;
}

/* Fills the fields of the manifest that are known when the state is copied. An asynchronous save
 * writes it later, when the engine's counters have advanced. */
static sherd_status manifest_begin(sherdi_save *save)
{
    const sherd_engine *engine = save->engine;
    sherdi_manifest    *m      = &save->manifest;

    sherdi_manifest_init(m, &save->engine->mem);
    text_copy(m->version, sizeof(m->version), sherd_version());
    text_copy(m->tag, sizeof(m->tag), save->tag);
    text_copy(m->run_text, sizeof(m->run_text), engine->identity.run_text);
    SHERDI_TRY(optimizers_describe(save));
    m->world_size         = engine->world_size;
    m->stage              = engine->settings.sharding.stage;
    m->compute_dtype      = engine->settings.numerics.compute_dtype;
    m->step               = engine->counters.step;
    m->micro_step         = engine->window.first_micro;
    m->samples            = sherdi_samples_at(engine, m->micro_step);
    m->skipped_steps      = engine->counters.skipped_steps;
    m->accumulation       = engine->settings.batch.accumulation;
    m->micro_batch_size   = engine->settings.batch.micro_batch_size;
    m->scaler             = engine->scaler;
    m->frozen_fingerprint = engine->fingerprints.frozen;
    m->saved_s            = (int64_t)time(NULL);
    return params_describe(save);
}

/* The fingerprint of the parameters, after all ranks have described their files. */
static uint64_t saved_fingerprint(const sherdi_save *save)
{
    uint64_t sum = save->manifest.frozen_fingerprint;

    for (int r = 0; r < save->engine->world_size; r++) {
        sum += save->all[r].fingerprint;
    }
    return sum;
}

/* Completes the manifest on rank 0, after all ranks have described their files. */
static sherd_status manifest_complete(sherdi_save *save, char **text_out, size_t *len_bytes_out)
{
    sherdi_manifest *m = &save->manifest;

    m->fingerprint           = saved_fingerprint(save);
    m->has_state_fingerprint = 1;
    for (int r = 0; r < m->world_size; r++) {
        memcpy(m->files[r], save->all[r].files, sizeof(m->files[r]));
        m->state_fingerprint += save->all[r].state_fingerprint;
        m->has_state_fingerprint = m->has_state_fingerprint && !save->all[r].is_linked;
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            m->data_bytes += save->all[r].files[f].bytes;
        }
    }
    return sherdi_manifest_text(m, text_out, len_bytes_out);
}

/* Publishes the checkpoint, if `status` is OK on all ranks. Collective. */
static sherd_status manifest_publish(sherdi_save *save, sherd_status status)
{
    char  *text = NULL;
    size_t len  = 0;

    if (status == SHERD_OK && save->engine->rank == 0) {
        status = manifest_complete(save, &text, &len);
        if (status == SHERD_OK && save->num_owners == 1) {
            status = sherdi_checkpoint_put(save->folder, SHERDI_MANIFEST_NAME, text, len);
            status = status == SHERD_OK
                         ? sherdi_checkpoint_finish(save->dir, save->tag, &save->claim)
                         : status;
        }
    }
    status = sherdi_agree_status(save->engine, status);
    if (status == SHERD_OK && save->num_owners > 1) {
        status = sherdi_save_publish_parts(save, text, len);
    }
    sherdi_manifest_text_free(text);
    return status;
}

/* Removes checkpoints older than the newest keep_last. If that fails, the save has not failed. */
static void old_remove(const sherdi_save *save)
{
    sherdi_mem               mem;
    sherdi_checkpoint_found *all;
    size_t                   count;
    size_t                   keep = (size_t)save->params.keep_last;

    sherdi_mem_init(&mem);
    if (keep == 0 || sherdi_checkpoint_list(&mem, save->dir, &all, &count) != SHERD_OK) {
        return;
    }
    for (size_t i = 0; i + keep < count; i++) {
        if (strcmp(all[i].tag, save->tag) != 0 &&
            sherdi_checkpoint_remove(save->dir, all[i].tag) != SHERD_OK) {
            sherdi_log(SHERD_LOG_WARN, save->engine->rank,
                       "an old checkpoint could not be removed: %s", sherd_last_error());
        }
    }
    sherdi_free(all);
}

/* -------------------------------------------------------------------- phases -- */

_Static_assert(sizeof(sherdi_save_message) == SHERDI_WORDS_OF_SAVED * sizeof(uint64_t),
               "the table has the words of the message");

static sherd_status files_exchange(sherdi_save *save, sherd_status own)
{
    return sherdi_agree_on(save->engine, SHERDI_EXCHANGE_SAVED, own, &save->mine, save->all,
                           "while it saved its part");
}

/* Checks the room in each folder for the files of the ranks that see it. Collective. */
static sherd_status space_check(sherdi_save *save)
{
    sherd_engine *engine = save->engine;
    uint64_t      need   = 0;

    for (int r = 0; r < engine->world_size; r++) {
        need += save->owners[r] == engine->rank ? save->all[r].bytes : 0;
    }
    return sherdi_agree_status(engine, save->owners[engine->rank] == engine->rank
                                           ? sherdi_checkpoint_check_space(save->dir, need)
                                           : SHERD_OK);
}

/* Links the frozen file of the checkpoint before, which has the same bytes, into this one. Returns
 * 0 if it cannot. */
static int frozen_link(sherdi_save *save)
{
    sherdi_frozen_file *file = &save->engine->checkpoints->frozen;
    char                to[SHERDI_CHECKPOINT_PATH_BYTES];
    char                name[SHERDI_CHECKPOINT_NAME_BYTES];

    if (file->bytes == 0 || file->fingerprint != save->engine->fingerprints.frozen) {
        return 0;
    }
    sherdi_data_file_name(SHERDI_DATA_FROZEN, save->engine->rank, save->engine->world_size, name);
    if (sherdi_checkpoint_partial_path(save->dir, save->tag, name, to) != SHERD_OK ||
        !sherdi_checkpoint_link(file->path, to, file->bytes)) {
        return 0;
    }
    save->mine.files[SHERDI_DATA_FROZEN] =
        (sherdi_manifest_file){.bytes = file->bytes, .header_checksum = file->header_checksum};
    return 1;
}

sherd_status sherdi_checkpoint_queue(sherd_engine *engine, sherdi_ioq **out)
{
    sherdi_ioq_params params = {.request_bytes = SHERDI_CHECKPOINT_SLOT_BYTES,
                                .depth         = SHERDI_CHECKPOINT_SLOTS,
                                .rank          = engine->rank,
                                .trace         = sherdi_marks_trace(engine)};

    return sherdi_ioq_create(&params, &engine->mem, out);
}

static sherd_status open_local(sherdi_save *save)
{
    SHERDI_TRY(sherdi_checkpoint_queue(save->engine, &save->queue));
    return manifest_begin(save);
}

/* Whether this rank's state can be linked into a checkpoint: it is on a drive, and this rank saves
 * it. */
static int is_linkable(const sherd_engine *engine)
{
    return engine->plan->has_generations && sherdi_shard_is_saver(engine->plan);
}

/* If the state is going to be linked, a new set is written in its place later. Either every rank
 * reserves room for it, or no rank keeps anything. If the state is copied instead, space_check
 * checks the room. Collective. */
static sherd_status state_reserve(sherdi_save *save)
{
    sherd_engine *engine = save->engine;
    sherdi_state *state  = sherdi_store_state(engine);
    char          name[SHERDI_CHECKPOINT_NAME_BYTES];
    sherd_status  status = SHERD_OK;

    if (is_linkable(engine)) {
        sherdi_linked_name(engine->rank, engine->world_size, name);
        status = sherdi_run_settle(engine, SHERDI_RING_STATE);
        status = status == SHERD_OK ? sherdi_state_keep_check(state, save->folder, name) : status;
        status = status == SHERD_OK         ? sherdi_state_reserve(state)
                 : status == SHERD_E_NOTSUP ? SHERD_OK
                                            : status;
    }
    status = sherdi_agree_status(engine, status);
    if (status != SHERD_OK && is_linkable(engine)) {
        sherdi_state_unreserve(state);
    }
    return status;
}

/* Gives the state's live generation to the checkpoint as it lies on the drive, if links are
 * possible. */
static sherd_status state_link(sherdi_save *save)
{
    sherd_engine           *engine = save->engine;
    sherdi_state_slots_file file;
    char                    name[SHERDI_CHECKPOINT_NAME_BYTES];
    sherd_status            status;

    if (!is_linkable(engine)) {
        return SHERD_OK;
    }
    sherdi_linked_name(engine->rank, engine->world_size, name);
    status = sherdi_state_keep(sherdi_store_state(engine), save->folder, name);
    if (status == SHERD_E_NOTSUP) {
        sherdi_log(SHERD_LOG_INFO, engine->rank, "the state is copied into the checkpoint: %s",
                   sherd_last_error());
        return SHERD_OK;
    }
    SHERDI_TRY(status);
    save->mine.is_linked = 1;
    sherdi_state_describe_file(sherdi_store_state(engine), &file);
    engine->checkpoints->report.kept_bytes += file.len_bytes;
    return SHERD_OK;
}

static int has_data(const sherdi_save *save, sherdi_data_file which)
{
    const sherd_engine *engine = save->engine;
    size_t              at     = 0;

    return sherdi_shard_bytes(engine->plan, &engine->model, which) > 0 ||
           (which == SHERDI_DATA_STATE &&
            sherdi_shard_next_blob(engine->blobs, engine->rank, &at) != NULL);
}

static sherd_status headers_make(sherdi_save *save)
{
    for (int f = 0; f < SHERDI_DATA_FILES; f++) {
        if (has_data(save, (sherdi_data_file)f)) {
            SHERDI_TRY(sherdi_save_header_make(save, (sherdi_data_file)f));
        }
    }
    return SHERD_OK;
}

static sherd_status files_open(sherdi_save *save)
{
    SHERDI_TRY(state_link(save));
    SHERDI_TRY(headers_make(save));
    if (save->headers[SHERDI_DATA_FROZEN] != NULL && frozen_link(save)) {
        save->engine->checkpoints->report.kept_bytes += save->mine.files[SHERDI_DATA_FROZEN].bytes;
        sherdi_safetensors_builder_destroy(save->headers[SHERDI_DATA_FROZEN]);
        save->headers[SHERDI_DATA_FROZEN] = NULL;
    }
    for (int f = 0; f < SHERDI_DATA_FILES; f++) {
        if (save->headers[f] != NULL) {
            save->all_bytes += sherdi_safetensors_data_bytes(save->headers[f]);
            save->mine.bytes +=
                save->header_len[f] + sherdi_safetensors_data_bytes(save->headers[f]);
        }
    }
    return SHERD_OK;
}

static sherd_status writers_open(sherdi_save *save)
{
    for (int f = 0; f < SHERDI_DATA_FILES; f++) {
        if (save->headers[f] != NULL) {
            SHERDI_TRY(sherdi_save_writer_make(save, (sherdi_data_file)f));
        }
    }
    return SHERD_OK;
}

/* ----------------------------------------------------------------- begin, end -- */

static void frozen_remember(const sherdi_save *save)
{
    sherdi_frozen_file *file = &save->engine->checkpoints->frozen;
    char                name[SHERDI_CHECKPOINT_NAME_BYTES];

    sherdi_data_file_name(SHERDI_DATA_FROZEN, save->engine->rank, save->engine->world_size, name);
    file->bytes           = save->mine.files[SHERDI_DATA_FROZEN].bytes;
    file->header_checksum = save->mine.files[SHERDI_DATA_FROZEN].header_checksum;
    file->fingerprint     = save->manifest.frozen_fingerprint;
    if (sherdi_checkpoint_path(save->dir, save->tag, name, file->path) != SHERD_OK) {
        file->bytes = 0;
    }
}

static void save_close(sherdi_save *save)
{
    (void)sherdi_save_thread_join(save);
    for (int f = 0; f < SHERDI_DATA_FILES; f++) {
        sherdi_writer_close(&save->writers[f]);
        sherdi_safetensors_builder_destroy(save->headers[f]);
    }
    sherdi_ioq_destroy(save->queue);
    sherdi_free(save->slots);
    sherdi_free(save->blobs);
    sherdi_manifest_fini(&save->manifest);
    sherdi_free(save->all);
    sherdi_free(save->owners);
    save->engine->checkpoints->save = NULL;
    sherdi_free(save);
}

/* Ends a save: if all ranks have written everything, the checkpoint becomes complete, else it is
 * removed. Collective. */
static sherd_status save_end(sherdi_save *save, sherd_status own)
{
    sherd_engine  *engine = save->engine;
    sherd_status   status = files_exchange(save, own);
    sherdi_outcome all;

    if (status != SHERD_E_PEER_LOST) {
        status = manifest_publish(save, status);
    }
    all                                    = sherdi_outcome_of(status);
    engine->checkpoints->report.is_running = 0;
    engine->checkpoints->report.all_s      = (double)(sherdi_now_ns() - save->start_ns) / 1e9;
    if (status == SHERD_OK) {
        engine->checkpoints->report.fingerprint = saved_fingerprint(save);
        frozen_remember(save);
        sherdi_checkpoint_note(engine, save->dir, save->tag);
    }
    if (status == SHERD_OK && engine->rank == 0) {
        old_remove(save);
    }
    if (status == SHERD_OK && save->num_owners > 1) {
        sherdi_save_parts_remove(save);
    }
    if (status != SHERD_OK && save->claim.is_held) {
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            sherdi_writer_close(&save->writers[f]);
        }
        sherdi_checkpoint_abandon(save->dir, save->tag, &save->claim);
    }
    save_close(save);
    return sherdi_outcome_end(&all);
}

static uint64_t arguments_hash(const sherdi_save *save)
{
    uint64_t hash = sherdi_hash_bytes(1, save->dir, strlen(save->dir));

    hash = sherdi_hash_bytes(hash, save->tag, strlen(save->tag));
    return sherdi_hash_u64(hash, (uint64_t)save->is_async << 32 | (uint32_t)save->params.keep_last);
}

static sherd_status save_prepare(sherdi_save *save)
{
    sherd_status status;

    SHERDI_TRY(sherdi_agree_status(save->engine, open_local(save)));
    SHERDI_TRY(sherdi_save_folders_make(save));
    SHERDI_TRY(state_reserve(save));
    status = files_open(save);
    SHERDI_TRY(files_exchange(save, status));
    SHERDI_TRY(space_check(save));
    return sherdi_agree_status(save->engine, writers_open(save));
}

static sherd_status save_run(sherdi_save *save)
{
    sherd_engine *engine = save->engine;
    sherd_status  status = save_prepare(save);

    if (status == SHERD_OK) {
        status = sherdi_save_data(save);
        if (save->is_async) { /* either all ranks start to write, or none */
            status = sherdi_agree_status(engine, status);
        }
    }
    engine->checkpoints->report.bytes = save->mine.bytes;
    engine->checkpoints->report.step  = engine->counters.step;
    if (!save->is_async || status != SHERD_OK) {
        return save_end(save, status);
    }
    sherdi_save_thread_start(save);
    engine->checkpoints->report.is_running = 1;
    return SHERD_OK;
}

static sherd_status save_create(sherd_engine *engine, const char *dir, const char *tag,
                                const sherd_save_params *params)
{
    sherdi_save *save = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*save));
    char         name[SHERDI_CHECKPOINT_NAME_BYTES];

    if (save == NULL) {
        return SHERD_E_NOMEM;
    }
    engine->checkpoints->save = save;
    save->engine              = engine;
    save->params              = *params;
    /* state on a drive is linked, so no data remains to be written while the training continues */
    save->is_async = params->is_async && !engine->plan->has_generations;
    save->start_ns = sherdi_now_ns();
    sherdi_manifest_init(&save->manifest, &engine->mem);
    (void)snprintf(name, sizeof(name), "step-%06lld", (long long)engine->counters.step);
    text_copy(save->dir, sizeof(save->dir), dir);
    text_copy(save->tag, sizeof(save->tag), tag == NULL ? name : tag);
    save->all    = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)engine->world_size,
                                      sizeof(*save->all));
    save->owners = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)engine->world_size,
                                      sizeof(*save->owners));
    return save->all == NULL || save->owners == NULL
               ? SHERD_E_NOMEM
               : sherdi_checkpoint_partial_path(save->dir, save->tag, NULL, save->folder);
}

/* Makes the save, the same on all ranks. Collective. */
static sherd_status save_begin(sherd_engine *engine, const char *dir, const char *tag,
                               const sherd_save_params *params)
{
    sherd_status status = save_create(engine, dir, tag, params);
    uint64_t     hash   = status == SHERD_OK ? arguments_hash(engine->checkpoints->save) : 0;
    int          odd;

    SHERDI_TRY(sherdi_agree_same(engine, "sherd_checkpoint_save", status, hash, &odd));
    return odd == 0 ? SHERD_OK
                    : sherdi_fail(SHERD_E_INVAL,
                                  "rank %d saves to another folder or tag, or in another way, than "
                                  "rank 0; all ranks must save the same",
                                  odd);
}

/* ---------------------------------------------------------------------- calls -- */

void sherd_save_params_init(sherd_save_params *params)
{
    sherdi_api_init(params, &(sherd_save_params){
                                .struct_size = sizeof(*params), .is_async = -1, .keep_last = -1});
}

void sherd_checkpoint_report_init(sherd_checkpoint_report *report)
{
    sherdi_api_init(report, &(sherd_checkpoint_report){.struct_size = sizeof(*report)});
}

/* Combines the caller's parameters with the configuration. */
static sherd_status params_resolve(const sherd_engine *engine, const sherd_save_params *params,
                                   sherd_save_params *out)
{
    sherd_save_params_init(out);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_save_params), out));
    out->is_async = out->is_async < 0 ? engine->settings.checkpoint.is_async : out->is_async;
    SHERDI_TRY(sherdi_api_check_flag(out->is_async, "sherd_save_params.is_async"));
    SHERDI_TRY(sherdi_api_check_flag(out->may_be_in_window, "sherd_save_params.may_be_in_window"));
    out->keep_last = out->keep_last < 0 ? engine->settings.checkpoint.keep_last : out->keep_last;
    if (out->is_async && !engine->settings.checkpoint.is_async) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "an asynchronous save needs room for a copy of the state, which is "
                           "planned at seal: set \"checkpoint\": {\"async\": true}");
    }
    return SHERD_OK;
}

static sherd_status save_check(const sherd_engine *engine, const char *dir, const char *tag,
                               const sherd_save_params *params)
{
    unsigned needs = SHERDI_NEED_SEALED | SHERDI_NEED_UNPREPARED | SHERDI_NEED_RELEASED;

    SHERDI_TRY(sherdi_api_need(dir != NULL, "sherd_checkpoint_save", "dir"));
    SHERDI_TRY(sherdi_checksum_check_built());
    if (strlen(dir) + SHERDI_CHECKPOINT_NAME_BYTES >= SHERDI_CHECKPOINT_PATH_BYTES) {
        return sherdi_fail(SHERD_E_INVAL, "the folder of checkpoints has too long a path");
    }
    SHERDI_TRY(tag == NULL ? SHERD_OK : sherdi_tag_check(tag));
    return sherdi_engine_need(engine, "sherd_checkpoint_save",
                              params->may_be_in_window ? needs : needs | SHERDI_NEED_NO_GRADIENTS);
}

/* Ends an asynchronous save. The next call that waits for it returns its error. */
static void save_settle(sherd_engine *engine)
{
    sherdi_save *save   = engine->checkpoints->save;
    sherd_status status = save_end(save, sherdi_save_thread_join(save));

    if (status != SHERD_OK) {
        engine->checkpoints->failure = sherdi_outcome_of(status);
        sherdi_log(SHERD_LOG_ERROR, engine->rank, "an asynchronous save failed: %s",
                   engine->checkpoints->failure.text);
    }
}

/* Waits for an asynchronous save, and returns the error of the last one. */
static sherd_status save_wait(sherd_engine *engine)
{
    sherdi_outcome failure;

    if (engine->checkpoints->save != NULL) {
        save_settle(engine);
    }
    failure                             = engine->checkpoints->failure;
    engine->checkpoints->failure.status = SHERD_OK;
    return sherdi_outcome_end(&failure);
}

sherd_status sherd_checkpoint_save(sherd_engine *engine, const char *dir, const char *tag,
                                   const sherd_save_params *params)
{
    sherd_save_params given;
    sherd_status      status;
    int64_t           start_ns;

    SHERDI_TRY(sherdi_engine_check_alive(engine, "sherd_checkpoint_save"));
    SHERDI_TRY(params_resolve(engine, params, &given));
    SHERDI_TRY(save_check(engine, dir, tag, &given));
    SHERDI_TRY(sherdi_fill_finish(engine));
    SHERDI_TRY(SHERDI_ASK(queue, tell, engine));
    SHERDI_TRY(save_wait(engine));
    sherd_checkpoint_report_init(&engine->checkpoints->report);
    status = save_begin(engine, dir, tag, &given);
    if (status != SHERD_OK) {
        if (engine->checkpoints->save != NULL) {
            save_close(engine->checkpoints->save);
        }
        return status;
    }
    start_ns                              = engine->checkpoints->save->start_ns;
    status                                = save_run(engine->checkpoints->save);
    engine->checkpoints->report.blocked_s = (double)(sherdi_now_ns() - start_ns) / 1e9;
    return sherdi_engine_outcome(engine, status);
}

/* At each boundary while an asynchronous save runs: makes the checkpoint complete when all ranks
 * have written their files. If the save failed, sherd_checkpoint_wait returns the error.
 * Collective. */
static sherd_status save_advance(sherd_engine *engine)
{
    sherdi_save *save =
        engine->checkpoints == NULL ? NULL : engine->checkpoints->save; /* a dry engine has none */

    if (save == NULL) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_SAVING, SHERD_OK,
                                 !atomic_load(&save->is_over), NULL));
    if (sherdi_agree_sum(engine, engine->plan->replica) == 0) {
        save_settle(engine);
    }
    return SHERD_OK;
}

/* Abandons a save in progress. Local. */
static void save_abandon(sherd_engine *engine)
{
    sherdi_save *save = engine->checkpoints == NULL ? NULL : engine->checkpoints->save;

    if (save == NULL) {
        return;
    }
    (void)sherdi_save_thread_join(save);
    if (engine->rank == 0) {
        sherdi_log(
            SHERD_LOG_WARN, engine->rank,
            "the asynchronous save of %s/%s was not over when the engine was destroyed, and is "
            "dropped; call sherd_checkpoint_wait before sherd_engine_destroy",
            save->dir, save->tag);
    }
    sherdi_checkpoint_abandon(save->dir, save->tag, &save->claim);
    save_close(save);
}

void sherdi_checkpoint_note(sherd_engine *engine, const char *dir, const char *tag)
{
    sherdi_checkpoints *of = engine->checkpoints;

    (void)snprintf(of->newest, sizeof(of->newest), "%s/%s", dir, tag);
    of->newest_ns   = sherdi_now_ns();
    of->newest_step = of->report.step;
}

static sherd_status checkpoints_create(sherd_engine *engine)
{
    engine->checkpoints =
        sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*engine->checkpoints));
    return engine->checkpoints == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static void checkpoints_destroy(sherd_engine *engine)
{
    sherdi_free(engine->checkpoints);
}

const sherdi_module sherdi_module_checkpoints = {
    .create  = checkpoints_create,
    .lay_out = sherdi_plan_checkpoint_lay_out,
    .stepped = save_advance,
    .abandon = save_abandon,
    .destroy = checkpoints_destroy,
};

sherd_status sherd_checkpoint_wait(sherd_engine *engine, sherd_checkpoint_report *out)
{
    sherd_status status;

    SHERDI_TRY(sherdi_engine_check_caller(engine, "sherd_checkpoint_wait"));
    SHERDI_TRY(out == NULL ? SHERD_OK : sherdi_api_check(out, SHERDI_API(sherd_checkpoint_report)));
    status = save_wait(engine);
    if (out != NULL) {
        sherdi_api_write(&engine->checkpoints->report, out);
    }
    return status;
}

sherd_status sherd_checkpoint_query(const sherd_engine *engine, sherd_checkpoint_report *out)
{
    SHERDI_TRY(sherdi_api_need(engine != NULL, "sherd_checkpoint_query", "the engine"));
    SHERDI_TRY(sherdi_api_check(out, SHERDI_API(sherd_checkpoint_report)));
    sherdi_api_write(&engine->checkpoints->report, out);
    return SHERD_OK;
}
