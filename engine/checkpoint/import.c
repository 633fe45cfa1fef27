/* Weights from files to an engine: the calls of the API. What reads is weights_read.c. Before the first acquire each rank
 * fills what it holds; between steps values are written, which all ranks read alike. */
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/fit.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

void sherd_import_params_init(sherd_import_params *params)
{
    *params = (sherd_import_params){.struct_size = sizeof(*params)};
}

/* A map and what the file has of it, in the order of the model. */
typedef struct source {
    const sherd_tensor_map *map;
    sherdi_weights_tensor   tensor;
    int                     param;
    int                     is_there;
} source;

typedef struct import {
    sherd_engine        *engine;
    sherd_import_params  params;
    sherdi_weights_maps  maps;
    sherdi_weights_file *file;
    source              *sources;
    size_t               num_sources;
    unsigned char       *is_used; /* tensors of the file, by number */
    float               *values;  /* a piece, between steps */
    size_t               at;      /* while filling: sources [at, end) are of the parameter */
    size_t               end;
    uint64_t             done_bytes, all_bytes;
} import;

/* ---- what the file has ---- */

static int tensor_find(const import *m, const char *name, sherdi_weights_tensor *out)
{
    const char *prefix = m->params.optional_prefix;
    size_t      bytes  = prefix == NULL ? 0 : strlen(prefix);

    return sherdi_weights_find(m->file, name, out) ||
           (bytes > 0 && strncmp(name, prefix, bytes) == 0 &&
            sherdi_weights_find(m->file, name + bytes, out));
}

static sherd_status tensor_check(const sherd_tensor_map *map, const sherdi_tensor *about)
{
    char is[128], was[128];

    if (!sherdi_weights_is_readable(about->dtype)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "tensor %.200s is of %s; fp64, fp32, bf16 and fp16 are read",
                           about->name, sherdi_tensor_dtype_name(about->dtype));
    }
    if (about->ndim != map->ndim ||
        memcmp(about->shape, map->shape, (size_t)map->ndim * sizeof(map->shape[0])) != 0) {
        sherdi_fit_shape_text(about->ndim, about->shape, was, sizeof(was));
        sherdi_fit_shape_text(map->ndim, map->shape, is, sizeof(is));
        return sherdi_fail(SHERD_E_INVAL, "tensor %.200s is %s in the file, and %s in this model",
                           about->name, was, is);
    }
    return SHERD_OK;
}

static sherd_status source_make(import *m, const sherd_tensor_map *map)
{
    source *s = &m->sources[m->num_sources++];

    *s = (source){.map = map, .param = sherdi_model_find_param(&m->engine->model, map->param)};
    s->is_there = tensor_find(m, map->name, &s->tensor);
    if (s->is_there) {
        m->is_used[s->tensor.number] = 1;
        m->all_bytes += s->tensor.about->end - s->tensor.about->begin;
        return tensor_check(map, s->tensor.about);
    }
    return sherdi_fit_is_allowed(m->params.may_miss, m->params.num_may_miss, map->name)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "the file has no tensor %s; name it in may_miss where it need not",
                             map->name);
}

/* Several maps may read one tensor, so what is extra is what none of them named. */
static sherd_status extra_check(const import *m, const sherdi_weights_tensor *tensor)
{
    const char *name = tensor->about->name;

    return m->is_used[tensor->number] ||
                   sherdi_fit_is_allowed(m->params.may_be_extra, m->params.num_may_be_extra, name)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "the file has tensor %.200s, which this model has not; name it in "
                             "may_be_extra where it may",
                             name);
}

static int order_by_place(const void *a, const void *b)
{
    const source *one = a, *other = b;
    int           value;

    if (one->param != other->param) {
        return one->param < other->param ? -1 : 1;
    }
    value = strcmp(one->map->value == NULL ? "" : one->map->value,
                   other->map->value == NULL ? "" : other->map->value);
    if (value != 0) {
        return value;
    }
    return (one->map->first_elem > other->map->first_elem) -
           (one->map->first_elem < other->map->first_elem);
}

static int is_same_place(const source *a, const source *b)
{
    return a->param == b->param &&
           (a->map->value == NULL
                ? b->map->value == NULL
                : b->map->value != NULL && strcmp(a->map->value, b->map->value) == 0);
}

