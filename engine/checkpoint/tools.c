/* Checkpoints for tools: finds, describes, verifies, reads and removes them without an engine. See
 * sherd_tools.h; tools_text.c writes text about a checkpoint. */
#include "engine/checkpoint/tools.h"

#include "base/api.h"
#include "base/checked.h"
#include "engine/checkpoint/folder.h"
#include "kernels/formulas.h"
#include "offload/checksum.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The slots for reading ahead; a tool has more memory for them than a rank among many. */
#define SLOTS      8
#define SLOT_BYTES SHERDI_CHECKPOINT_SLOT_BYTES

static void info_init(sherd_checkpoint_info *info)
{
    *info = (sherd_checkpoint_info){.struct_size = sizeof(*info), .step = -1};
}

/* --------------------------------------------------------------------- open -- */

static void manifest_describe(const sherdi_manifest *m, sherd_checkpoint_info *info)
{
    (void)snprintf(info->version, sizeof(info->version), "%s", m->version);
    sherdi_manifest_optimizers(m, info->optimizer, sizeof(info->optimizer));
    info->step              = m->step;
    info->saved_s           = m->saved_s;
    info->world_size        = m->world_size;
    info->stage             = m->stage;
    info->compute_dtype     = m->compute_dtype;
    info->num_params        = m->num_params;
    info->fingerprint       = m->fingerprint;
    info->state_fingerprint = m->state_fingerprint;
    info->data_bytes        = m->data_bytes;
    for (size_t p = 0; p < m->num_params; p++) {
        info->num_elems += m->params[p].elems;
    }
}

/* Describes the first file that is not as the manifest says, as the reason why the checkpoint is
 * not complete. */
static void problem_describe(sherd_checkpoint *c, int rank, sherdi_data_file which, int64_t bytes)
{
    const sherdi_manifest *m    = sherdi_reader_manifest(c->reader);
    const char            *host = sherdi_manifest_host(m, rank);
    char                   name[SHERDI_CHECKPOINT_NAME_BYTES];

    sherdi_data_file_name(which, rank, m->world_size, name);
    if (bytes < 0 && host[0] != '\0') {
        (void)snprintf(c->info.problem, sizeof(c->info.problem),
                       "%s is missing, which was written on host %s", name, host);
    } else if (bytes < 0) {
        (void)snprintf(c->info.problem, sizeof(c->info.problem), "%s is missing", name);
    } else {
        (void)snprintf(c->info.problem, sizeof(c->info.problem),
                       "%s has %" PRId64 " bytes, and the manifest says %" PRIu64, name, bytes,
                       m->files[rank][which].bytes);
    }
}

/* Adds how many files of a checkpoint of several hosts are missing, and what to do. */
static void problem_complete(sherd_checkpoint *c, int missing)
{
    size_t used = strlen(c->info.problem);
    char   more[64];

    (void)snprintf(more, sizeof(more), "; %d more files are missing", missing - 1);
    (void)snprintf(c->info.problem + used, sizeof(c->info.problem) - used,
                   "%s; copy what the folder %s of each host has into one folder",
                   missing > 1 ? more : "", c->info.tag);
}

static int files_are_there(sherd_checkpoint *c)
{
    const sherdi_manifest *m       = sherdi_reader_manifest(c->reader);
    int                    is_all  = 1;
    int                    missing = 0;

    for (int r = 0; r < m->world_size; r++) {
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            int64_t said = (int64_t)m->files[r][f].bytes;
            int64_t bytes =
                said == 0 ? 0 : sherdi_reader_file_bytes(c->reader, (sherdi_data_file)f, r);

            if (bytes != said && is_all) {
                problem_describe(c, r, (sherdi_data_file)f, bytes);
                is_all = 0;
            }
            missing += bytes < 0;
        }
    }
    if (m->hosts != NULL && missing > 0) {
        problem_complete(c, missing);
    }
    return is_all;
}

