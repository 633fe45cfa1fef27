/* A step in two parts: sherd_step_prepare, and sherd_step_apply with the trainer's own choices; and
 * windows that the trainer ends or drops. step.c makes the parts. */
#include "engine/run/step.h"

#include "collectives/regroup.h"
#include "engine/modules.h"
#include "engine/run/differences.h"
#include "engine/run/failure.h"
#include "engine/run/needs.h"
#include "engine/run/optimizer.h"
#include "engine/run/update.h"

#include <math.h>
#include <string.h>

void sherd_step_params_init(sherd_step_params *params)
{
    sherdi_api_init(params, &(sherd_step_params){.struct_size      = sizeof(*params),
                                                 .grad_norm        = NAN,
                                                 .clip_coefficient = NAN});
}

sherd_status sherd_step_prepare(sherd_engine *engine, sherd_step_report *out)
{
    SHERDI_TRY(sherdi_step_check(engine, "sherd_step_prepare"));
    SHERDI_TRY(sherdi_step_report_check(out));
    SHERDI_TRY(sherdi_step_prepare(engine, SHERDI_STEP_PREPARED));
    if (out != NULL) {
        sherdi_api_write(&engine->report, out);
    }
    return SHERD_OK;
}

/* Compares the choices of the ranks' trainers, before anything is written: a rank may also discard
 * instead. 0: it skips. */
static sherd_status choice_compare(sherd_engine *engine, uint64_t choice)
{
    int odd;

    SHERDI_TRY(sherdi_agree_same(engine, "sherd_step_apply", SHERD_OK, choice, &odd));
    return odd == 0 ? SHERD_OK
                    : sherdi_fail(
                          SHERD_E_INVAL,
                          "rank %d was given other sherd_step_params than rank 0 (norm, "
                          "coefficient, overflow, rates or is_queued); nothing was updated: call "
                          "sherd_step_apply again with the same on all ranks",
                          odd);
}

/* Checks a number of the trainer: NaN (not set), or finite and at least 0. */
static sherd_status given_check(const char *what, double value)
{
    if (isnan(value) || (value >= 0 && isfinite(value))) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL,
                       "sherd_step_params.%s is %g: it must be finite and not below 0", what,
                       value);
}

static sherd_status listed_check(const char *what, const double *list, int group)
{
    return list == NULL ? SHERD_OK : given_check(what, list[group]);
}

/* Checks the first beta that the trainer gives a group. Without a momentum from the beginning,
 * there is no memory for one. */
static sherd_status beta1_check(const sherd_engine *engine, const double *list, int group)
{
    const sherdi_model_group *info = &engine->model.groups[group];
    const sherdi_optimizer   *optimizer;

    if (list == NULL || isnan(list[group])) {
        return SHERD_OK;
    }
    if (list[group] >= 1) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_step_params.group_beta1 is %g for group %s: it must be below 1",
                           list[group], info->name);
    }
    optimizer = sherdi_group_optimizer(&engine->settings, info);
    if (list[group] != 0 && optimizer->without_momentum == optimizer &&
        optimizer->with_momentum != optimizer) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_step_params.group_beta1 is %g for group %s, which has a momentum "
                           "of 0: give the group a momentum when it is made",
                           list[group], info->name);
    }
    return SHERD_OK;
}

static sherd_status step_params_check(const sherd_engine *engine, const sherd_step_params *params)
{
    SHERDI_TRY(given_check("grad_norm", params->grad_norm));
    SHERDI_TRY(given_check("clip_coefficient", params->clip_coefficient));
    SHERDI_TRY(sherdi_api_check_flag(params->overflow, "sherd_step_params.overflow"));
    SHERDI_TRY(sherdi_api_check_flag(params->is_queued, "sherd_step_params.is_queued"));
    if (params->group_lr == NULL && params->group_beta1 == NULL &&
        params->group_weight_decay == NULL) {
        return SHERD_OK;
    }
    if (params->group_count < 0 || (size_t)params->group_count > engine->model.num_groups) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_step_params.group_count is %d, but the number of groups is %zu; "
                           "it must not be below 0 or above that",
                           params->group_count, engine->model.num_groups);
    }
    for (int g = 0; g < params->group_count; g++) {
        SHERDI_TRY(listed_check("group_lr", params->group_lr, g));
        SHERDI_TRY(listed_check("group_weight_decay", params->group_weight_decay, g));
        SHERDI_TRY(listed_check("group_beta1", params->group_beta1, g));
        SHERDI_TRY(beta1_check(engine, params->group_beta1, g));
    }
    return SHERD_OK;
}

