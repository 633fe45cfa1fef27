/* See weights_match.h. */
#include "engine/checkpoint/weights_match.h"

#include "base/checked.h"
#include "engine/checkpoint/fit.h"

#include <stdlib.h>
#include <string.h>

/* Data that is needed only while maps are matched with the file. */
typedef struct matching {
    const sherdi_weights_model *model;
    const sherd_import_params  *params;
    sherdi_weights_match       *match;
    unsigned char              *is_used; /* by number of a tensor of the file */
} matching;

static int tensor_find(const matching *m, const char *name, sherdi_weights_tensor *out)
{
    const sherdi_weights_file *file   = m->match->file;
    const char                *prefix = m->params->optional_prefix;
    size_t                     bytes  = prefix == NULL ? 0 : strlen(prefix);

    return sherdi_weights_find(file, name, out) ||
           (bytes > 0 && strncmp(name, prefix, bytes) == 0 &&
            sherdi_weights_find(file, name + bytes, out));
}

/* Floats are converted. Other types in the caller's memory must be the file's type. */
static sherd_status dtype_check(const sherd_tensor_map *map, const sherdi_tensor *about)
{
    int is_float = sherdi_weights_is_readable(about->dtype);

    if (map->data_dtype == NULL) {
        return is_float ? SHERD_OK
                        : sherdi_fail(SHERD_E_INVAL,
                                      "tensor %.200s is of %s; fp64, fp32, bf16 and fp16 are read",
                                      about->name, sherdi_tensor_dtype_name(about->dtype));
    }
    return sherdi_weights_data_dtype(map) == about->dtype ||
                   (is_float && sherdi_weights_is_readable(sherdi_weights_data_dtype(map)))
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "tensor %.200s is of %s in the file, and of %s in this model",
                             about->name, sherdi_tensor_dtype_name(about->dtype), map->data_dtype);
}

static sherd_status tensor_check(const sherd_tensor_map *map, const sherdi_tensor *about)
{
    char is[128], was[128];

    SHERDI_TRY(dtype_check(map, about));
    if (about->ndim != map->ndim ||
        memcmp(about->shape, map->shape, (size_t)map->ndim * sizeof(map->shape[0])) != 0) {
        sherdi_fit_shape_text(about->ndim, about->shape, was, sizeof(was));
        sherdi_fit_shape_text(map->ndim, map->shape, is, sizeof(is));
        return sherdi_fail(SHERD_E_INVAL, "tensor %.200s is %s in the file, and %s in this model",
                           about->name, was, is);
    }
    return SHERD_OK;
}

static sherd_status given_make(matching *m, const sherd_tensor_map *map)
{
    sherdi_weights_match *match = m->match;
    sherdi_weights_given *given = map->data_dtype != NULL ? &match->data[match->num_data++]
                                                          : &match->given[match->num_given++];

    *given = (sherdi_weights_given){.map = map};
    if (map->param != NULL) {
        (void)m->model->find(m->model->ctx, map->param, &given->param); /* exists: it was checked */
    }
    given->is_there = tensor_find(m, map->name, &given->tensor);
    if (given->is_there) {
        m->is_used[given->tensor.number] = 1;
        m->match->all_bytes += given->tensor.about->end - given->tensor.about->begin;
        return tensor_check(map, given->tensor.about);
    }
    return sherdi_fit_is_allowed(m->params->may_miss, m->params->num_may_miss, map->name)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "the file has no tensor %s; if it may be missing, name it in may_miss",
                             map->name);
}

/* Checks tensors that no map named. Several maps may read one tensor. */
static sherd_status extra_check(const matching *m, const sherdi_weights_tensor *tensor)
{
    const char *name = tensor->about->name;

    return m->is_used[tensor->number] ||
                   sherdi_fit_is_allowed(m->params->may_be_extra, m->params->num_may_be_extra, name)
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_INVAL,
                     "the file has tensor %.200s, which this model has not; if it may be left "
                     "out, name it in may_be_extra",
                     name);
}