static sherd_status overlaps_check(const import *m)
{
    for (size_t i = 1; i < m->num_sources; i++) {
        const source *last = &m->sources[i - 1], *next = &m->sources[i];

        if (is_same_place(last, next) &&
            last->map->first_elem + sherdi_weights_map_elems(last->map) > next->map->first_elem) {
            return sherdi_fail(SHERD_E_INVAL,
                               "tensors %s and %s give the same elements of parameter %s",
                               last->map->name, next->map->name, next->map->param);
        }
    }
    return SHERD_OK;
}

static sherd_status room_make(import *m)
{
    sherdi_mem           *mem   = &m->engine->mem;
    size_t                count = 0;
    sherdi_weights_tensor tensor;

    while (sherdi_weights_get(m->file, count, &tensor)) {
        count++;
    }
    m->sources =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, m->maps.num_tensors, sizeof(*m->sources));
    m->is_used = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*m->is_used));
    return m->sources == NULL || m->is_used == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static sherd_status sources_make(import *m)
{
    sherdi_weights_tensor tensor;

    SHERDI_TRY(room_make(m));
    for (size_t i = 0; i < m->maps.num_tensors; i++) {
        const sherd_tensor_map *map = &m->maps.tensors[i];

        if (map->param != NULL) {
            SHERDI_TRY(source_make(m, map));
        } else if (tensor_find(m, map->name, &tensor)) {
            m->is_used[tensor.number] = 1; /* padding of a raw file */
        }
    }
    for (size_t i = 0; sherdi_weights_get(m->file, i, &tensor); i++) {
        SHERDI_TRY(extra_check(m, &tensor));
    }
    if (m->num_sources > 1) {
        qsort(m->sources, m->num_sources, sizeof(*m->sources), order_by_place);
    }
    return overlaps_check(m);
}

/* ---- values ---- */

/* Elements from `first` on, counted from where the tensor begins in its parameter. */
static sherd_status source_read(const import *m, const source *s, size_t first, size_t count,
                                float *out)
{
    return s->map->is_transposed
               ? sherdi_weights_read_transposed(m->file, s->tensor, first, count, out)
               : sherdi_weights_read(m->file, s->tensor, first, count, out);
}

static void progress_tell(import *m, const source *s, size_t elems)
{
    m->done_bytes += elems * sherdi_tensor_dtype_bytes(s->tensor.about->dtype);
    if (m->params.progress != NULL) {
        m->params.progress(m->params.progress_ctx, m->done_bytes, m->all_bytes);
    }
}

/* A sherd_fill_fn of the parameter that sources [at, end) are of. */
static sherd_status sources_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    const import *m = ctx;

    memset(out, 0, count_elems * sizeof(*out));
    for (size_t i = m->at; i < m->end; i++) {
        const source *s     = &m->sources[i];
        size_t        begin = s->map->first_elem;
        size_t        end   = begin + sherdi_weights_map_elems(s->map);
        size_t        from  = sherdi_max_size(begin, first_elem);
        size_t        to    = sherdi_min_size(end, first_elem + count_elems);

        if (from < to) {
            SHERDI_TRY(source_read(m, s, from - begin, to - from, out + (from - first_elem)));
        }
    }
    return SHERD_OK;
}

static sherd_status param_check(const import *m)
{
    for (size_t i = m->at; i < m->end; i++) {
        const source *s = &m->sources[i];

        if (s->map->value != NULL && strcmp(s->map->value, SHERD_MASTER) != 0) {
            return sherdi_fail(SHERD_E_STATE,
                               "tensor %s is for %s of parameter %s: before the first acquire only "
                               "weights are imported",
                               s->map->name, s->map->value, s->map->param);
        }
        if (s->is_there != m->sources[m->at].is_there) {
            return sherdi_fail(SHERD_E_INVAL,
                               "of parameter %s the file has only a part: tensor %s is missing, or "
                               "the others are",
                               s->map->param, s->map->name);
        }
    }
    return SHERD_OK;
}

static sherd_status params_fill(import *m)
{
    for (m->at = 0; m->at < m->num_sources; m->at = m->end) {
        int param = m->sources[m->at].param;

        for (m->end = m->at; m->end < m->num_sources && m->sources[m->end].param == param;) {
            m->end++;
        }
        SHERDI_TRY(param_check(m));
        if (!m->sources[m->at].is_there) {
            continue;
        }
        SHERDI_TRY(sherd_param_fill(m->engine, param, sources_fill, m));
        for (size_t i = m->at; i < m->end; i++) {
            progress_tell(m, &m->sources[i], m->sources[i].tensor.about->elems);
        }
    }
    return SHERD_OK;
}

