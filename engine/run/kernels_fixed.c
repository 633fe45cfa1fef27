/* Sums of integers (the deterministic mode): how they become fp32, and how many micro-batches of a
 * window they can hold. */
#include "engine/run/kernels.h"

#include "engine/modules.h"

void sherdi_kernel_widen(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->fixed_to_f32(lane, sherdi_run_address(engine, op, SHERDI_USE_DST),
                                sherdi_run_address(engine, op, SHERDI_USE_SRC), op->elems);
}

/* Returns E_STATE for a further micro-batch of a window that has as many as can be added. */
static sherd_status room_check(sherd_engine *engine, int unit, sherd_pass pass)
{
    (void)unit;
    if (pass == SHERD_EVAL || !engine->settings.numerics.deterministic ||
        engine->window.micro_seen < engine->settings.batch.accumulation) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_STATE,
        "the window has %d micro-batches, and gradient_accumulation_steps is %d, the "
        "most that \"deterministic\": true can add with sherd.open_windows; close "
        "the window before, or give a larger number",
        engine->window.micro_seen, engine->settings.batch.accumulation);
}

const sherdi_module sherdi_module_fixed = {.unit_acquiring = room_check};