static int order_by_value(const void *a, const void *b)
{
    const sherdi_weights_given *one = a, *other = b;
    int                         value;

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

static int is_same_value(const sherdi_weights_given *a, const sherdi_weights_given *b)
{
    return a->param == b->param &&
           (a->map->value == NULL
                ? b->map->value == NULL
                : b->map->value != NULL && strcmp(a->map->value, b->map->value) == 0);
}

static sherd_status overlaps_check(const sherdi_weights_match *match)
{
    for (size_t i = 1; i < match->num_given; i++) {
        const sherdi_weights_given *last = &match->given[i - 1], *next = &match->given[i];

        if (is_same_value(last, next) &&
            last->map->first_elem + sherdi_weights_map_elems(last->map) > next->map->first_elem) {
            return sherdi_fail(SHERD_E_INVAL,
                               "tensors %s and %s give the same elements of parameter %s",
                               last->map->name, next->map->name, next->map->param);
        }
    }
    return SHERD_OK;
}

static sherd_status match_make(matching *m, const sherdi_weights_maps *maps)
{
    sherdi_weights_tensor tensor;

    for (size_t i = 0; i < maps->num_tensors; i++) {
        const sherd_tensor_map *map = &maps->tensors[i];

        if (map->param != NULL || map->data_dtype != NULL) {
            SHERDI_TRY(given_make(m, map));
        } else if (tensor_find(m, map->name, &tensor)) {
            m->is_used[tensor.number] = 1; /* padding of a raw file */
        }
    }
    for (size_t i = 0; sherdi_weights_get(m->match->file, i, &tensor); i++) {
        SHERDI_TRY(extra_check(m, &tensor));
    }
    if (m->match->num_given > 1) {
        qsort(m->match->given, m->match->num_given, sizeof(*m->match->given), order_by_value);
    }
    return overlaps_check(m->match);
}

sherd_status sherdi_weights_match_open(sherdi_mem *mem, const sherdi_weights_model *model,
                                       const sherdi_weights_maps *maps,
                                       const sherdi_weights_file *file,
                                       const sherd_import_params *params, sherdi_weights_match *out)
{
    matching              m     = {.model = model, .params = params, .match = out};
    size_t                count = 0;
    sherdi_weights_tensor tensor;
    sherd_status          status;

    *out = (sherdi_weights_match){.file = file};
    while (sherdi_weights_get(file, count, &tensor)) {
        count++;
    }
    out->given =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, maps->num_tensors, sizeof(*out->given));
    out->data = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, maps->num_tensors, sizeof(*out->data));
    m.is_used = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*m.is_used));
    status    = out->given == NULL || out->data == NULL || m.is_used == NULL ? SHERD_E_NOMEM
                                                                             : match_make(&m, maps);
    sherdi_free(m.is_used);
    if (status != SHERD_OK) {
        sherdi_weights_match_close(out);
    }
    return status;
}

void sherdi_weights_match_close(sherdi_weights_match *match)
{
    sherdi_free(match->given);
    sherdi_free(match->data);
    *match = (sherdi_weights_match){0};
}

/* ---- values ---- */

sherd_status sherdi_weights_match_data(const sherdi_weights_match *match)
{
    for (size_t i = 0; i < match->num_data; i++) {
        const sherdi_weights_given *given = &match->data[i];

        if (given->is_there) {
            SHERDI_TRY(sherdi_weights_data_read(match->file, given->tensor, given->map));
        }
    }
    return SHERD_OK;
}

sherdi_weights_range sherdi_weights_range_at(const sherdi_weights_match *match, size_t begin)
{
    size_t end = begin;

    while (end < match->num_given && match->given[end].param == match->given[begin].param) {
        end++;
    }
    return (sherdi_weights_range){.match = match, .begin = begin, .end = end};
}

sherd_status sherdi_weights_range_check(const sherdi_weights_range *range)
{
    const sherdi_weights_given *given = range->match->given;

    for (size_t i = range->begin; i < range->end; i++) {
        const sherd_tensor_map *map = given[i].map;

        if (map->value != NULL && strcmp(map->value, SHERD_MASTER) != 0) {
            return sherdi_fail(SHERD_E_STATE,
                               "tensor %s is for %s of parameter %s: before the first acquire only "
                               "weights can be imported; import state after it",
                               map->name, map->value, map->param);
        }
        if (given[i].is_there != given[range->begin].is_there) {
            return sherdi_fail(SHERD_E_INVAL,
                               "the file has only a part of parameter %s: tensor %s is missing, or "
                               "the other tensors are",
                               map->param, map->name);
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_weights_given_read(const sherdi_weights_match *match,
                                       const sherdi_weights_given *given, size_t first_elem,
                                       size_t count_elems, float *out)
{
    return given->map->is_transposed
               ? sherdi_weights_read_transposed(match->file, given->tensor, first_elem, count_elems,
                                                out)
               : sherdi_weights_read(match->file, given->tensor, first_elem, count_elems, out);
}

sherd_status sherdi_weights_range_read(const sherdi_weights_range *range, size_t first_elem,
                                       size_t count_elems, float *out)
{
    memset(out, 0, count_elems * sizeof(*out));
    for (size_t i = range->begin; i < range->end; i++) {
        const sherdi_weights_given *given = &range->match->given[i];
        size_t                      begin = given->map->first_elem;
        size_t                      end   = begin + sherdi_weights_map_elems(given->map);
        size_t                      from  = sherdi_max_size(begin, first_elem);
        size_t                      to    = sherdi_min_size(end, first_elem + count_elems);

        if (from < to) {
            SHERDI_TRY(sherdi_weights_given_read(range->match, given, from - begin, to - from,
                                                 out + (from - first_elem)));
        }
    }
    return SHERD_OK;
}
