/* Evaluation in many passes, between which parameters do not change: units stay gathered, as far as
 * the plan has room for them (sherd.eval_keep_units). plan_eval.c decides which units stay
 * gathered; program_units.c does not drop them at a release. */
#include "engine/run/engine_impl.h"

#include "engine/run/differences.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/needs.h"

void sherd_eval_params_init(sherd_eval_params *params)
{
    sherdi_api_init(params,
                    &(sherd_eval_params){.struct_size = sizeof(*params), .keep_units = SIZE_MAX});
}

static sherd_status begin_check(const sherd_engine *engine, size_t keep_units)
{
    SHERDI_TRY(
        sherdi_engine_need(engine, "sherd_eval_begin",
                           SHERDI_NEED_NO_EVAL | SHERDI_NEED_UNPREPARED | SHERDI_NEED_RELEASED));
    if (keep_units != SIZE_MAX && keep_units > engine->settings.sharding.eval_keep_units) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_eval_begin: keep_units is %zu, but the plan has room to keep "
                           "%zu; set sherd.eval_keep_units to that many, or ask for fewer",
                           keep_units, engine->settings.sharding.eval_keep_units);
    }
    return SHERD_OK;
}

sherd_status sherd_eval_begin(sherd_engine *engine, const sherd_eval_params *params)
{
    sherd_eval_params given;
    sherdi_argument   argument;

    sherd_eval_params_init(&given);
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_eval_begin", SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_eval_params), &given));
    argument = (sherdi_argument){"keep_units", given.keep_units};
    SHERDI_TRY(sherdi_agree_call(engine, "sherd_eval_begin", &argument, 1,
                                 begin_check(engine, given.keep_units)));
    SHERDI_TRY(sherdi_fill_finish(engine));
    engine->is_evaluating = 1;
    for (size_t i = 0; i < engine->plan->schedule.lasting.count && i < given.keep_units; i++) {
        sherdi_unit_of(engine, engine->plan->schedule.lasting.items[i].unit)->lasts = 1;
    }
    return SHERD_OK;
}

/* Drops the units that stayed, and others of those for which the plan has room. */
static sherd_status units_leave(sherd_engine *engine)
{
    for (size_t i = 0; i < engine->plan->schedule.lasting.count; i++) {
        sherdi_unit_of(engine, engine->plan->schedule.lasting.items[i].unit)->lasts = 0;
    }
    for (size_t i = 0; i < engine->plan->schedule.lasting.count; i++) {
        int unit = engine->plan->schedule.lasting.items[i].unit;

        if (sherdi_unit_of(engine, unit)->held == 0) {
            SHERDI_TRY(sherdi_program_unit_leave(&engine->run.program, unit));
        }
    }
    return SHERD_OK;
}

static sherd_status end_check(const sherd_engine *engine)
{
    if (!engine->is_evaluating) {
        return sherdi_fail(SHERD_E_STATE,
                           "sherd_eval_end: there is no sherd_eval_begin that it would end");
    }
    return sherdi_engine_need(engine, "sherd_eval_end", SHERDI_NEED_RELEASED);
}

sherd_status sherd_eval_end(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_eval_end", SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_agree_call(engine, "sherd_eval_end", NULL, 0, end_check(engine)));
    engine->is_evaluating = 0;
    return sherdi_engine_outcome(engine, units_leave(engine));
}
