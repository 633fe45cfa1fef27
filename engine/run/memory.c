/* Memory that the trainer binds to parameters, and addresses that stay the same for the life of the
 * engine (sherd_param_address), for a caller that keeps them in a table. */
#include "engine/run/memory.h"

#include "engine/run/address.h"

#include "engine/run/failure.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"

/* -------------------------------------------------------------------- bind -- */

sherd_status sherdi_model_bind(sherdi_model *model, int param, void *data, void *grad)
{
    sherdi_model_param *bound;

    SHERDI_TRY(sherdi_model_check_param(model, NULL, param));
    bound = &model->params[param];
    if (data == NULL || (grad == NULL && !bound->is_frozen)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "parameter %s: sherd_param_bind needs the address of its data%s",
                           bound->name, bound->is_frozen ? "" : " and of its gradient");
    }
    bound->bound_data = data;
    bound->bound_grad = grad;
    return SHERD_OK;
}

/* A parameter that does not exist, and memory that is not there, are for sherdi_model_bind to
 * judge. */
static sherd_status reach_check(const sherd_engine *engine, sherd_param param, const void *memory)
{
    const sherdi_device_ops *device = engine->backend->device;

    if (param < 0 || (size_t)param >= engine->model.num_params || memory == NULL ||
        device->memory_reach == NULL || device->memory_reach(engine->backend, memory)) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL,
                       "parameter %s: sherd_param_bind was given memory of the host, on which the "
                       "GPU cannot compute; give it memory of the GPU (cudaMalloc)",
                       engine->model.params[param].name);
}

sherd_status sherd_param_bind(sherd_engine *engine, sherd_param param, void *data, void *grad)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_param_bind", SHERDI_NEED_OPEN));
    if (engine->settings.sharding.stage == 3) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "binding the trainer's own memory keeps parameters whole, "
                           "which stage 3 does not; use stage 0, 1 or 2");
    }
    SHERDI_TRY(reach_check(engine, param, data));
    SHERDI_TRY(reach_check(engine, param, grad));
    return sherdi_model_bind(&engine->model, param, data, grad);
}

/* --------------------------------------------------------------- addresses -- */

/* Gives the segment of a parameter, acquired or not; from seal on it has an address. */
static sherd_status addressed_segment(const sherd_engine *engine, const char *call,
                                      sherd_param param, const sherdi_segment **out)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine, call));
    SHERDI_TRY(sherdi_model_check_param(&engine->model, call, param));
    if (engine->phase == SHERDI_PHASE_OPEN) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: parameter %s has no address before sherd_engine_seal", call,
                           engine->model.params[param].name);
    }
    *out = sherdi_param_segment(engine->plan, (size_t)param);
    return SHERD_OK;
}

sherd_status sherdi_param_locate(sherd_engine *engine, const char *call, sherd_param param,
                                 void **out)
{
    const sherdi_segment *segment = NULL;

    SHERDI_TRY(addressed_segment(engine, call, param, &segment));
    if (segment->slice_elems == 0) {
        *out = sherdi_no_elements;
        return SHERD_OK;
    }
    if (segment->is_bound || segment->is_resident) {
        *out = sherdi_loop_param(engine, (size_t)param);
        return SHERD_OK;
    }
    if (engine->settings.sharding.free_packing) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "parameter %s has no fixed address: with sherd.free_packing each gather may put its "
            "unit elsewhere; remove that key, or call sherd_param_data after each acquire",
            engine->model.params[param].name);
    }
    *out = engine->memory.buffers[SHERDI_BUFFER_GATHER] +
           engine->plan->layout.units[segment->unit].gather_pool_offset + segment->gather_offset +
           sherdi_param_offset(engine, param);
    return SHERD_OK;
}

sherd_status sherdi_param_locate_grad(sherd_engine *engine, const char *call, sherd_param param,
                                      void **out)
{
    const sherdi_segment *segment = NULL;

    SHERDI_TRY(addressed_segment(engine, call, param, &segment));
    return sherdi_param_gradient(engine, segment, param, out);
}

void *sherd_param_address(sherd_engine *engine, sherd_param param)
{
    void *found = NULL;

    return sherdi_param_locate(engine, "sherd_param_address", param, &found) == SHERD_OK ? found
                                                                                         : NULL;
}

void *sherd_param_grad_address(sherd_engine *engine, sherd_param param)
{
    void *found = NULL;

    return sherdi_param_locate_grad(engine, "sherd_param_grad_address", param, &found) == SHERD_OK
               ? found
               : NULL;
}

/* -------------------------------------------------------------------- copy -- */

sherd_status sherd_copy(sherd_engine *engine, void *dst, const void *src, size_t len_bytes)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine, "sherd_copy"));
    SHERDI_TRY(sherdi_api_need(dst != NULL || len_bytes == 0, "sherd_copy", "dst"));
    SHERDI_TRY(sherdi_api_need(src != NULL || len_bytes == 0, "sherd_copy", "src"));
    engine->backend->kernels->copy(engine->backend, dst, src, len_bytes);
    return sherdi_engine_outcome(engine, sherdi_lane_wait(engine->backend));
}
