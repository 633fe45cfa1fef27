/* Lion (Chen et al. 2023, algorithm 2), with one moment: each element moves by the learning rate,
 * against the sign of a blend of gradient and moment. Where the blend is zero, this step is zero,
 * as in the paper. list.h explains the two faces of this file. */
#if defined(SHERDI_UPDATE_ROWS)

SHERDI_UPDATE(lion, 2)
SHERDI_ELEMENTWISE(lion, "Lion", lion,
                   (.parts = {{.name = "master"}, {.name = "exp_avg"}}, .state_tag = 4,
                    .defaults = {.betas = {0.9, 0.99}}, .unread = "eps|bias_correction"))

#elif !defined(SHERDI_KERNELS_UPDATES_LION_H)
#define SHERDI_KERNELS_UPDATES_LION_H

#include "kernels/updates/step.h"

typedef struct sherdi_lion_coeffs {
    float grad_scale;
    float beta1, one_minus_beta1; /* of the blend */
    float beta2, one_minus_beta2; /* of the moment */
    float neg_lr_decay;           /* -lr * weight decay, decoupled */
    float neg_step_size;          /* -lr */
} sherdi_lion_coeffs;

#ifndef __cplusplus /* the host makes them, in C */

static inline sherdi_lion_coeffs sherdi_lion_coeffs_of(const sherdi_group_step *step)
{
    return (sherdi_lion_coeffs){
        .grad_scale      = (float)step->grad_scale,
        .beta1           = (float)step->beta1,
        .one_minus_beta1 = (float)(1 - step->beta1),
        .beta2           = (float)step->beta2,
        .one_minus_beta2 = (float)(1 - step->beta2),
        .neg_lr_decay    = (float)(-step->lr * step->decay),
        .neg_step_size   = (float)-step->lr,
    };
}

#endif

/* With an infinite moment and beta2 = 0, the new moment is NaN though the blend is not: therefore
 * real_canonical (see real.h). */
REAL_FN void sherdi_lion_update(const sherdi_lion_coeffs *c, real grad, real *x)
{
    real p = x[0], m = x[1];
    real g     = grad * real_of(c->grad_scale);
    real blend = real_fma(real_of(c->beta1), m, real_of(c->one_minus_beta1) * g);

    m    = real_fma(real_of(c->beta2), m, real_of(c->one_minus_beta2) * g);
    p    = real_fma(real_of(c->neg_lr_decay), p, p);
    x[0] = real_fma(real_of(c->neg_step_size), real_sign(blend), p);
    x[1] = real_canonical(m);
}

#endif
