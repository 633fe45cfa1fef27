/* Declares the units and parameters of an architecture. See declare.h. */
#include "declare.h"

#include "models/activations.h"

static sherd_status param_declare(const arch *model, sherd_engine *engine, sherd_unit unit,
                                  size_t k)
{
    sherd_param_params params;
    sherd_param        handle;
    arch_param         info;

    arch_param_get(model, k, &info);
    sherd_param_params_init(&params);
    params.name     = info.name;
    params.ndim     = info.ndim;
    params.shape[0] = info.shape[0];
    params.shape[1] = info.shape[1];
    return sherd_param_add(engine, unit, &params, &handle);
}

static sherd_status unit_declare(const arch *model, sherd_engine *engine, size_t unit)
{
    char              name[ARCH_NAME_BYTES];
    sherd_unit_params params;
    sherd_unit        handle;
    sherd_status      status;

    arch_unit_name(model, unit, name);
    sherd_unit_params_init(&params);
    params.name = name;
    status      = sherd_unit_add(engine, &params, &handle);
    for (size_t k = arch_unit_first_param(model, unit);
         status == SHERD_OK && k < arch_unit_first_param(model, unit + 1); k++) {
        status = param_declare(model, engine, handle, k);
    }
    if (status == SHERD_OK && unit == model->layers + 1 && !model->is_untied) {
        status = sherd_unit_reads(engine, handle, 0);
    }
    return status;
}

sherd_status arch_declare(const arch *model, sherd_engine *engine)
{
    for (size_t unit = 0; unit < arch_unit_count(model); unit++) {
        sherd_status status = unit_declare(model, engine, unit);

        if (status != SHERD_OK) {
            return status;
        }
    }
    return SHERD_OK;
}

sherd_status activations_declare(const arch *model, const layer_places *places, size_t length,
                                 sherd_engine *engine)
{
    sherd_engine_info       info   = {.struct_size = sizeof(info)};
    sherd_status            status = sherd_engine_query(engine, &info);
    sherd_activation_params params;
    activations_params      shape = {.batch   = (size_t)info.micro_batch_size,
                                     .length  = length,
                                     .dtype   = info.compute_dtype,
                                     .backend = info.backend};

    sherd_activation_params_init(&params);
    for (size_t l = 0; l < model->layers && status == SHERD_OK; l++) {
        layer_place place = layer_place_of(places, l);

        if (layer_place_is_moved(place)) {
            params.len_bytes = activations_layer_bytes(model, &shape, place);
            params.device    = layer_place_device(place);
            status           = sherd_activation_add(engine, (sherd_unit)(l + 1), &params);
        }
    }
    return status;
}
