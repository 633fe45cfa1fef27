/* Where parameters and gradients are: sherd_param_data and sherd_param_grad for a caller that has
 * the unit acquired, and the address that stays the same for the life of the engine
 * (sherd_param_address), for a caller that keeps it in a table. */
#include "engine/run/address.h"

#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"

/* Whether the unit's gradient may be read although nobody has the unit acquired. */
static int is_retained(const sherd_engine *engine, int unit)
{
    return engine->plan->layout.units[unit].retains_grads &&
           sherdi_program_has_gradient(&engine->run.program, unit);
}

/* Returns the segment of a parameter whose unit is acquired, or whose gradient is retained; NULL:
 * neither. */
static const sherdi_segment *acquired_segment(const sherd_engine *engine, const char *call,
                                              sherd_param param, int is_backward)
{
    const sherdi_segment *segment;

    if (sherdi_engine_check_alive(engine, call) != SHERD_OK ||
        sherdi_engine_need_param(engine, call, param) != SHERD_OK) {
        return NULL;
    }
    if (engine->phase != SHERDI_PHASE_RUNNING) {
        (void)sherdi_fail(
            SHERD_E_STATE,
            "parameter %s cannot be read now: no unit is acquired; acquire its unit first",
            engine->model.params[param].name);
        return NULL;
    }
    segment = sherdi_param_segment(engine->plan, (size_t)param);
    if (is_backward && is_retained(engine, segment->unit)) {
        return segment;
    }
    if ((is_backward ? sherdi_unit_of(engine, segment->unit)->held_backward
                     : sherdi_unit_of(engine, segment->unit)->held) == 0) {
        (void)sherdi_fail(SHERD_E_STATE,
                          "parameter %s cannot be read now: its unit %s is not acquired%s",
                          engine->model.params[param].name, engine->model.units[segment->unit].name,
                          is_backward ? " for backward" : "");
        return NULL;
    }
    return segment;
}

/* Gives the segment of a parameter, acquired or not; from seal on it has an address. */
static sherd_status addressed_segment(const sherd_engine *engine, const char *call,
                                      sherd_param param, const sherdi_segment **out)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine, call));
    SHERDI_TRY(sherdi_engine_need_param(engine, call, param));
    if (engine->phase == SHERDI_PHASE_OPEN) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: parameter %s has no address before sherd_engine_seal", call,
                           engine->model.params[param].name);
    }
    *out = sherdi_param_segment(engine->plan, (size_t)param);
    return SHERD_OK;
}

/* The address of parameters without elements; nobody reads or writes it. */
static _Alignas(SHERD_ALIGN_BYTES) unsigned char no_elements[1];

static size_t offset_in_segment(const sherd_engine *engine, sherd_param param)
{
    return engine->plan->layout.params[param].offset_elems *
           sherdi_compute_bytes(sherdi_param_segment(engine->plan, (size_t)param));
}

void *sherd_param_data(sherd_engine *engine, sherd_param param)
{
    const sherdi_segment *segment = acquired_segment(engine, "sherd_param_data", param, 0);

    if (segment == NULL) {
        return NULL;
    }
    return segment->slice_elems == 0 ? no_elements : sherdi_loop_param(engine, (size_t)param);
}

static sherd_status gradient_in(sherd_engine *engine, const sherdi_segment *segment,
                                sherd_param param, void **out)
{
    if (segment->kind == SHERDI_SEGMENT_FROZEN) {
        return sherdi_fail(SHERD_E_STATE, "parameter %s is frozen and has no gradient",
                           engine->model.params[param].name);
    }
    if (segment->slice_elems == 0) {
        *out = no_elements;
    } else if (segment->is_bound) {
        *out = engine->model.params[param].bound_grad;
    } else {
        *out = sherdi_loop_micro_gradient(engine, segment) + offset_in_segment(engine, param);
    }
    return SHERD_OK;
}

void *sherd_param_grad(sherd_engine *engine, sherd_param param)
{
    const sherdi_segment *segment = acquired_segment(engine, "sherd_param_grad", param, 1);
    void                 *found   = NULL;

    if (segment == NULL || gradient_in(engine, segment, param, &found) != SHERD_OK) {
        return NULL;
    }
    return found;
}

sherd_status sherdi_param_locate(sherd_engine *engine, const char *call, sherd_param param,
                                 void **out)
{
    const sherdi_segment *segment = NULL;

    SHERDI_TRY(addressed_segment(engine, call, param, &segment));
    if (segment->slice_elems == 0) {
        *out = no_elements;
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
           offset_in_segment(engine, param);
    return SHERD_OK;
}

sherd_status sherdi_param_locate_grad(sherd_engine *engine, const char *call, sherd_param param,
                                      void **out)
{
    const sherdi_segment *segment = NULL;

    SHERDI_TRY(addressed_segment(engine, call, param, &segment));
    return gradient_in(engine, segment, param, out);
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