/* Fills in the properties that the folder itself shows. */
static void folder_describe(const char *dir, const char *tag, sherd_checkpoint_info *info)
{
    char                    latest[SHERDI_CHECKPOINT_NAME_BYTES];
    sherdi_checkpoint_found found;

    (void)snprintf(info->tag, sizeof(info->tag), "%s", tag);
    info->is_latest = sherdi_checkpoint_latest(dir, latest) == SHERD_OK && strcmp(latest, tag) == 0;
    if (sherdi_checkpoint_look(dir, tag, &found)) {
        info->held_bytes   = found.held_bytes;
        info->shared_bytes = found.shared_bytes;
    }
}

static sherd_status reader_make(sherd_checkpoint *c)
{
    sherdi_ioq_params queueing = {.request_bytes = SLOT_BYTES, .depth = SLOTS};

    SHERDI_TRY(sherdi_ioq_create(&queueing, &c->mem, &c->queue));
    c->slots = sherdi_alloc(&c->mem, SHERDI_MEM_HOST_STAGING, SLOTS * SLOT_BYTES);
    if (c->slots == NULL) {
        return SHERD_E_NOMEM;
    }
    return sherdi_reader_open(&(sherdi_reader_params){.queue      = c->queue,
                                                      .mem        = &c->mem,
                                                      .dir        = c->dir,
                                                      .tag        = c->info.tag,
                                                      .memory     = c->slots,
                                                      .slot_bytes = SLOT_BYTES,
                                                      .num_slots  = SLOTS},
                              &c->reader);
}

static sherd_status open_tag(const char *dir, const char *tag, sherd_checkpoint *c)
{
    sherd_status status;

    SHERDI_TRY(sherdi_tag_check(tag));
    c->dir = sherdi_strdup(&c->mem, dir);
    if (c->dir == NULL) {
        return SHERD_E_NOMEM;
    }
    folder_describe(dir, tag, &c->info);
    status = reader_make(c);
    if (status == SHERD_OK) {
        manifest_describe(sherdi_reader_manifest(c->reader), &c->info);
        c->info.is_complete = files_are_there(c);
    }
    return status;
}

sherd_status sherd_checkpoint_open(const char *dir, const char *tag, sherd_checkpoint **out)
{
    char              latest[SHERDI_CHECKPOINT_NAME_BYTES];
    sherd_checkpoint *c;
    sherd_status      status;

    SHERDI_TRY(sherdi_api_need(dir != NULL, "sherd_checkpoint_open", "dir"));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_checkpoint_open"));
    SHERDI_TRY(sherdi_checksum_check_built());
    if (tag == NULL) {
        SHERDI_TRY(sherdi_checkpoint_latest(dir, latest));
    }
    c = calloc(1, sizeof(*c));
    if (c == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory to open a checkpoint");
    }
    sherdi_mem_init(&c->mem);
    info_init(&c->info);
    status = open_tag(dir, tag == NULL ? latest : tag, c);
    if (status != SHERD_OK) {
        sherd_checkpoint_close(c);
        return status;
    }
    *out = c;
    return SHERD_OK;
}

void sherd_checkpoint_close(sherd_checkpoint *checkpoint)
{
    if (checkpoint == NULL) {
        return;
    }
    sherdi_reader_close(checkpoint->reader);
    sherdi_ioq_destroy(checkpoint->queue);
    sherdi_free(checkpoint->slots);
    sherdi_free(checkpoint->dir);
    assert(sherdi_mem_held_all(&checkpoint->mem) == 0 && "a checkpoint leaves memory behind");
    free(checkpoint);
}

const sherd_checkpoint_info *sherd_checkpoint_describe(const sherd_checkpoint *checkpoint)
{
    return checkpoint == NULL ? NULL : &checkpoint->info;
}

/* -------------------------------------------------------------- find, remove -- */

static sherd_status found_report(const char *dir, const sherdi_checkpoint_found *found,
                                 sherd_checkpoint_fn fn, void *ctx)
{
    sherd_checkpoint     *c;
    sherd_checkpoint_info info;
    sherd_status          status = sherd_checkpoint_open(dir, found->tag, &c);

    if (status == SHERD_E_NOMEM || status == SHERD_E_NOTSUP) {
        return status;
    }
    if (status == SHERD_OK) {
        status = fn(ctx, &c->info);
        sherd_checkpoint_close(c);
        return status;
    }
    info_init(&info);
    (void)snprintf(info.problem, sizeof(info.problem), "%s", sherd_last_error());
    folder_describe(dir, found->tag, &info);
    return fn(ctx, &info);
}

