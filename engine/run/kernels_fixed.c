/* Sums of integers (the deterministic mode): how they become fp32, and how many micro-batches of a
 * window they can hold. */
#include "engine/run/kernels.h"

#include "engine/modules.h"
#include "kernels/fixed.h"

#include <math.h>

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

/* Where a deterministic reduction puts integers. The loss scale is constant inside a window, so the
 * sink is not written while the world's thread may read it. */
static void fixed_sink(sherd_engine *engine, const sherdi_fixed_sink **out)
{
    double multiplier = ldexp(1, engine->plan->layout.fixed_shift) / engine->scaler.scale;

    if (engine->window.fixed_sink.multiplier != multiplier) {
        engine->window.fixed_sink = (sherdi_fixed_sink){
            .multiplier = multiplier,
            .limit      = ldexp(SHERDI_FIXED_RANGE, engine->plan->layout.fixed_shift),
            .counts     = &engine->kernel_data.device.head->counts,
        };
    }
    *out = &engine->window.fixed_sink;
}

/* Returns E_NUMERIC for a finite gradient that the integers cannot hold. */
static sherd_status range_check(const sherdi_fixed_counts *counts)
{
    if (counts->nonfinite > 0 || counts->out_of_range == 0) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_NUMERIC,
                       "%llu gradient elements of this window are %g or larger, too large for the "
                       "deterministic mode to add; the window was dropped, nothing was updated; "
                       "scale the loss down, or look for what diverges",
                       (unsigned long long)counts->out_of_range, SHERDI_FIXED_RANGE);
}

const sherdi_module sherdi_module_fixed = {
    .unit_acquiring = room_check, .fixed_sink = fixed_sink, .gradient_check = range_check};
