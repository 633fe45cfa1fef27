/* What a trainer calls for activations. */
#include "engine/run/engine_impl.h"
#include "engine/run/needs.h"

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
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_activation_add: device \"%.40s\" does not exist; it is one of %s",
                           name, sherdi_tier_choices + 1);
    }
    if (tier->has_files && engine->settings.activations.num_folders == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_activation_add: device \"%s\" needs a folder; give it as "
                           "sherd.activations.nvme_path",
                           name);
    }
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
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API_ACTIVATION_PARAMS, &given));
    if (engine->settings.optimizer->is_inference) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_activation_add: optimizer.type is none, so the engine is for "
                           "inference and has no backward that would read an activation");
    }
    SHERDI_TRY(tier_find(engine, given.device, &tier));
    return sherdi_model_add_activation(&engine->model, unit, given.len_bytes, tier);
}