sherd_status sherd_checkpoints_find(const char *dir, sherd_checkpoint_fn fn, void *ctx)
{
    sherdi_mem               mem;
    sherdi_checkpoint_found *all;
    size_t                   count;
    sherd_status             status = SHERD_OK;

    SHERDI_TRY(sherdi_api_need(dir != NULL, "sherd_checkpoints_find", "dir"));
    SHERDI_TRY(sherdi_api_need(fn != NULL, "sherd_checkpoints_find", "fn"));
    SHERDI_TRY(sherdi_checksum_check_built());
    sherdi_mem_init(&mem);
    SHERDI_TRY(sherdi_checkpoint_list(&mem, dir, &all, &count));
    for (size_t i = 0; i < count && status == SHERD_OK; i++) {
        status = found_report(dir, &all[i], fn, ctx);
    }
    sherdi_free(all);
    return status;
}

sherd_status sherd_checkpoint_remove(const char *dir, const char *tag)
{
    SHERDI_TRY(sherdi_api_need(dir != NULL, "sherd_checkpoint_remove", "dir"));
    SHERDI_TRY(sherdi_api_need(tag != NULL, "sherd_checkpoint_remove", "tag"));
    return sherdi_checkpoint_remove(dir, tag);
}

/* ------------------------------------------------------------------- values -- */

void sherd_checkpoint_param_init(sherd_checkpoint_param *param)
{
    sherdi_api_init(param, &(sherd_checkpoint_param){.struct_size = sizeof(*param)});
}

sherd_status sherd_checkpoint_param_at(const sherd_checkpoint *checkpoint, size_t index,
                                       sherd_checkpoint_param *out)
{
    const sherdi_manifest       *m;
    const sherdi_manifest_param *from;
    sherd_checkpoint_param       param;

    SHERDI_TRY(sherdi_api_need(checkpoint != NULL, "sherd_checkpoint_param_at", "the checkpoint"));
    SHERDI_TRY(sherdi_api_check(out, SHERDI_API_WITH(sherd_checkpoint_param, shape)));
    m = sherdi_reader_manifest(checkpoint->reader);
    if (index >= m->num_params) {
        return sherdi_fail(SHERD_E_INVAL, "%s/%s has %zu parameters; there is no number %zu",
                           checkpoint->dir, checkpoint->info.tag, m->num_params, index);
    }
    from = &m->params[index];
    sherd_checkpoint_param_init(&param);
    param.name      = from->name;
    param.ndim      = from->ndim;
    param.is_frozen = from->is_frozen;
    param.elems     = from->elems;
    memcpy(param.shape, from->shape, sizeof(param.shape));
    sherdi_api_write(&param, out);
    return SHERD_OK;
}

typedef struct values_read {
    size_t first;
    float *out;
} values_read;

static sherd_status values_come(void *ctx, size_t first, size_t count, const void *values,
                                sherd_dtype dtype)
{
    values_read    *read = ctx;
    float          *out  = read->out + (first - read->first);
    const uint16_t *half = values;

    if (dtype == SHERD_F32) {
        memcpy(out, values, count * sizeof(*out));
        return SHERD_OK;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = dtype == SHERD_BF16 ? sherdi_cast_bf16_f32(half[i]) : sherdi_cast_f16_f32(half[i]);
    }
    return SHERD_OK;
}

/* Finds a part by name. A frozen parameter has one part, its values. */
static sherd_status part_find(const sherd_checkpoint *c, const sherdi_manifest_param *param,
                              const char *part, int *out)
{
    const sherdi_manifest *m = sherdi_reader_manifest(c->reader);

    *out = param->is_frozen && strcmp(part, SHERDI_FROZEN_PART) == 0
               ? 0
               : sherdi_reader_find_part(c->reader, part);
    if (*out < 0 || !sherdi_manifest_has_part(m, (size_t)(param - m->params), *out)) {
        return sherdi_fail(SHERD_E_INVAL, "%s/%s: parameter %s has no part %s", c->dir, c->info.tag,
                           param->name, part);
    }
    return SHERD_OK;
}

