/* Imports weights from files to a checkpoint, without an engine. The checkpoint is as if one rank
 * had saved only master weights. Values are copied from the file through the slots of the writer,
 * so no tensor is held as a whole. */
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/bytes.h"
#include "engine/checkpoint/fit.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/weights_match.h"
#include "engine/checkpoint/writer.h"
#include "sherd_tools.h"

#include "base/api.h"
#include "base/checked.h"
#include "kernels/formulas.h"
#include "offload/checksum.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The slots of the writer. */
#define SLOTS      8
#define SLOT_BYTES SHERDI_CHECKPOINT_SLOT_BYTES

#define NOT_THERE SIZE_MAX

typedef struct model_param {
    const char *name; /* borrowed */
    int         ndim;
    size_t      shape[SHERD_MAX_NDIM];
    size_t      elems;
    size_t      given; /* where its tensors begin in the match, or NOT_THERE */
} model_param;

typedef struct making {
    sherdi_mem          *mem;
    sherd_import_params  params;
    const char          *dir, *tag;
    sherdi_claim         claim;
    sherdi_weights_file *file;
    sherdi_weights_maps  maps;
    sherdi_weights_match match;

    model_param        *model; /* in the order of declaration */
    const model_param **by_name;
    size_t              num_params;

    sherdi_ioq                 *queue;
    unsigned char              *slots;
    sherdi_safetensors_builder *header;
    const char                 *header_bytes;
    size_t                      header_len;
    sherdi_writer               writer;
    sherdi_manifest             manifest; /* with only the parameters that the file has */
    uint64_t                    done_bytes;
} making;

/* ---- the model ---- */

static sherdi_weights_param model_get(const void *ctx, size_t param)
{
    const model_param *p = &((const making *)ctx)->model[param];

    return sherdi_weights_param_of(p->name, p->ndim, p->shape, p->elems);
}

static int model_find(const void *ctx, const char *name, size_t *param_out)
{
    const making             *m    = ctx;
    const model_param         key  = {.name = name};
    const model_param        *wish = &key;
    const model_param *const *found =
        bsearch(&wish, m->by_name, m->num_params, sizeof(wish), sherdi_named_order);

    *param_out = found == NULL ? 0 : (size_t)(*found - m->model);
    return found != NULL;
}

static sherd_status param_add(making *m, const char *name, int ndim, const size_t *shape)
{
    model_param *param = &m->model[m->num_params];

    if (name == NULL || name[0] == '\0' || ndim < 0 || ndim > SHERD_MAX_NDIM) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_checkpoint_import: parameter %zu has no name, or %d dimensions; "
                           "0 to %d can be",
                           m->num_params, ndim, SHERD_MAX_NDIM);
    }
    *param = (model_param){.name = name, .ndim = ndim, .elems = 1, .given = NOT_THERE};
    for (int d = 0; d < ndim; d++) {
        param->shape[d] = shape[d];
        if (!sherdi_mul_fits(param->elems, shape[d], &param->elems)) {
            return sherdi_fail(SHERD_E_INVAL,
                               "sherd_checkpoint_import: parameter %s has too many elements", name);
        }
    }
    m->by_name[m->num_params++] = param;
    return SHERD_OK;
}

static sherd_status model_room(making *m, size_t most)
{
    m->model   = sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, most, sizeof(*m->model));
    m->by_name = sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, most, sizeof(const model_param *));
    return m->model == NULL || m->by_name == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

/* The caller's structs may be of another version, so their struct_size says where the next one
 * begins. */
static sherd_status model_take(making *m, const sherd_checkpoint_param *given, size_t count)
{
    SHERDI_TRY(model_room(m, count));
    for (size_t i = 0; i < count; i++) {
        sherd_checkpoint_param param;

        sherd_checkpoint_param_init(&param);
        SHERDI_TRY(sherdi_api_read((const char *)given + i * given->struct_size,
                                   SHERDI_API_WITH(sherd_checkpoint_param, shape), &param));
        if (param.struct_size != given->struct_size) {
            return sherdi_fail(
                SHERD_E_INVAL,
                "sherd_checkpoint_param %zu of an array has the struct_size %zu, and "
                "the first one %zu",
                i, param.struct_size, given->struct_size);
        }
        if (param.is_frozen) {
            return sherdi_fail(SHERD_E_INVAL,
                               "sherd_checkpoint_import: parameter %s is marked as frozen; leave "
                               "is_frozen 0: a checkpoint of weights does not store it, and loads "
                               "into models that freeze parameters all the same",
                               param.name == NULL ? "" : param.name);
        }
        SHERDI_TRY(param_add(m, param.name, param.ndim, param.shape));
    }
    return SHERD_OK;
}

