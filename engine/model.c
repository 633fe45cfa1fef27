/* Checks the trainer's declarations, and stores them. See model.h. */
#include "engine/model.h"

#include "base/api.h"
#include "base/checked.h"
#include "base/module_list.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Most elements of a model: all its bytes, at most 32 for each element, fit a size_t. */
#define MOST_ELEMS (SIZE_MAX / 64)

sherd_status sherdi_model_check_count(const char *what, size_t count, size_t most)
{
    if (count >= most) {
        return sherdi_fail(SHERD_E_INVAL, "a model has at most %zu %s; declare fewer", most, what);
    }
    return SHERD_OK;
}

static sherd_status name_check(const char *what, const char *name)
{
    if (name == NULL || name[0] == '\0') {
        return sherdi_fail(SHERD_E_INVAL, "a %s needs a name; set params.name", what);
    }
    if (!SHERDI_NAME_IS_PRINTABLE(name)) {
        return sherdi_fail(SHERD_E_INVAL, "the name of a %s is not UTF-8", what);
    }
    return SHERD_OK;
}

sherd_status sherdi_model_init(sherdi_model *model, sherdi_mem *mem)
{
    memset(model, 0, sizeof(*model));
    model->mem           = mem;
    model->first_trained = -1;
    SHERDI_TRY(SHERDI_GROW(mem, model->groups, 0, model->cap_groups));
    model->groups[0]  = (sherdi_model_group){.name         = sherdi_strdup(mem, "default"),
                                             .lr           = NAN,
                                             .weight_decay = NAN,
                                             .beta1        = NAN,
                                             .beta2        = NAN,
                                             .eps          = NAN,
                                             .exclude_1d   = -1};
    model->num_groups = 1;
    return model->groups[0].name == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

void sherdi_model_fini(sherdi_model *model)
{
    for (size_t i = 0; i < model->num_params; i++) {
        sherdi_free(model->params[i].name);
    }
    for (size_t i = 0; i < model->num_units; i++) {
        sherdi_free(model->units[i].name);
        sherdi_free(model->units[i].params);
        sherdi_free(model->units[i].reads);
    }
    for (size_t i = 0; i < model->num_groups; i++) {
        sherdi_free(model->groups[i].name);
        sherdi_free(model->groups[i].optimizer_name);
    }
    for (int pass = 0; pass < 3; pass++) {
        sherdi_free(model->passes[pass].uses);
    }
    sherdi_free(model->params);
    sherdi_free(model->units);
    sherdi_free(model->groups);
    sherdi_names_fini(&model->unit_names);
    sherdi_names_fini(&model->param_names);
    memset(model, 0, sizeof(*model));
}

sherd_status sherdi_model_add_unit(sherdi_model *model, const sherd_unit_params *params, int *out)
{
    const char *name = params->name;
    char       *copy;

    SHERDI_TRY(name_check("unit", name));
    if (params->backward_uses != 0 && params->backward_uses != SHERD_USES_ANY) {
        return sherdi_fail(SHERD_E_INVAL,
                           "unit %s: backward_uses is %d; give 0 (the uses are those that the "
                           "passes list) or SHERD_USES_ANY",
                           name, params->backward_uses);
    }
    SHERDI_TRY(sherdi_api_check_flag(params->retain_grads, "sherd_unit_params.retain_grads"));
    SHERDI_TRY(sherdi_model_check_count("units", model->num_units, SHERDI_MOST_UNITS));
    if (sherdi_names_find(&model->unit_names, name) >= 0) {
        return sherdi_fail(SHERD_E_INVAL, "there is a unit %s already (unit %lld)", name,
                           sherdi_names_find(&model->unit_names, name));
    }
    SHERDI_TRY(SHERDI_GROW(model->mem, model->units, model->num_units, model->cap_units));
    SHERDI_TRY(sherdi_names_grow(&model->unit_names, model->mem));
    copy = sherdi_strdup(model->mem, name);
    if (copy == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_names_add(&model->unit_names, copy, model->num_units);
    model->units[model->num_units] = (sherdi_model_unit){
        .name          = copy,
        .has_any_uses  = params->backward_uses == SHERD_USES_ANY,
        .retains_grads = params->retain_grads,
    };
    *out = (int)model->num_units++;
    return SHERD_OK;
}

static sherd_status number_check(const char *call, const char *what, int number, size_t count)
{
    return number >= 0 && (size_t)number < count
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "%s%s%s %d does not exist; the model has %zu",
                             call == NULL ? "" : call, call == NULL ? "" : ": ", what, number,
                             count);
}

sherd_status sherdi_model_check_unit(const sherdi_model *model, const char *call, int unit)
{
    return number_check(call, "unit", unit, model->num_units);
}

sherd_status sherdi_model_check_param(const sherdi_model *model, const char *call, int param)
{
    return number_check(call, "parameter", param, model->num_params);
}

static sherd_status shape_elems(const sherd_param_params *params, size_t *out)
{
    size_t elems = 1;

    if (params->ndim < 0 || params->ndim > SHERD_MAX_NDIM) {
        return sherdi_fail(SHERD_E_INVAL, "parameter %s: ndim %d is outside 0 .. %d", params->name,
                           params->ndim, SHERD_MAX_NDIM);
    }
    for (int i = 0; i < params->ndim; i++) {
        if (!sherdi_mul_fits(elems, params->shape[i], &elems) || elems > MOST_ELEMS) {
            return sherdi_fail(SHERD_E_INVAL, "parameter %s: the shape has too many elements",
                               params->name);
        }
    }
    *out = elems;
    return SHERD_OK;
}

sherd_status sherdi_model_add_param(sherdi_model *model, int unit, const sherd_param_params *params,
                                    int *out)
{
    sherdi_model_param param = {0};
    sherdi_model_unit *owner;
    long long          known;

    SHERDI_TRY(sherdi_model_check_unit(model, NULL, unit));
    SHERDI_TRY(name_check("parameter", params->name));
    SHERDI_TRY(sherdi_api_check_flag(params->frozen, "sherd_param_params.frozen"));
    SHERDI_TRY(sherdi_model_check_count("parameters", model->num_params, SHERDI_MOST_PARAMS));
    SHERDI_TRY(shape_elems(params, &param.elems));
    if (param.elems > MOST_ELEMS - model->total_elems) {
        return sherdi_fail(SHERD_E_INVAL, "parameter %s: the model has too many elements",
                           params->name);
    }
    if (params->group < 0 || (size_t)params->group >= model->num_groups) {
        return sherdi_fail(SHERD_E_INVAL,
                           "parameter %s: group %d does not exist; the model has %zu", params->name,
                           params->group, model->num_groups);
    }
    if (params->dtype != -1 && sherd_dtype_bytes((sherd_dtype)params->dtype) == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "parameter %s: dtype %d is no type; give -1 for the engine's compute "
                           "type, or SHERD_F32",
                           params->name, params->dtype);
    }
    known = sherdi_names_find(&model->param_names, params->name);
    if (known >= 0) {
        return sherdi_fail(SHERD_E_INVAL, "there is a parameter %s already (in unit %s)",
                           params->name, model->units[model->params[known].unit].name);
    }
    owner = &model->units[unit];
    SHERDI_TRY(SHERDI_GROW(model->mem, owner->params, owner->num_params, owner->cap_params));
    SHERDI_TRY(SHERDI_GROW(model->mem, model->params, model->num_params, model->cap_params));
    SHERDI_TRY(sherdi_names_grow(&model->param_names, model->mem));
    param.name = sherdi_strdup(model->mem, params->name);
    if (param.name == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_names_add(&model->param_names, param.name, model->num_params);
    param.unit        = unit;
    param.group       = params->group;
    param.ndim        = params->ndim;
    param.atom_elems  = sherdi_max_size(params->atom_elems, 1);
    param.first_index = model->total_elems;
    param.is_frozen   = params->frozen != 0;
    param.dtype       = params->dtype;
    memcpy(param.shape, params->shape, sizeof(param.shape));

    model->total_elems += param.elems;
    if (!param.is_frozen) {
        model->trainable_elems += param.elems;
        sherdi_model_trains(model, param.group);
    }
    owner->params[owner->num_params++] = (int)model->num_params;
    model->params[model->num_params]   = param;
    *out                               = (int)model->num_params++;
    return SHERD_OK;
}

int sherdi_model_reached(const sherdi_model *model, int unit, size_t n)
{
    const sherdi_model_unit *info = &model->units[unit];

    if (n == 0) {
        return unit;
    }
    return n <= info->num_reads ? info->reads[n - 1] : -1;
}

sherd_status sherdi_model_add_read(sherdi_model *model, int unit, int param)
{
    sherdi_model_unit *reader;
    int                owner;

    SHERDI_TRY(sherdi_model_check_unit(model, NULL, unit));
    SHERDI_TRY(sherdi_model_check_param(model, NULL, param));
    owner  = model->params[param].unit;
    reader = &model->units[unit];
    if (owner == unit) {
        return SHERD_OK; /* an acquire has its own parameters anyway */
    }
    for (size_t i = 0; i < reader->num_reads; i++) {
        if (reader->reads[i] == owner) {
            return SHERD_OK;
        }
    }
    SHERDI_TRY(SHERDI_GROW(model->mem, reader->reads, reader->num_reads, reader->cap_reads));
    reader->reads[reader->num_reads++] = owner;
    return SHERD_OK;
}

size_t sherdi_model_order_len(const sherdi_model *model, sherd_pass pass)
{
    if (model->passes[pass].num_uses > 0) {
        return model->passes[pass].num_uses;
    }
    return pass == SHERD_FORWARD ? model->num_units : sherdi_model_order_len(model, SHERD_FORWARD);
}

sherdi_model_use sherdi_model_order(const sherdi_model *model, sherd_pass pass, size_t index)
{
    if (model->passes[pass].num_uses > 0) {
        return model->passes[pass].uses[index];
    }
    if (pass == SHERD_FORWARD) {
        return (sherdi_model_use){.unit = (int)index};
    }
    if (pass == SHERD_EVAL) {
        return sherdi_model_order(model, SHERD_FORWARD, index);
    }
    index = sherdi_model_order_len(model, SHERD_FORWARD) - 1 - index;
    /* the reverse of FORWARD does not say which releases are nested in which */
    return (sherdi_model_use){.unit = sherdi_model_order(model, SHERD_FORWARD, index).unit};
}