/* Every rank has read a piece before any writes it: what one cannot read, none writes. */
static sherd_status source_write(import *m, const source *s)
{
    size_t      elems = sherdi_weights_map_elems(s->map);
    sherd_value value = sherdi_weights_value_of(m->engine, s->param, s->map->value);

    for (size_t at = 0; at < elems; at += SHERDI_WEIGHTS_PIECE_ELEMS) {
        size_t count = sherdi_min_size(SHERDI_WEIGHTS_PIECE_ELEMS, elems - at);

        SHERDI_TRY(sherdi_agree_status(m->engine->world, source_read(m, s, at, count, m->values)));
        SHERDI_TRY(sherd_param_write(m->engine, s->param, value, s->map->first_elem + at, count,
                                     m->values));
        progress_tell(m, s, count);
    }
    return SHERD_OK;
}

static sherd_status params_write(import *m)
{
    m->values = sherdi_alloc_array(&m->engine->mem, SHERDI_MEM_STAGING, SHERDI_WEIGHTS_PIECE_ELEMS,
                                   sizeof(*m->values));
    SHERDI_TRY(sherdi_agree_status(m->engine->world, m->values == NULL ? SHERD_E_NOMEM : SHERD_OK));
    for (size_t i = 0; i < m->num_sources; i++) {
        if (m->sources[i].is_there) {
            SHERDI_TRY(source_write(m, &m->sources[i]));
        }
    }
    return SHERD_OK;
}

/* ---- the calls ---- */

/* Where the file comes from, and what a rank finds out by itself. */
typedef struct import_file {
    const char *path;
    int         is_raw;
    size_t      header_bytes;
    sherd_dtype dtype;
} import_file;

static sherd_status import_begin(import *m, const import_file *from,
                                 const sherd_import_params *given)
{
    const sherdi_weights_model model = sherdi_weights_model_of(m->engine);
    sherdi_mem                *mem   = &m->engine->mem;

    SHERDI_TRY(sherdi_api_need(from->path != NULL, "an import", "path"));
    sherd_import_params_init(&m->params);
    if (given != NULL) {
        SHERDI_TRY(sherdi_api_read(given, SHERDI_API_IMPORT_PARAMS, &m->params));
    }
    SHERDI_TRY(
        sherdi_weights_maps_open(mem, &model, m->params.tensors, m->params.num_tensors, &m->maps));
    SHERDI_TRY(from->is_raw ? sherdi_weights_open_raw(mem, from->path, from->header_bytes,
                                                      from->dtype, &m->maps, &m->file)
                            : sherdi_weights_open(mem, from->path, &m->file));
    return sources_make(m);
}

static sherd_status import_run(sherd_engine *engine, const import_file *from,
                               const sherd_import_params *params)
{
import m = {.engine = engine };
    sherd_status status = sherdi_agree_status(engine->world, import_begin(&m, from, params));

    if (status == SHERD_OK) {
        status = engine->phase == SHERDI_PHASE_SEALED
                     ? sherdi_agree_status(engine->world, params_fill(&m))
                     : params_write(&m);
    }
    sherdi_free(m.values);
    sherdi_free(m.is_used);
    sherdi_free(m.sources);
    sherdi_weights_close(m.file);
    sherdi_weights_maps_close(&m.maps);
    return status;
}

sherd_status sherd_import_safetensors(sherd_engine *engine, const char *path,
                                      const sherd_import_params *params)
{
    const import_file from = {.path = path};

    SHERDI_TRY(sherdi_engine_check_alive(engine));
    SHERDI_TRY(sherdi_weights_check_phase(engine));
    return import_run(engine, &from, params);
}

sherd_status sherd_import_raw(sherd_engine *engine, const char *path, size_t header_bytes,
                              sherd_dtype dtype, const sherd_import_params *params)
{
    const import_file from = {
        .path = path, .is_raw = 1, .header_bytes = header_bytes, .dtype = dtype};

    SHERDI_TRY(sherdi_engine_check_alive(engine));
    SHERDI_TRY(sherdi_weights_check_phase(engine));
    SHERDI_TRY(sherdi_api_need(params != NULL, "sherd_import_raw", "params"));
    if (sherd_dtype_bytes(dtype) == 0) {
        return sherdi_fail(SHERD_E_INVAL, "sherd_import_raw: %d is no dtype", (int)dtype);
    }
    return import_run(engine, &from, params);
}
