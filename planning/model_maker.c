/* Makes a model of parts, and checks them, whatever their source. See model_impl.h. */
#include "planning/model_impl.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int planning_maker_fail(planning_maker *maker, const char *fmt, ...)
{
    size_t  used = 0;
    va_list args;

    if (maker->why_bytes == 0) {
        return -1;
    }
    maker->why[0] = '\0';
    if (maker->origin != NULL) {
        (void)snprintf(maker->why, maker->why_bytes, "%s: ", maker->origin);
        used = strlen(maker->why);
    }
    va_start(args, fmt);
    (void)vsnprintf(maker->why + used, maker->why_bytes - used, fmt, args);
    va_end(args);
    return -1;
}

int planning_maker_no_memory(planning_maker *maker)
{
    return planning_maker_fail(maker, "no memory to describe the model");
}

int planning_maker_init(planning_maker *maker, const char *origin, char *why, size_t why_bytes)
{
    *maker       = (planning_maker){.origin = origin, .why = why, .why_bytes = why_bytes};
    maker->model = calloc(1, sizeof(*maker->model));
    return maker->model == NULL ? planning_maker_no_memory(maker) : 0;
}

/* Labels become JSON, so bytes of a file name that is not UTF-8 are replaced with question
 * marks. */
static void label_clean(char *label)
{
    json_t *probe = json_string(label);

    for (char *c = label; probe == NULL && *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
    json_decref(probe);
}

int planning_maker_set_label(planning_maker *maker, const char *fmt, ...)
{
    char    label[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(label, sizeof(label), fmt, args);
    va_end(args);
    label_clean(label);
    free(maker->model->label);
    maker->model->label = strdup(label);
    return maker->model->label == NULL ? planning_maker_no_memory(maker) : 0;
}

int planning_array_grow(planning_maker *maker, void **array, size_t count, size_t *capacity,
                        size_t elem_bytes)
{
    size_t wanted = *capacity == 0 ? 16 : 2 * *capacity;
    void  *grown;

    if (count < *capacity) {
        return 0;
    }
    grown = realloc(*array, wanted * elem_bytes);
    if (grown == NULL) {
        return planning_maker_no_memory(maker);
    }
    *array    = grown;
    *capacity = wanted;
    return 0;
}

static int name_copy(planning_maker *maker, const char *what, const char *name, char **out)
{
    if (name[0] == '\0') {
        return planning_maker_fail(maker, "a %s has an empty name; every one needs its own", what);
    }
    *out = strdup(name);
    return *out == NULL ? planning_maker_no_memory(maker) : 0;
}

/* Checks that this number of units can be planned, before any of them is made. */
static int units_check(planning_maker *maker, size_t count)
{
    return count <= PLANNING_MOST_PARAMS
               ? 0
               : planning_maker_fail(
                     maker,
                     "the model would have %zu units, layers and what is before and "
                     "after them; at most %zu can be planned; check the number of "
                     "layers",
                     count, PLANNING_MOST_PARAMS);
}

int planning_maker_add_unit(planning_maker *maker, const char *name)
{
    planning_model *model = maker->model;
    planning_unit   unit  = {.first_param = model->num_params};

    if (model->num_units == PLANNING_MOST_PARAMS) {
        return planning_maker_fail(maker, "the model has more than %zu units",
                                   PLANNING_MOST_PARAMS);
    }
    if (planning_array_grow(maker, (void **)&model->units, model->num_units, &maker->cap_units,
                            sizeof(*model->units)) != 0 ||
        name_copy(maker, "unit", name, &unit.name) != 0) {
        return -1;
    }
    model->units[model->num_units++] = unit;
    return 0;
}

/* Computes the product of the shape; returns -1 if it is more than an engine takes. */
static int shape_elems(int ndim, const size_t *shape, size_t *out)
{
    *out = 1;
    for (int i = 0; i < ndim; i++) {
        if (__builtin_mul_overflow(*out, shape[i], out) || *out > PLANNING_MOST_ELEMS) {
            return -1;
        }
    }
    return 0;
}

int planning_maker_add_param(planning_maker *maker, const char *name, int ndim, const size_t *shape,
                             int is_frozen)
{
    planning_model *model = maker->model;
    planning_param  param = {.ndim = ndim, .is_frozen = is_frozen};

    if (model->num_params == PLANNING_MOST_PARAMS) {
        return planning_maker_fail(maker, "the model has more than %zu parameters (tensors)",
                                   PLANNING_MOST_PARAMS);
    }
    if (ndim < 0 || ndim > SHERD_MAX_NDIM) {
        return planning_maker_fail(maker, "parameter %.100s has %d dimensions; at most %d can be",
                                   name, ndim, SHERD_MAX_NDIM);
    }
    if (shape_elems(ndim, shape, &param.elems) != 0 ||
        param.elems > PLANNING_MOST_ELEMS - model->elems) {
        return planning_maker_fail(
            maker,
            "parameter %.100s: with it the model has more than %zu elements; check its shape", name,
            PLANNING_MOST_ELEMS);
    }
    for (int i = 0; i < ndim; i++) {
        param.shape[i] = shape[i];
    }
    if (planning_array_grow(maker, (void **)&model->params, model->num_params, &maker->cap_params,
                            sizeof(*model->params)) != 0 ||
        name_copy(maker, "parameter", name, &param.name) != 0) {
        return -1;
    }
    model->params[model->num_params++] = param;
    model->units[model->num_units - 1].num_params++;
    model->elems += param.elems;
    return 0;
}

int planning_maker_add_read(planning_maker *maker, size_t unit, size_t param)
{
    planning_model *model = maker->model;

    if (planning_array_grow(maker, (void **)&model->reads, model->num_reads, &maker->cap_reads,
                            sizeof(*model->reads)) != 0) {
        return -1;
    }
    model->reads[model->num_reads++] = (planning_read){.unit = unit, .param = param};
    return 0;
}

int planning_maker_add_units(planning_maker *maker, const arch *sizes)
{
    int result = 0;

    if (units_check(maker, arch_unit_count(sizes)) != 0) {
        return -1;
    }
    for (size_t unit = 0; result == 0 && unit < arch_unit_count(sizes); unit++) {
        char name[ARCH_NAME_BYTES];

        arch_unit_name(sizes, unit, name);
        result = planning_maker_add_unit(maker, name);
        for (size_t k = arch_unit_first_param(sizes, unit);
             result == 0 && k < arch_unit_first_param(sizes, unit + 1); k++) {
            arch_param param;

            arch_param_get(sizes, k, &param);
            result = planning_maker_add_param(maker, param.name, param.ndim, param.shape, 0);
        }
    }
    if (result != 0 || sizes->is_untied) {
        return result;
    }
    return planning_maker_add_read(maker, sizes->layers + 1, 0);
}

int planning_maker_add_arch(planning_maker *maker, const arch *sizes)
{
    char text[256];

    if (arch_check(sizes, text, sizeof(text)) != NULL) {
        return planning_maker_fail(maker, "%s", text);
    }
    maker->model->has_arch = 1;
    maker->model->sizes    = *sizes;
    return planning_maker_add_units(maker, sizes);
}

static int names_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Returns 1 when no two names are the same. A name is the first member of each element. */
static int names_are_unique(planning_maker *maker, const char *what, const void *array,
                            size_t count, size_t elem_bytes)
{
    const char **names = malloc((count + 1) * sizeof(*names));
    const char  *twice = NULL;

    if (names == NULL) {
        (void)planning_maker_no_memory(maker);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        names[i] = *(char *const *)((const char *)array + i * elem_bytes);
    }
    qsort(names, count, sizeof(*names), names_compare);
    for (size_t i = 1; i < count && twice == NULL; i++) {
        twice = strcmp(names[i - 1], names[i]) == 0 ? names[i] : NULL;
    }
    if (twice != NULL) {
        (void)planning_maker_fail(maker, "%s %.200s is there twice; every one needs its own name",
                                  what, twice);
    }
    free(names);
    return twice == NULL;
}

static int model_check(planning_maker *maker)
{
    const planning_model *model = maker->model;

    if (model->elems == 0) {
        return planning_maker_fail(maker, "it describes no parameters of a model");
    }
    return names_are_unique(maker, "unit", model->units, model->num_units, sizeof(*model->units)) &&
                   names_are_unique(maker, "parameter", model->params, model->num_params,
                                    sizeof(*model->params))
               ? 0
               : -1;
}

planning_model *planning_maker_finish(planning_maker *maker, int result)
{
    planning_model *model = maker->model;

    if (model != NULL && (result != 0 || model_check(maker) != 0)) {
        planning_model_destroy(model);
        model = NULL;
    }
    maker->model = NULL;
    return model;
}

void planning_model_destroy(planning_model *model)
{
    if (model == NULL) {
        return;
    }
    for (size_t u = 0; u < model->num_units; u++) {
        free(model->units[u].name);
    }
    for (size_t k = 0; k < model->num_params; k++) {
        free(model->params[k].name);
    }
    free(model->units);
    free(model->params);
    free(model->reads);
    free(model->label);
    free(model);
}
