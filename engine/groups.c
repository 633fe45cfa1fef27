/* Merges the parameter groups of the configuration (sherd.groups) with those of the program, before
 * a plan is made. E_INVAL: they contradict each other, or no parameter is in a group. */
#include "engine/engine.h"
#include "engine/declarations.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------- by the name -- */

static sherd_status contradiction(const char *group, const char *what)
{
    return sherdi_fail(SHERD_E_INVAL,
                       "group %s: the program and sherd.groups give different values of %s; give "
                       "it in one of the two only",
                       group, what);
}

/* Merges one number; NaN: not set. */
static sherd_status number_join(const char *group, const char *what, double given, double *out)
{
    if (!isnan(given) && !isnan(*out) && given != *out) {
        return contradiction(group, what);
    }
    *out = isnan(given) ? *out : given;
    return SHERD_OK;
}

static sherd_status optimizer_join(sherd_engine *engine, const sherdi_group_settings *given,
                                   sherdi_model_group *group)
{
    const sherdi_optimizer *optimizer;

    if (given->optimizer == 0) {
        return SHERD_OK;
    }
    optimizer = sherdi_optimizer_in(&engine->settings,
                                    sherdi_optimizer_at((size_t)given->optimizer - 1), NAN);
    if (group->optimizer != NULL) {
        return group->optimizer == optimizer ? SHERD_OK : contradiction(group->name, "optimizer");
    }
    SHERDI_TRY(sherdi_engine_find_optimizer(engine, group->name, sherdi_optimizer_name(optimizer),
                                            &optimizer));
    group->optimizer_name = sherdi_strdup(&engine->mem, sherdi_optimizer_name(optimizer));
    if (group->optimizer_name == NULL) {
        return SHERD_E_NOMEM;
    }
    group->optimizer = optimizer;
    return SHERD_OK;
}

static sherd_status group_join(sherd_engine *engine, const sherdi_group_settings *given,
                               sherdi_model_group *group)
{
    if (given->exclude_1d >= 0 && group->exclude_1d >= 0 &&
        given->exclude_1d != group->exclude_1d) {
        return contradiction(group->name, "exclude_1d");
    }
    group->exclude_1d = given->exclude_1d >= 0 ? given->exclude_1d : group->exclude_1d;
    SHERDI_TRY(number_join(group->name, "lr", given->lr, &group->lr));
    SHERDI_TRY(number_join(group->name, "weight decay", given->weight_decay, &group->weight_decay));
    SHERDI_TRY(number_join(group->name, "beta1", given->betas[0], &group->beta1));
    SHERDI_TRY(number_join(group->name, "beta2", given->betas[1], &group->beta2));
    SHERDI_TRY(number_join(group->name, "eps", given->eps, &group->eps));
    return optimizer_join(engine, given, group);
}

/* ------------------------------------------------ by names of its parameters -- */

static int is_matched(const sherdi_group_settings *given, const char *param)
{
    for (const char *at = given->matching; *at != '\0'; at += strlen(at) + 1) {
        if (fnmatch(at, param, 0) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Moves the parameters of the default group that match to the group, which is made for the first
 * one that matches. */
static sherd_status matching_move(sherd_engine *engine, const sherdi_group_settings *given,
                                  int *group)
{
    sherd_group_params params;

    sherd_group_params_init(&params);
    params.name = given->name;
    for (size_t p = 0; p < engine->model.num_params; p++) {
        sherdi_model_param *param = &engine->model.params[p];

        if (param->group != SHERD_GROUP_DEFAULT || !is_matched(given, param->name)) {
            continue;
        }
        if (*group < 0) {
            SHERDI_TRY(sherdi_model_add_group(&engine->model, &params, group));
        }
        param->group = *group;
    }
    return SHERD_OK;
}

/* Finds the group of that name, which the program or an earlier call of this function made; -1:
 * none. */
static int group_find(const sherd_engine *engine, const char *name)
{
    for (size_t g = 1; g < engine->model.num_groups; g++) {
        if (strcmp(engine->model.groups[g].name, name) == 0) {
            return (int)g;
        }
    }
    return -1;
}

static sherd_status settings_join(sherd_engine *engine, const sherdi_group_settings *given)
{
    int group = group_find(engine, given->name);

    SHERDI_TRY(matching_move(engine, given, &group));
    if (group < 0) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "sherd.groups has an entry for group %s, which does not exist: %s; remove the entry, "
            "or correct it",
            given->name,
            given->matching[0] == '\0'
                ? "the program added no group of that name, and the entry has no \"matching\""
                : "the program added none, and \"matching\" fits no parameter of the default "
                  "group");
    }
    for (size_t g = (size_t)group; g < engine->model.num_groups; g++) {
        if (strcmp(engine->model.groups[g].name, given->name) == 0) {
            SHERDI_TRY(group_join(engine, given, &engine->model.groups[g]));
        }
    }
    return SHERD_OK;
}

static sherd_status groups_settle(sherd_engine *engine)
{
    const sherdi_group_settings *given = engine->settings.groups;

    for (size_t i = 0; i < SHERDI_MAX_GROUPS && given[i].name[0] != '\0'; i++) {
        SHERDI_TRY(settings_join(engine, &given[i]));
    }
    engine->model.first_trained = -1; /* parameters may have moved */
    for (size_t p = 0; p < engine->model.num_params; p++) {
        if (!engine->model.params[p].is_frozen) {
            sherdi_model_trains(&engine->model, engine->model.params[p].group);
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_groups = {.declared = groups_settle};
