/* Declarations that not every model has: groups, and passes. */
#include "engine/engine.h"
#include "engine/declarations.h"

#include "base/checked.h"
#include "engine/run/engine_impl.h"
#include "engine/run/needs.h"

#include <math.h>

/* Most `held` of an acquire: more acquires than a micro-batch has mean that the unit is held to its
 * end. */
#define MOST_HELD (2 * SHERDI_MOST_UNITS)

/* ---------------------------------------------------------------- groups -- */

void sherd_group_params_init(sherd_group_params *params)
{
    sherdi_api_init(params, &(sherd_group_params){.struct_size  = sizeof(*params),
                                                  .lr           = NAN,
                                                  .weight_decay = NAN,
                                                  .beta1        = NAN,
                                                  .beta2        = NAN,
                                                  .eps          = NAN,
                                                  .exclude_1d   = -1});
}

/* Checks a rate or coefficient of a group; NaN: as in the configuration. */
static sherd_status group_number_check(const char *group, const char *what, double value,
                                       double below)
{
    if (isnan(value) || (value >= 0 && value < below)) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL, "group %s: %s %g is outside [0, %g)", group, what, value,
                       below);
}

sherd_status sherdi_model_add_group(sherdi_model *model, const sherd_group_params *params, int *out)
{
    sherdi_model_group group;
    const char        *name = params->name == NULL ? "unnamed" : params->name;

    SHERDI_TRY(group_number_check(name, "lr", params->lr, INFINITY));
    SHERDI_TRY(group_number_check(name, "weight_decay", params->weight_decay, INFINITY));
    SHERDI_TRY(group_number_check(name, "beta1", params->beta1, 1));
    SHERDI_TRY(group_number_check(name, "beta2", params->beta2, 1));
    SHERDI_TRY(group_number_check(name, "eps", params->eps, INFINITY));
    if (params->exclude_1d >= 0) {
        SHERDI_TRY(sherdi_api_check_flag(params->exclude_1d, "sherd_group_params.exclude_1d"));
    }
    SHERDI_TRY(SHERDI_GROW(model->mem, model->groups, model->num_groups, model->cap_groups));
    group = (sherdi_model_group){
        .name         = sherdi_strdup(model->mem, name),
        .lr           = params->lr,
        .weight_decay = params->weight_decay,
        .beta1        = params->beta1,
        .beta2        = params->beta2,
        .eps          = params->eps,
        .exclude_1d   = params->exclude_1d,
    };
    if (group.name == NULL) {
        return SHERD_E_NOMEM;
    }
    if (params->optimizer != NULL) {
        group.optimizer_name = sherdi_strdup(model->mem, params->optimizer);
        if (group.optimizer_name == NULL) {
            sherdi_free(group.name);
            return SHERD_E_NOMEM;
        }
    }
    model->groups[model->num_groups] = group;
    *out                             = (int)model->num_groups++;
    return SHERD_OK;
}

sherd_status sherdi_engine_find_optimizer(const sherd_engine *engine, const char *group,
                                          const char *name, const sherdi_optimizer **out)
{
    SHERDI_TRY(sherdi_optimizer_find(&engine->settings, group, name, out));
    if ((*out)->is_inference != engine->settings.update.optimizer->is_inference) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "group %s has optimizer %s, but optimizer.type is %s: \"none\" is for the whole "
            "engine, not for some groups; declare parameters that are not trained as frozen",
            group, name, sherdi_optimizer_name(engine->settings.update.optimizer));
    }
    return SHERD_OK;
}

sherd_status sherd_group_add(sherd_engine *engine, const sherd_group_params *params,
                             sherd_group *out)
{
    sherd_group_params      given;
    const sherdi_optimizer *optimizer = NULL;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_group_add", SHERDI_NEED_OPEN));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_group_add"));
    sherd_group_params_init(&given);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_group_params), &given));
    if (given.optimizer != NULL) {
        SHERDI_TRY(sherdi_engine_find_optimizer(engine, given.name == NULL ? "unnamed" : given.name,
                                                given.optimizer, &optimizer));
        given.optimizer = sherdi_optimizer_name(optimizer);
    }
    SHERDI_TRY(sherdi_model_add_group(&engine->model, &given, out));
    engine->model.groups[*out].optimizer = optimizer;
    return SHERD_OK;
}

/* ------------------------------------------------------ passes -- */

sherd_status sherdi_model_add_pass(sherdi_model *model, sherd_pass pass, int unit,
                                   size_t held_acquires)
{
    sherdi_model_pass *order;

    SHERDI_TRY(sherdi_model_check_unit(model, NULL, unit));
    if ((int)pass < SHERD_FORWARD || (int)pass > SHERD_EVAL) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "pass %d does not exist; it is SHERD_FORWARD, SHERD_BACKWARD or SHERD_EVAL", (int)pass);
    }
    order = &model->passes[pass];
    SHERDI_TRY(sherdi_model_check_count("acquires in a pass", order->num_uses, SHERDI_MOST_UNITS));
    SHERDI_TRY(SHERDI_GROW(model->mem, order->uses, order->num_uses, order->cap_uses));
    order->uses[order->num_uses++] =
        (sherdi_model_use){.unit = unit, .held = (int)sherdi_min_size(held_acquires, MOST_HELD)};
    return SHERD_OK;
}

sherd_status sherd_pass_add(sherd_engine *engine, sherd_pass pass, sherd_unit unit)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_pass_add", SHERDI_NEED_OPEN));
    return sherdi_model_add_pass(&engine->model, pass, unit, 0);
}

sherd_status sherd_pass_add_held(sherd_engine *engine, sherd_pass pass, sherd_unit unit,
                                 size_t held_acquires)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_pass_add_held", SHERDI_NEED_OPEN));
    return sherdi_model_add_pass(&engine->model, pass, unit, held_acquires);
}