/* A range of elements, as numbers of the reader. */
typedef struct values_range {
    size_t param, first, count;
    int    part;
} values_range;

static sherd_status range_find(const sherd_checkpoint *checkpoint, const char *call,
                               const char *param, const char *part, values_range *range)
{
    size_t                       first = range->first, count = range->count;
    const sherdi_manifest_param *at;
    int64_t                      found;

    SHERDI_TRY(sherdi_api_need(checkpoint != NULL, call, "the checkpoint"));
    SHERDI_TRY(sherdi_api_need(param != NULL && part != NULL, call, "a parameter, or its part,"));
    found = sherdi_reader_find_param(checkpoint->reader, param);
    if (found < 0) {
        return sherdi_fail(SHERD_E_INVAL, "%s/%s has no parameter %s", checkpoint->dir,
                           checkpoint->info.tag, param);
    }
    at = &sherdi_reader_manifest(checkpoint->reader)->params[found];
    SHERDI_TRY(part_find(checkpoint, at, part, &range->part));
    if (first > at->elems || count > at->elems - first) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s/%s: parameter %s has %zu elements, and %zu from %zu on are asked "
                           "for",
                           checkpoint->dir, checkpoint->info.tag, param, at->elems, count, first);
    }
    range->param = (size_t)found;
    return SHERD_OK;
}

sherd_status sherd_checkpoint_read(sherd_checkpoint *checkpoint, const char *param,
                                   const char *part, size_t first, size_t count, float *out)
{
    values_read  read  = {.first = first, .out = out};
    values_range range = {.first = first, .count = count};

    SHERDI_TRY(range_find(checkpoint, "sherd_checkpoint_read", param, part, &range));
    SHERDI_TRY(sherdi_api_need(out != NULL || count == 0, "sherd_checkpoint_read", "out"));
    return sherdi_reader_values(checkpoint->reader, range.param, range.part, first, count,
                                values_come, &read);
}

typedef struct values_mix {
    uint64_t index; /* of the parameter's first element, in the model */
    uint64_t sum;
} values_mix;

static sherd_status values_mixed(void *ctx, size_t first, size_t count, const void *values,
                                 sherd_dtype dtype)
{
    values_mix *mix = ctx;

    for (size_t done = 0; done < count;) {
        float  tile[256];
        size_t some = sherdi_min_size(count - done, sizeof(tile) / sizeof(tile[0]));

        (void)values_come(&(values_read){.out = tile}, 0, some,
                          (const unsigned char *)values + done * sherd_dtype_bytes(dtype), dtype);
        for (size_t i = 0; i < some; i++) {
            mix->sum += sherdi_mix_element(mix->index + first + done + i, tile[i]);
        }
        done += some;
    }
    return SHERD_OK;
}

sherd_status sherd_checkpoint_fingerprint(sherd_checkpoint *checkpoint, const char *param,
                                          const char *part, size_t first, size_t count,
                                          int *is_damaged_out, uint64_t *out)
{
    static const char            CALL[]     = "sherd_checkpoint_fingerprint";
    values_mix                   mix        = {0};
    values_range                 range      = {.first = first, .count = count};
    int                          is_damaged = 0;
    const sherdi_manifest_param *params;
    sherd_status                 status;

    SHERDI_TRY(range_find(checkpoint, CALL, param, part, &range));
    SHERDI_TRY(sherdi_api_check_out(out, CALL));
    params = sherdi_reader_manifest(checkpoint->reader)->params;
    for (size_t p = 0; p < range.param; p++) {
        mix.index += params[p].elems;
    }
    sherdi_reader_tolerate(checkpoint->reader, is_damaged_out == NULL ? NULL : &is_damaged);
    status = sherdi_reader_values(checkpoint->reader, range.param, range.part, first, count,
                                  values_mixed, &mix);
    sherdi_reader_tolerate(checkpoint->reader, NULL);
    SHERDI_TRY(status);
    if (is_damaged_out != NULL) {
        *is_damaged_out = is_damaged;
    }
    *out = mix.sum;
    return SHERD_OK;
}

