/* Adagrad (Duchi et al. 2011) in PyTorch's form: the decay is added to the gradient, both for the
 * sum of squares and for the step. (DeepSpeed's CPU code divides the gradient without the decay.)
 * list.h explains the two faces of this file. */
#if defined(SHERDI_UPDATE_ROWS)

SHERDI_UPDATE(adagrad, 2)
SHERDI_ELEMENTWISE(adagrad, "Adagrad", adagrad,
                   (.parts     = {{.name = "master"}, {.name = "sum", .is_never_negative = 1}},
                    .state_tag = 7, .defaults = {.lr = 1e-2, .eps = 1e-10},
                    .keys   = "lr_decay|initial_accumulator_value",
                    .unread = "betas|bias_correction"))

#elif !defined(SHERDI_KERNELS_UPDATES_ADAGRAD_H)
#define SHERDI_KERNELS_UPDATES_ADAGRAD_H

#include "kernels/updates/step.h"

typedef struct sherdi_adagrad_coeffs {
    float grad_scale;
    float decay;
    /* added wherever the sum is used: the state holds only squares, and begins at zero */
    float initial;
    float eps;
    float neg_step_size; /* -lr / (1 + (t - 1) * lr_decay) */
} sherdi_adagrad_coeffs;

#ifndef __cplusplus /* the host makes them, in C */

static inline sherdi_adagrad_coeffs sherdi_adagrad_coeffs_of(const sherdi_group_step *step)
{
    return (sherdi_adagrad_coeffs){
        .grad_scale    = (float)step->grad_scale,
        .decay         = (float)step->decay,
        .initial       = (float)step->initial,
        .eps           = (float)step->eps,
        .neg_step_size = (float)(-step->lr / (1 + (double)(step->step - 1) * step->lr_decay)),
    };
}

#endif

REAL_FN void sherdi_adagrad_update(const sherdi_adagrad_coeffs *c, real grad, real *x)
{
    real p   = x[0];
    real g   = real_fma(real_of(c->decay), p, grad * real_of(c->grad_scale));
    real sum = real_fma(g, g, x[1]);

    x[0] = real_fma(real_of(c->neg_step_size),
                    g / (real_sqrt(sum + real_of(c->initial)) + real_of(c->eps)), p);
    x[1] = sum;
}

#endif
