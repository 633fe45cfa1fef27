/* Muon (Jordan et al. 2024), with the numbers of torch.optim.Muon: its two element-wise sweeps. The
 * first blends the gradient into the momentum and makes the direction, which takes the place of the
 * master (x[0]). Between the sweeps, an orthogonal matrix is made of the direction
 * (kernels/orthogonal.h). The second sweep takes this matrix as its gradient, and decays decoupled.
 * list.h explains the two faces of this file. */
#if defined(SHERDI_UPDATE_ROWS)

SHERDI_UPDATE(muon_direction, 2)
SHERDI_UPDATE(muon, 1)
SHERDI_SWEEP(muon_direction)
SHERDI_SWEEP(muon)

#elif !defined(SHERDI_KERNELS_UPDATES_MUON_H)
#define SHERDI_KERNELS_UPDATES_MUON_H

#include "kernels/updates/step.h"

typedef struct sherdi_muon_coeffs {
    float grad_scale;
    float momentum, one_minus_momentum;
    float blend, one_minus_blend; /* Nesterov: factors of momentum and gradient in the direction */
    float neg_lr_decay;           /* -lr * weight decay, decoupled */
    float neg_step_size;          /* -lr */
} sherdi_muon_coeffs;

typedef sherdi_muon_coeffs sherdi_muon_direction_coeffs;

#ifndef __cplusplus /* the host makes them, in C */

static inline sherdi_muon_coeffs sherdi_muon_coeffs_of(const sherdi_group_step *step)
{
    return (sherdi_muon_coeffs){
        .grad_scale         = (float)step->grad_scale,
        .momentum           = (float)step->beta1,
        .one_minus_momentum = (float)(1 - step->beta1),
        .blend              = step->is_nesterov ? (float)step->beta1 : 1,
        .one_minus_blend    = step->is_nesterov ? (float)(1 - step->beta1) : 0,
        .neg_lr_decay       = (float)(-step->lr * step->decay),
        .neg_step_size      = (float)-step->lr,
    };
}

static inline sherdi_muon_direction_coeffs sherdi_muon_direction_coeffs_of(
    const sherdi_group_step *step)
{
    return sherdi_muon_coeffs_of(step);
}

#endif

REAL_FN void sherdi_muon_direction_update(const sherdi_muon_direction_coeffs *c, real grad, real *x)
{
    real g      = grad * real_of(c->grad_scale);
    real buffer = real_fma(real_of(c->momentum), x[1], real_of(c->one_minus_momentum) * g);

    x[0] = real_fma(real_of(c->blend), buffer, real_of(c->one_minus_blend) * g);
    x[1] = buffer;
}

REAL_FN void sherdi_muon_update(const sherdi_muon_coeffs *c, real grad, real *x)
{
    real p = real_fma(real_of(c->neg_lr_decay), x[0], x[0]);

    x[0] = real_fma(real_of(c->neg_step_size), grad, p);
}

#endif