/* Makes each tensor of the file a parameter, except tensors of other types that may be extra. */
static sherd_status model_of_file(making *m)
{
    sherdi_weights_tensor tensor;
    size_t                count = 0;

    while (sherdi_weights_get(m->file, count, &tensor)) {
        count++;
    }
    SHERDI_TRY(model_room(m, count));
    for (size_t i = 0; i < count; i++) {
        const sherdi_tensor *about;

        (void)sherdi_weights_get(m->file, i, &tensor);
        about = tensor.about;
        if (!sherdi_fit_is_allowed(m->params.may_be_extra, m->params.num_may_be_extra,
                                   about->name)) {
            SHERDI_TRY(param_add(m, about->name, about->ndim, about->shape));
        }
    }
    return SHERD_OK;
}

static sherd_status model_match(making *m)
{
    const sherdi_weights_model model = {
        .ctx = m, .num_params = m->num_params, .get = model_get, .find = model_find};
    sherdi_weights_range range;

    if (m->num_params > 1) {
        qsort(m->by_name, m->num_params, sizeof(*m->by_name), sherdi_named_order);
    }
    SHERDI_TRY(sherdi_weights_maps_open(m->mem, &model, m->params.tensors, m->params.num_tensors,
                                        &m->maps));
    SHERDI_TRY(sherdi_weights_match_open(m->mem, &model, &m->maps, m->file, &m->params, &m->match));
    SHERDI_TRY(sherdi_weights_match_data(&m->match));
    for (size_t at = 0; at < m->match.num_given; at = range.end) {
        const sherdi_weights_given *first = &m->match.given[at];

        range = sherdi_weights_range_at(&m->match, at);
        SHERDI_TRY(sherdi_weights_range_check(&range));
        m->model[first->param].given = first->is_there ? at : NOT_THERE;
    }
    return SHERD_OK;
}

/* ---- the files ---- */

/* The parameters are consecutive, so the offset of a parameter is also the global index of its
 * first element. */
static sherd_status manifest_param_add(making *m, const model_param *param)
{
    sherdi_manifest         *manifest = &m->manifest;
    sherdi_manifest_segment *segment  = &manifest->segments[0];
    sherdi_manifest_param   *to       = &manifest->params[manifest->num_params];

    to->name = sherdi_strdup(m->mem, param->name);
    if (to->name == NULL) {
        return SHERD_E_NOMEM;
    }
    manifest->num_params++;
    to->ndim         = param->ndim;
    to->elems        = param->elems;
    to->offset_elems = segment->slice_elems;
    memcpy(to->shape, param->shape, sizeof(to->shape));
    return sherdi_add_fits(segment->slice_elems, param->elems, &segment->slice_elems)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "sherd_checkpoint_import: the model has too many "
                                            "elements");
}

static sherd_status manifest_make(making *m)
{
    sherdi_manifest *manifest = &m->manifest;

    (void)snprintf(manifest->version, sizeof(manifest->version), "%s", sherd_version());
    (void)snprintf(manifest->tag, sizeof(manifest->tag), "%s", m->tag);
    (void)snprintf(manifest->optimizers[0].name, sizeof(manifest->optimizers[0].name), "none");
    manifest->num_optimizers      = 1;
    manifest->optimizers[0].parts = 1;
    (void)snprintf(manifest->parts[0].name, sizeof(manifest->parts[0].name), SHERD_MASTER);
    manifest->num_parts             = 1;
    manifest->world_size            = 1;
    manifest->compute_dtype         = SHERD_F32;
    manifest->accumulation          = 1;
    manifest->micro_batch_size      = 1;
    manifest->scaler.scale          = 1;
    manifest->has_state_fingerprint = 1;
    manifest->saved_s               = (int64_t)time(NULL);
    manifest->params =
        sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, m->num_params, sizeof(*manifest->params));
    manifest->segments =
        sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, 1, sizeof(*manifest->segments));
    manifest->files = sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, 1, sizeof(*manifest->files));
    if (manifest->params == NULL || manifest->segments == NULL || manifest->files == NULL) {
        return SHERD_E_NOMEM;
    }
    manifest->num_segments          = 1;
    manifest->segments[0].optimizer = manifest->optimizers[0];
    for (size_t p = 0; p < m->num_params; p++) {
        if (m->model[p].given != NOT_THERE) {
            SHERDI_TRY(manifest_param_add(m, &m->model[p]));
        }
    }
    return manifest->segments[0].slice_elems > 0
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "sherd_checkpoint_import: the file has no weights");
}

