/* Reads sherd's own description of a model: a JSON list of units with the shapes of their
 * parameters. */
#include "planning/model_impl.h"

#include <string.h>

#define WHERE_BYTES 128

/* Checks that a value is an object with no other keys than these: an unknown key is a mistake that
 * the user should see. */
static int object_check(planning_maker *maker, json_t *value, const char *where,
                        const char *const *keys)
{
    const char *key;
    json_t     *child;

    if (!json_is_object(value)) {
        return planning_maker_fail(maker, "%s is %s; it has to be an object", where,
                                   hf_json_kind(value));
    }
    json_object_foreach(value, key, child)
    {
        size_t i = 0;

        while (keys[i] != NULL && strcmp(keys[i], key) != 0) {
            i++;
        }
        if (keys[i] == NULL) {
            return planning_maker_fail(maker, "%s has the unknown key \"%.60s\"; remove it", where,
                                       key);
        }
    }
    return 0;
}

static int list_check(planning_maker *maker, const json_t *value, const char *where)
{
    return json_is_array(value) ? 0
                                : planning_maker_fail(maker, "%s is %s; it has to be a list", where,
                                                      hf_json_kind(value));
}

/* Returns a name; NULL with a message. */
static const char *name_get(planning_maker *maker, const json_t *value, const char *where)
{
    if (!json_is_string(value) || json_string_length(value) == 0) {
        (void)planning_maker_fail(maker, "%s is %s; it has to be a name", where,
                                  json_is_string(value) ? "empty" : hf_json_kind(value));
        return NULL;
    }
    return json_string_value(value);
}

static int shape_get(planning_maker *maker, const json_t *list, const char *where, int *ndim_out,
                     size_t *shape)
{
    size_t ndim = json_array_size(list);

    if (list_check(maker, list, where) != 0) {
        return -1;
    }
    if (ndim > SHERD_MAX_NDIM) {
        return planning_maker_fail(maker, "%s has %zu dimensions; at most %d can be", where, ndim,
                                   SHERD_MAX_NDIM);
    }
    for (size_t i = 0; i < ndim; i++) {
        char at[WHERE_BYTES];

        (void)snprintf(at, sizeof(at), "%.100s[%zu]", where, i);
        if (planning_json_size(maker, json_array_get(list, i), at, 1, PLANNING_MOST_ELEMS,
                               &shape[i]) != 0) {
            return -1;
        }
    }
    *ndim_out = (int)ndim;
    return 0;
}

static int param_read(planning_maker *maker, json_t *value, const char *where)
{
    static const char *const KEYS[] = {"name", "shape", "frozen", NULL};
    const json_t            *frozen;
    const char              *name;
    char                     at[WHERE_BYTES];
    size_t                   shape[SHERD_MAX_NDIM] = {0};
    int                      ndim                  = 0;

    if (object_check(maker, value, where, KEYS) != 0) {
        return -1;
    }
    (void)snprintf(at, sizeof(at), "%.100s.name", where);
    name = name_get(maker, json_object_get(value, "name"), at);
    (void)snprintf(at, sizeof(at), "%.100s.shape", where);
    if (name == NULL || shape_get(maker, json_object_get(value, "shape"), at, &ndim, shape) != 0) {
        return -1;
    }
    frozen = json_object_get(value, "frozen");
    if (frozen != NULL && !json_is_boolean(frozen)) {
        return planning_maker_fail(maker, "%s.frozen is %s; it has to be true or false", where,
                                   hf_json_kind(frozen));
    }
    return planning_maker_add_param(maker, name, ndim, shape, json_is_true(frozen));
}

static int unit_read(planning_maker *maker, json_t *value, const char *where)
{
    static const char *const KEYS[] = {"name", "params", "reads", NULL};
    const json_t            *params;
    const char              *name;
    char                     at[WHERE_BYTES];

    if (object_check(maker, value, where, KEYS) != 0) {
        return -1;
    }
    (void)snprintf(at, sizeof(at), "%.100s.name", where);
    name = name_get(maker, json_object_get(value, "name"), at);
    (void)snprintf(at, sizeof(at), "%.100s.params", where);
    params = json_object_get(value, "params");
    if (name == NULL || list_check(maker, params, at) != 0 ||
        planning_maker_add_unit(maker, name) != 0) {
        return -1;
    }
    for (size_t i = 0; i < json_array_size(params); i++) {
        (void)snprintf(at, sizeof(at), "%.80s.params[%zu]", where, i);
        if (param_read(maker, json_array_get(params, i), at) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Adds the reads of one unit; `indices` maps a parameter's name to its index. */
static int reads_read(planning_maker *maker, const json_t *unit, size_t u, const json_t *indices)
{
    const json_t *reads = json_object_get(unit, "reads");
    char          where[WHERE_BYTES];

    (void)snprintf(where, sizeof(where), "units[%zu].reads", u);
    if (reads == NULL) {
        return 0;
    }
    if (list_check(maker, reads, where) != 0) {
        return -1;
    }
    for (size_t i = 0; i < json_array_size(reads); i++) {
        const char   *name;
        const json_t *index;

        (void)snprintf(where, sizeof(where), "units[%zu].reads[%zu]", u, i);
        name  = name_get(maker, json_array_get(reads, i), where);
        index = name == NULL ? NULL : json_object_get(indices, name);
        if (name == NULL) {
            return -1;
        }
        if (index == NULL) {
            return planning_maker_fail(maker, "%s: there is no parameter %.200s", where, name);
        }
        if (planning_maker_add_read(maker, u, (size_t)json_integer_value(index)) != 0) {
            return -1;
        }
    }
    return 0;
}

static json_t *param_indices(const planning_model *model)
{
    json_t *indices = json_object();

    for (size_t k = 0; indices != NULL && k < model->num_params; k++) {
        if (json_object_set_new(indices, model->params[k].name, json_integer((json_int_t)k)) != 0) {
            json_decref(indices);
            indices = NULL;
        }
    }
    return indices;
}

int planning_read_units(planning_maker *maker, const json_t *root, const char *name)
{
    const json_t *units   = json_object_get(root, "units");
    json_t       *indices = NULL;
    char          where[WHERE_BYTES];
    int           result = list_check(maker, units, "units");

    for (size_t u = 0; result == 0 && u < json_array_size(units); u++) {
        (void)snprintf(where, sizeof(where), "units[%zu]", u);
        result = unit_read(maker, json_array_get(units, u), where);
    }
    if (result == 0) {
        indices = param_indices(maker->model);
        result  = indices == NULL ? planning_maker_no_memory(maker) : 0;
    }
    for (size_t u = 0; result == 0 && u < json_array_size(units); u++) {
        result = reads_read(maker, json_array_get(units, u), u, indices);
    }
    json_decref(indices);
    return result != 0 ? -1 : planning_maker_set_label(maker, "%s", name);
}