sherd_status sherd_checkpoint_blob(sherd_checkpoint *checkpoint, const char *key, int *is_there_out,
                                   sherd_write_fn write, void *ctx)
{
    const sherdi_blob *blob;
    sherdi_blobs       blobs;
    sherd_status       status;

    SHERDI_TRY(sherdi_api_need(checkpoint != NULL, "sherd_checkpoint_blob", "the checkpoint"));
    SHERDI_TRY(sherdi_api_need(key != NULL, "sherd_checkpoint_blob", "key"));
    SHERDI_TRY(sherdi_api_need(is_there_out != NULL, "sherd_checkpoint_blob", "is_there_out"));
    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_checkpoint_blob", "write"));
    sherdi_blobs_init(&blobs, &checkpoint->mem);
    status        = sherdi_reader_blobs(checkpoint->reader, SHERDI_BLOB_GLOBAL, 0, &blobs);
    blob          = sherdi_blobs_find(&blobs, key, SHERDI_BLOB_GLOBAL, 0);
    *is_there_out = status == SHERD_OK && blob != NULL;
    if (*is_there_out) {
        status = write(ctx, (const char *)blob->data, blob->len_bytes);
    }
    sherdi_blobs_fini(&blobs);
    return status;
}

/* ------------------------------------------------------------------- verify -- */

typedef struct verification {
    const sherd_verify_params *params;
    uint64_t                   done_bytes, all_bytes;
    size_t                     damages;
    char                       first[SHERDI_ERROR_BYTES / 2];
} verification;

void sherd_verify_params_init(sherd_verify_params *params)
{
    sherdi_api_init(params, &(sherd_verify_params){.struct_size = sizeof(*params)});
}

static void progress_count(void *ctx, uint64_t more_bytes)
{
    verification *v = ctx;

    v->done_bytes += more_bytes;
    if (v->params->progress != NULL) {
        v->params->progress(v->params->progress_ctx, v->done_bytes, v->all_bytes);
    }
}

static void damage_count(void *ctx, const sherdi_reader_damage *damage)
{
    verification           *v     = ctx;
    sherd_checkpoint_damage about = {.struct_size = sizeof(about),
                                     .file        = damage->file,
                                     .tensor      = damage->tensor,
                                     .begin       = damage->begin,
                                     .len_bytes   = damage->len_bytes,
                                     .what        = damage->what};

    if (v->damages++ == 0) {
        (void)snprintf(v->first, sizeof(v->first), "%s%s%s: %s", damage->file,
                       damage->tensor == NULL ? "" : ", tensor ",
                       damage->tensor == NULL ? "" : damage->tensor, damage->what);
    }
    if (v->params->damage != NULL) {
        v->params->damage(v->params->damage_ctx, &about);
    }
}

sherd_status sherd_checkpoint_verify(sherd_checkpoint          *checkpoint,
                                     const sherd_verify_params *params)
{
    sherd_verify_params    given;
    verification           v = {.params = &given};
    const sherdi_manifest *m;
    sherdi_reader_watch    watch = {&v, progress_count, damage_count};

    SHERDI_TRY(sherdi_api_need(checkpoint != NULL, "sherd_checkpoint_verify", "the checkpoint"));
    sherd_verify_params_init(&given);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_verify_params), &given));
    m           = sherdi_reader_manifest(checkpoint->reader);
    v.all_bytes = m->data_bytes;
    for (int r = 0; r < m->world_size; r++) {
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            SHERDI_TRY(sherdi_reader_verify(checkpoint->reader, (sherdi_data_file)f, r, &watch));
        }
    }
    return v.damages == 0
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "%s/%s is damaged in %zu places; the first is %s",
                             checkpoint->dir, checkpoint->info.tag, v.damages, v.first);
}