static sherd_status header_make(making *m)
{
    const sherdi_manifest *manifest = &m->manifest;
    size_t                 bytes;

    SHERDI_TRY(sherdi_safetensors_begin(m->mem, SHERD_ALIGN_BYTES, &m->header));
    for (size_t p = 0; p < manifest->num_params; p++) {
        const sherdi_manifest_param *param = &manifest->params[p];
        char                        *name;
        sherd_status                 status;

        name = sherdi_shard_tensor_name(m->mem, param->name, SHERD_MASTER, 0);
        if (name == NULL) {
            return SHERD_E_NOMEM;
        }
        status = sherdi_safetensors_add(m->header, name, SHERDI_TENSOR_F32, param->ndim,
                                        param->shape, NULL);
        sherdi_free(name);
        SHERDI_TRY(status);
    }
    bytes = sherdi_safetensors_data_bytes(m->header);
    SHERDI_TRY(sherdi_safetensors_metadata(m->header, "format", "sherd"));
    SHERDI_TRY(sherdi_safetensors_reserve(m->header, "checksums",
                                          sherdi_div_up(bytes, SHERDI_CHECKPOINT_EXTENT_BYTES) *
                                              SHERDI_HEX_DIGITS));
    return sherdi_safetensors_finish(m->header, &m->header_bytes, &m->header_len);
}

static sherd_status writer_make(making *m, const char *folder)
{
    const sherdi_ioq_params queueing = {.request_bytes = SLOT_BYTES, .depth = SLOTS};
    char                    name[SHERDI_CHECKPOINT_NAME_BYTES];

    SHERDI_TRY(sherdi_ioq_create(&queueing, m->mem, &m->queue));
    m->slots = sherdi_alloc(m->mem, SHERDI_MEM_HOST_STAGING, SLOTS * SLOT_BYTES);
    if (m->slots == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_data_file_name(SHERDI_DATA_STATE, 0, 1, name);
    return sherdi_writer_open(
        &m->writer,
        &(sherdi_writer_params){.queue        = m->queue,
                                .mem          = m->mem,
                                .folder       = folder,
                                .name         = name,
                                .memory       = m->slots,
                                .slot_bytes   = SLOT_BYTES,
                                .num_slots    = SLOTS,
                                .header_bytes = m->header_len,
                                .data_bytes   = sherdi_safetensors_data_bytes(m->header)});
}

/* ---- values ---- */

static uint64_t values_fingerprint(uint64_t index, size_t count, const float *values)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        sum += sherdi_mix_element(index + i, values[i]);
    }
    return sum;
}

static sherd_status param_write(making *m, const sherdi_manifest_param *param,
                                const sherdi_weights_range *from)
{
    size_t at = 0;

    while (at < param->elems) {
        unsigned char *to;
        float         *values;
        size_t         room;
        size_t         some;

        SHERDI_TRY(sherdi_writer_reserve(&m->writer, &to, &room));
        values = (float *)(void *)to;
        some   = sherdi_min_size(room / sizeof(*values), param->elems - at);
        SHERDI_TRY(sherdi_weights_range_read(from, at, some, values));
        m->manifest.fingerprint += values_fingerprint(param->offset_elems + at, some, values);
        sherdi_writer_advance(&m->writer, some * sizeof(*values));
        at += some;
        m->done_bytes += some * sizeof(*values);
        if (m->params.progress != NULL) {
            m->params.progress(m->params.progress_ctx, m->done_bytes, m->writer.params.data_bytes);
        }
    }
    return SHERD_OK;
}

static sherd_status data_write(making *m)
{
    sherdi_manifest_file *file    = &m->manifest.files[0][SHERDI_DATA_STATE];
    size_t                written = 0;

    for (size_t p = 0; p < m->num_params; p++) {
        if (m->model[p].given != NOT_THERE) {
            sherdi_weights_range from = sherdi_weights_range_at(&m->match, m->model[p].given);

            SHERDI_TRY(param_write(m, &m->manifest.params[written++], &from));
        }
    }
    SHERDI_TRY(sherdi_safetensors_set(m->header, "checksums", m->writer.checksums));
    SHERDI_TRY(sherdi_writer_finish(&m->writer, m->header_bytes));
    file->bytes            = m->header_len + m->writer.params.data_bytes;
    file->header_checksum  = sherdi_checksum(m->header_bytes, m->header_len);
    m->manifest.data_bytes = file->bytes;
    return SHERD_OK;
}

