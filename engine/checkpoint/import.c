/* The API's calls that import weights from files to an engine. Before the first acquire, each rank
 * fills the elements that it stores. Between steps, all ranks read the same values and write them
 * (sherd_param_write). weights_read.c reads the files; weights_match.c finds the tensors of each
 * parameter. */
#include "engine/checkpoint/export.h"

#include "base/checked.h"
#include "engine/checkpoint/fit.h"
#include "engine/checkpoint/weights_match.h"
#include "engine/run/agree.h"
#include "engine/run/blocks.h"
#include "engine/run/failure.h"
#include "engine/run/needs.h"

void sherd_import_params_init(sherd_import_params *params)
{
    sherdi_api_init(params, &(sherd_import_params){.struct_size = sizeof(*params)});
}

typedef struct import {
    sherd_engine        *engine;
    const char          *call;
    sherd_import_params  params;
    sherdi_weights_maps  maps;
    sherdi_weights_file *file;
    sherdi_weights_match match;
    float               *values; /* a portion; used between steps only */
    uint64_t             done_bytes;
} import;

/* ---- values ---- */

static void progress_report(import *m, const sherdi_weights_given *given, size_t elems)
{
    m->done_bytes += elems * sherdi_tensor_dtype_bytes(given->tensor.about->dtype);
    sherdi_engine_progress(m->engine, m->call, m->params.progress, m->params.progress_ctx,
                           m->done_bytes, m->match.all_bytes);
}

/* The sherd_fill_fn of a parameter; `ctx` is the sherdi_weights_range of its tensors. */
static sherd_status range_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    return sherdi_weights_range_read(ctx, first_elem, count_elems, out);
}

static sherd_status params_fill(import *m)
{
    sherdi_weights_range range;

    for (size_t at = 0; at < m->match.num_given; at = range.end) {
        const sherdi_weights_given *first = &m->match.given[at];

        range = sherdi_weights_range_at(&m->match, at);
        SHERDI_TRY(sherdi_weights_range_check(&range));
        if (!first->is_there) {
            continue;
        }
        SHERDI_TRY(sherd_param_fill(m->engine, (sherd_param)first->param, range_fill, &range));
        for (size_t i = at; i < range.end; i++) {
            progress_report(m, &m->match.given[i], m->match.given[i].tensor.about->elems);
        }
    }
    return SHERD_OK;
}

/* All ranks have read a portion before any rank writes it. So if one rank cannot read a portion, no
 * rank writes it. */
static sherd_status given_write(import *m, const sherdi_weights_given *given)
{
    const sherd_tensor_map *map   = given->map;
    size_t                  elems = sherdi_weights_map_elems(map);
    sherd_param             param = (sherd_param)given->param;
    sherd_value             value = sherdi_weights_value_of(m->engine, param, map->value);

    for (size_t at = 0; at < elems; at += SHERDI_WEIGHTS_PORTION_ELEMS) {
        size_t count = sherdi_min_size(SHERDI_WEIGHTS_PORTION_ELEMS, elems - at);

        SHERDI_TRY(sherdi_agree_status(
            m->engine, sherdi_weights_given_read(&m->match, given, at, count, m->values)));
        SHERDI_TRY(
            sherd_param_write(m->engine, param, value, map->first_elem + at, count, m->values));
        progress_report(m, given, count);
    }
    return SHERD_OK;
}

static sherd_status params_write(import *m)
{
    m->values = sherdi_alloc_array(&m->engine->mem, SHERDI_MEM_STAGING,
                                   SHERDI_WEIGHTS_PORTION_ELEMS, sizeof(*m->values));
    SHERDI_TRY(sherdi_agree_status(m->engine, m->values == NULL ? SHERD_E_NOMEM : SHERD_OK));
    for (size_t i = 0; i < m->match.num_given; i++) {
        if (m->match.given[i].is_there) {
            SHERDI_TRY(given_write(m, &m->match.given[i]));
        }
    }
    return SHERD_OK;
}

/* ---- the calls ---- */

/* The file, as the caller describes it. */
typedef struct import_file {
    const char *call;
    const char *path;
    int         is_raw;
    size_t      header_bytes;
    sherd_dtype dtype;
} import_file;

static sherd_status import_begin(import *m, const import_file *from,
                                 const sherd_import_params *given)
{
    const sherdi_weights_model model = sherdi_weights_model_of(m->engine);
    const sherdi_weights_raw   raw   = {from->header_bytes, from->dtype, &m->maps};
    sherdi_mem                *mem   = &m->engine->mem;

    SHERDI_TRY(sherdi_api_need(from->path != NULL, from->call, "path"));
    if (m->engine->phase != SHERDI_PHASE_SEALED) { /* then it writes, and does not fill */
        SHERDI_TRY(sherdi_engine_need(m->engine, from->call, SHERDI_NEEDS_TO_WRITE));
    }
    sherd_import_params_init(&m->params);
    SHERDI_TRY(sherdi_api_read(given, SHERDI_API(sherd_import_params), &m->params));
    SHERDI_TRY(sherdi_fit_check(from->call, m->params.may_miss, m->params.num_may_miss,
                                m->params.may_be_extra, m->params.num_may_be_extra));
    SHERDI_TRY(
        sherdi_weights_maps_open(mem, &model, m->params.tensors, m->params.num_tensors, &m->maps));
    SHERDI_TRY(sherdi_weights_open(mem, from->path, from->is_raw ? &raw : NULL, &m->file));
    SHERDI_TRY(sherdi_weights_match_open(mem, &model, &m->maps, m->file, &m->params, &m->match));
    return sherdi_weights_match_data(&m->match);
}

static sherd_status import_run(sherd_engine *engine, const import_file *from,
                               const sherd_import_params *params)
{
import m = {.engine = engine, .call = from->call };
    sherd_status status = sherdi_agree_status(engine, import_begin(&m, from, params));

    if (status == SHERD_OK) {
        status = engine->phase == SHERDI_PHASE_SEALED ? sherdi_agree_status(engine, params_fill(&m))
                                                      : params_write(&m);
    }
    sherdi_free(m.values);
    sherdi_weights_match_close(&m.match);
    sherdi_weights_close(m.file);
    sherdi_weights_maps_close(&m.maps);
    return status;
}

sherd_status sherd_import_safetensors(sherd_engine *engine, const char *path,
                                      const sherd_import_params *params)
{
    const import_file from = {.call = "sherd_import_safetensors", .path = path};

    SHERDI_TRY(sherdi_engine_need(engine, from.call, SHERDI_NEED_SEALED));
    return import_run(engine, &from, params);
}

sherd_status sherd_import_raw(sherd_engine *engine, const char *path, size_t header_bytes,
                              sherd_dtype dtype, const sherd_import_params *params)
{
    const import_file from = {.call         = "sherd_import_raw",
                              .path         = path,
                              .is_raw       = 1,
                              .header_bytes = header_bytes,
                              .dtype        = dtype};

    SHERDI_TRY(sherdi_engine_need(engine, from.call, SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_api_need(params != NULL, from.call, "params"));
    if (sherd_dtype_bytes(dtype) == 0) {
        return sherdi_fail(SHERD_E_INVAL, "%s: %d is no dtype", from.call, (int)dtype);
    }
    return import_run(engine, &from, params);
}
