/* AdamW: the decay is taken from the weight itself (Loshchilov and Hutter 2019). "Adam" too, by default. */
#include "engine/optimizers/moments.h"

static void adamw_coeffs(const sherdi_settings *settings, const sherdi_group_step *step, void *out)
{
    sherdi_adam_coeffs *coeffs = out;

    (void)settings;
    *coeffs              = sherdi_adam_coeffs_of(step);
    coeffs->neg_lr_decay = (float)(-step->lr * step->decay);
}

const sherdi_optimizer sherdi_optimizer_adamw = {
    .parts       = SHERDI_PARTS_WITH_MOMENTS,
    .num_parts   = SHERDI_MOMENT_PARTS,
    .sweeps      = {SHERDI_ADAM_SWEEP},
    .num_sweeps  = 1,
    .coeff_bytes = sizeof(sherdi_adam_coeffs),
    .coeffs      = adamw_coeffs,
};
