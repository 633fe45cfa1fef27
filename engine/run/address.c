/* Where parameters and gradients are, for a caller that has the unit acquired. */
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
        sherdi_model_check_param(&engine->model, call, param) != SHERD_OK) {
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

_Alignas(SHERD_ALIGN_BYTES) unsigned char sherdi_no_elements[1];

size_t sherdi_param_offset(const sherd_engine *engine, sherd_param param)
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
    return segment->slice_elems == 0 ? sherdi_no_elements
                                     : sherdi_loop_param(engine, (size_t)param);
}

sherd_status sherdi_param_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                   sherd_param param, void **out)
{
    sherdi_range at;

    if (segment->kind == SHERDI_SEGMENT_FROZEN) {
        return sherdi_fail(SHERD_E_STATE, "parameter %s is frozen and has no gradient",
                           engine->model.params[param].name);
    }
    if (segment->slice_elems == 0) {
        *out = sherdi_no_elements;
    } else if (segment->is_bound) {
        *out = engine->model.params[param].bound_grad;
    } else {
        at   = sherdi_program_micro_gradient(engine->plan, segment);
        *out = engine->memory.buffers[at.where] + at.offset + sherdi_param_offset(engine, param);
    }
    return SHERD_OK;
}

void *sherd_param_grad(sherd_engine *engine, sherd_param param)
{
    const sherdi_segment *segment = acquired_segment(engine, "sherd_param_grad", param, 1);
    void                 *found   = NULL;

    if (segment == NULL || sherdi_param_gradient(engine, segment, param, &found) != SHERD_OK) {
        return NULL;
    }
    return found;
}