sherd_status sherd_step_apply(sherd_engine *engine, const sherd_step_params *params)
{
    sherd_step_params given;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_step_apply",
                                  SHERDI_NEED_SEALED | SHERDI_NEED_STEPS | SHERDI_NEED_PREPARED));
    if (params == NULL) {
        return sherdi_step_apply(engine, NULL, choice_compare, sherdi_update_range);
    }
    sherd_step_params_init(&given);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_step_params), &given));
    SHERDI_TRY(step_params_check(engine, &given));
    return sherdi_step_apply(engine, &given, choice_compare,
                             given.is_queued ? sherdi_step_queued : sherdi_update_range);
}

sherd_status sherd_step_close_window(sherd_engine *engine)
{
    const char *call = "sherd_step_close_window";

    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_SEALED | SHERDI_NEED_STEPS));
    SHERDI_TRY(sherdi_step_late_start(engine));
    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_STARTED | SHERDI_NEED_UNPREPARED));
    engine->window.is_closing = 1;
    return SHERD_OK;
}

/* Releases all acquired units without completing their gradients; none lasts. Emits no
 * operation. */
static void units_let_go(sherd_engine *engine)
{
    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        sherdi_unit_state *state = sherdi_unit_of(engine, (int)u);

        for (int pass = SHERD_FORWARD; pass <= SHERD_EVAL; pass++) {
            if (state->acquired[pass] > 0) {
                sherdi_modules_unit_let_go(engine, (int)u, (sherd_pass)pass);
            }
        }
        memset(state->acquired, 0, sizeof(state->acquired));
        state->held          = 0;
        state->held_backward = 0;
        state->lasts         = 0;
    }
}

/* When all ranks have come, those of the other worlds do: calls that these have queued end too. */
static sherd_status ranks_regroup(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_world_regroup(engine->world));
    if (engine->shards != engine->world) {
        SHERDI_TRY(sherdi_world_regroup(engine->shards));
    }
    return engine->group == NULL ? SHERD_OK : sherdi_world_regroup(engine->group);
}

/* The ranks come together first. Some may wait in a gather: its result is not needed any more, nor
 * is anything that was gathered ahead. */
static sherd_status step_discard(sherd_engine *engine)
{
    sherd_status status = ranks_regroup(engine);

    if (status == SHERD_OK) {
        engine->window.unsent_text[0] = '\0';
        engine->window.is_left        = 0;
    }
    units_let_go(engine);
    engine->is_evaluating = 0; /* as sherd_eval_end does, but for gathered units */
    if (status != SHERD_OK || engine->phase == SHERDI_PHASE_SEALED) { /* no window has begun */
        return status;
    }
    /* read again where it is needed */
    SHERDI_RINGS(sherdi_run_leave(engine, SHERDI_RING_PARAMS), (void)0);
    SHERDI_TRY(sherdi_program_forget(&engine->run.program));
    (void)sherdi_step_drop_window(
        engine, SHERD_OK); /* a failed read is returned where its result is needed */
    engine->phase = SHERDI_PHASE_RUNNING;
    return SHERD_OK;
}

sherd_status sherd_step_discard(sherd_engine *engine)
{
    sherd_status status;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_step_discard", SHERDI_NEED_SEALED));
    sherdi_mem_forbid_begin();
    status = step_discard(engine);
    SHERDI_TELL(times, end, engine, SHERDI_TIMED_STEP);
    sherdi_mem_forbid_end();
    return sherdi_engine_outcome(engine, status);
}

double sherd_group_lr(const sherd_engine *engine, sherd_group group, int64_t step)
{
    if (engine == NULL || engine->settings.update.optimizer->is_inference || group < 0 ||
        (size_t)group >= engine->model.num_groups || step < 1) {
        return NAN;
    }
    return sherdi_optimizer_group_lr(engine, NULL, group, step);
}
