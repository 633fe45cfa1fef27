/* Adam with "adam_w_mode": false: the decay is added to the gradient (Kingma and Ba 2015). */
#include "engine/optimizers/moments.h"

static void adam_coeffs(const sherdi_settings *settings, const sherdi_group_step *step, void *out)
{
    sherdi_adam_coeffs *coeffs = out;

    (void)settings;
    *coeffs          = sherdi_adam_coeffs_of(step);
    coeffs->l2_decay = (float)step->decay;
}

const sherdi_optimizer sherdi_optimizer_adam = {
    .parts       = SHERDI_PARTS_WITH_MOMENTS,
    .num_parts   = SHERDI_MOMENT_PARTS,
    .sweeps      = {SHERDI_ADAM_SWEEP},
    .num_sweeps  = 1,
    .coeff_bytes = sizeof(sherdi_adam_coeffs),
    .coeffs      = adam_coeffs,
    .decoupled   = &sherdi_optimizer_adamw,
};
