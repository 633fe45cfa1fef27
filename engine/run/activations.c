/* The calls of a trainer for activations. The program decides the moves
 * (engine/program/program_activations.c). */
#include "engine/modules.h"
#include "engine/plan/activations.h"
#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"
#include "engine/run/failure.h"

#include "sherd_build.h"
#include "engine/program/activations.h"
#include "offload/tiers.h"

void sherd_activation_params_init(sherd_activation_params *params)
{
    sherdi_api_init(params, &(sherd_activation_params){.struct_size = sizeof(*params)});
}

/* Finds the tier that a name means; NULL: as in the configuration. */
static sherd_status tier_find(const sherd_engine *engine, const char *name,
                              const sherdi_tier_kind **out)
{
    const sherdi_tier_kind *tier = name == NULL ? NULL : sherdi_tier_find(name);

    *out = tier;
    if (name == NULL) {
        return SHERD_OK;
    }
    if (tier == NULL) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "sherd_activation_add: device \"%.40s\" does not exist; it is one of %s%s", name,
            sherdi_tier_choices + 1, SHERDI_MORE_NAMES);
    }
    if (tier->has_files && engine->settings.offload.activations.num_folders == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_activation_add: device \"%s\" needs a folder; give it as "
                           "sherd.activations.nvme_path",
                           name);
    }
    return SHERD_OK;
}

sherd_status sherdi_model_add_activation(sherdi_model *model, int unit, size_t len_bytes,
                                         const sherdi_tier_kind *tier)
{
    sherdi_model_unit *info;

    SHERDI_TRY(sherdi_model_check_unit(model, NULL, unit));
    info = &model->units[unit];
    if (info->activation_bytes > 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "unit %s has an activation of %zu bytes already; declare one for all "
                           "that its forward leaves",
                           info->name, info->activation_bytes);
    }
    if (len_bytes == 0 || len_bytes > SIZE_MAX / 64) {
        return sherdi_fail(SHERD_E_INVAL, "unit %s: an activation of %zu bytes; %s", info->name,
                           len_bytes,
                           len_bytes == 0 ? "declare none where forward leaves nothing"
                                          : "that is more than memory can have");
    }
    if (info->has_any_uses) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "unit %s: how often backward uses it is not known (SHERD_USES_ANY), so "
                           "the end of an activation is not known either; list its backward uses",
                           info->name);
    }
    info->activation_bytes       = len_bytes;
    info->activation_tier        = tier;
    info->activation_tier_number = tier == NULL ? UINT64_MAX : sherdi_tier_index(tier);
    return SHERD_OK;
}

sherd_status sherd_activation_add(sherd_engine *engine, sherd_unit unit,
                                  const sherd_activation_params *params)
{
    sherd_activation_params given;
    const sherdi_tier_kind *tier;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_activation_add", SHERDI_NEED_OPEN));
    sherd_activation_params_init(&given);
    SHERDI_TRY(sherdi_api_need(params != NULL, "sherd_activation_add", "params"));
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_activation_params), &given));
    if (engine->settings.update.optimizer->is_inference) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_activation_add: optimizer.type is none, so the engine is for "
                           "inference and has no backward that would read an activation");
    }
    SHERDI_TRY(tier_find(engine, given.device, &tier));
    return sherdi_model_add_activation(&engine->model, unit, given.len_bytes, tier);
}

static sherd_status unit_check(const sherd_engine *engine, const char *call, sherd_unit unit,
                               const void *out)
{
    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_SEALED | SHERDI_NEED_UNPREPARED));
    SHERDI_TRY(sherdi_model_check_unit(&engine->model, call, unit));
    if (engine->plan->layout.units[unit].activation == SHERDI_NO_ACTIVATION) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: unit %s has no activation; declare one with sherd_activation_add",
                           call, engine->model.units[unit].name);
    }
    return sherdi_api_check_out(out, call);
}

static sherd_status activation_give(sherd_engine *engine, int unit, sherd_pass pass)
{
    const sherdi_program *program = &engine->run.program;
    sherd_status status = pass == SHERD_FORWARD ? sherdi_program_activation_put(program, unit)
                          : pass == SHERD_EVAL  ? sherdi_program_activation_scratch(program, unit)
                                                : sherdi_program_activation_get(program, unit);

    /* E_STATE: the call was wrong, and nothing is lost */
    return status == SHERD_OK || status == SHERD_E_STATE ? status
                                                         : sherdi_loop_lose(engine, status);
}

static sherd_status activation_use(sherd_engine *engine, const char *call, sherd_unit unit,
                                   sherd_pass pass, void **out)
{
    sherd_status status;

    if (sherdi_unit_of(engine, unit)->acquired[pass] == 0) {
        return sherdi_fail(SHERD_E_STATE, "%s: unit %s is not acquired for %s", call,
                           engine->model.units[unit].name, sherdi_pass_name(pass));
    }
    sherdi_mem_forbid_begin();
    status = activation_give(engine, unit, pass);
    sherdi_mem_forbid_end();
    if (status == SHERD_OK) {
        const sherdi_activation *activation =
            &engine->plan->activations->items[engine->plan->layout.units[unit].activation];
        unsigned char *memory = engine->memory.buffers[SHERDI_BUFFER_ACTIVATIONS];

        *out = memory == NULL ? NULL : memory + activation->offset; /* NULL: a dry engine */
    }
    return sherdi_engine_outcome(engine, status);
}

sherd_status sherd_activation_put(sherd_engine *engine, sherd_unit unit, void **out)
{
    static const char CALL[] = "sherd_activation_put";
    const int        *acquired;

    SHERDI_TRY(unit_check(engine, CALL, unit, out));
    acquired = sherdi_unit_of(engine, unit)->acquired;
    return activation_use(
        engine, CALL, unit,
        acquired[SHERD_FORWARD] == 0 && acquired[SHERD_EVAL] > 0 ? SHERD_EVAL : SHERD_FORWARD, out);
}

sherd_status sherd_activation_get(sherd_engine *engine, sherd_unit unit, void **out)
{
    static const char CALL[] = "sherd_activation_get";

    SHERDI_TRY(unit_check(engine, CALL, unit, out));
    return activation_use(engine, CALL, unit, SHERD_BACKWARD, out);
}

const sherdi_module sherdi_module_activations = {
    .lay_out          = sherdi_plan_activations_lay_out,
    .plan_destroyed   = sherdi_plan_activations_destroy,
    .progress_open    = sherdi_activations_open,
    .progress_close   = sherdi_activations_close,
    .unit_released    = sherdi_program_activation_release,
    .micro_batch_over = sherdi_program_activations_forget,
};