/* ---- the call ---- */

/* Checks everything that the caller gave, before anything is written. */
static sherd_status import_check(making *m, const char *path, const sherd_checkpoint_param *model,
                                 size_t num_params)
{
    char                    whole[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_checkpoint_found found;

    SHERDI_TRY(sherdi_tag_check(m->tag));
    SHERDI_TRY(sherdi_checkpoint_path(m->dir, m->tag, NULL, whole));
    if (sherdi_checkpoint_look(m->dir, m->tag, &found)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is there already; remove it first, or give another tag", whole);
    }
    SHERDI_TRY(sherdi_weights_open(m->mem, path, NULL, &m->file));
    SHERDI_TRY(model == NULL ? model_of_file(m) : model_take(m, model, num_params));
    SHERDI_TRY(model_match(m));
    SHERDI_TRY(manifest_make(m));
    return header_make(m);
}

static sherd_status import_write(making *m)
{
    char         folder[SHERDI_CHECKPOINT_PATH_BYTES];
    char        *text;
    size_t       len;
    sherd_status status;

    SHERDI_TRY(sherdi_checkpoint_check_space(m->dir, m->header_len +
                                                         sherdi_safetensors_data_bytes(m->header)));
    SHERDI_TRY(sherdi_checkpoint_partial_path(m->dir, m->tag, NULL, folder));
    SHERDI_TRY(writer_make(m, folder));
    SHERDI_TRY(data_write(m));
    SHERDI_TRY(sherdi_manifest_text(&m->manifest, &text, &len));
    status = sherdi_checkpoint_put(folder, SHERDI_MANIFEST_NAME, text, len);
    sherdi_manifest_text_free(text);
    return status == SHERD_OK ? sherdi_checkpoint_finish(m->dir, m->tag, &m->claim) : status;
}

static sherd_status import_run(making *m)
{
    sherdi_outcome outcome;

    SHERDI_TRY(sherdi_checkpoint_begin(m->dir, m->tag, &m->claim));
    outcome = sherdi_outcome_of(import_write(m));
    if (outcome.status != SHERD_OK) {
        sherdi_writer_close(&m->writer);
        sherdi_checkpoint_abandon(m->dir, m->tag, &m->claim);
    }
    return sherdi_outcome_end(&outcome);
}

static void import_close(making *m)
{
    sherdi_writer_close(&m->writer);
    sherdi_ioq_destroy(m->queue);
    sherdi_free(m->slots);
    sherdi_safetensors_builder_destroy(m->header);
    sherdi_manifest_fini(&m->manifest);
    sherdi_weights_match_close(&m->match);
    sherdi_weights_maps_close(&m->maps);
    sherdi_weights_close(m->file);
    sherdi_free(m->by_name);
    sherdi_free(m->model);
}

sherd_status sherd_checkpoint_import(const char *path, const char *dir, const char *tag,
                                     const sherd_checkpoint_param *model, size_t num_params,
                                     const sherd_import_params *params)
{
    sherdi_mem   mem;
    making       m = {.mem = &mem, .dir = dir, .tag = tag};
    sherd_status status;

    SHERDI_TRY(sherdi_api_need(path != NULL, "sherd_checkpoint_import", "path"));
    SHERDI_TRY(
        sherdi_api_need(dir != NULL && tag != NULL, "sherd_checkpoint_import", "dir, or the tag,"));
    SHERDI_TRY(model == NULL
                   ? SHERD_OK
                   : sherdi_api_check(model, SHERDI_API_WITH(sherd_checkpoint_param, shape)));
    SHERDI_TRY(sherdi_checksum_check_built());
    sherd_import_params_init(&m.params);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_import_params), &m.params));
    SHERDI_TRY(sherdi_fit_check("sherd_checkpoint_import", m.params.may_miss, m.params.num_may_miss,
                                m.params.may_be_extra, m.params.num_may_be_extra));
    sherdi_mem_init(&mem);
    sherdi_manifest_init(&m.manifest, &mem);
    status = import_check(&m, path, model, num_params);
    status = status == SHERD_OK ? import_run(&m) : status;
    import_close(&m);
    assert(sherdi_mem_held_all(&mem) == 0 && "an import leaves memory behind");
    return status;
}
