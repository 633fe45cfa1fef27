/* Declares the units and parameters of an architecture. See declare.h. */
#include "declare.h"

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
