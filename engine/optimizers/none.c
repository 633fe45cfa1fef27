/* The table of "none": an engine for inference, without an optimizer. All its parameters count as
 * frozen (engine.c), so it has no gradients and no state, and no sweep ever runs. The plan has no
 * backward pass (plan_schedule.c). */
#include "engine/optimizers/optimizer.h"

#include <assert.h>
#include <string.h>

static void none_coeffs(const sherdi_settings *settings, const sherdi_group_step *step, void *out)
{
    (void)settings, (void)step;
    memset(out, 0, sizeof(float));
}

static void none_run(const sherdi_backend *lane, const sherdi_update_args *args, float *direction)
{
    (void)lane, (void)args, (void)direction;
    assert(!"an engine for inference has no block");
}

const sherdi_optimizer sherdi_optimizer_none = {
    .parts        = {{.name = "master"}},
    .num_parts    = 1,
    .sweeps       = {{.reads = 1, .writes = 1, .writes_param = 1, .run = none_run}},
    .num_sweeps   = 1,
    .coeff_bytes  = sizeof(float),
    .coeffs       = none_coeffs,
    .is_inference = 1,
};
