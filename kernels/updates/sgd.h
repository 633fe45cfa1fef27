/* Stochastic gradient descent in PyTorch's forms: plain, with momentum (Polyak 1964), or with
 * Nesterov's (Sutskever et al. 2013). The decay is added to the gradient. Without momentum the
 * state has no buffer. list.h explains the two faces of this file. */
#if defined(SHERDI_UPDATE_ROWS)

SHERDI_UPDATE(sgd, 2)
SHERDI_UPDATE(sgd_plain, 1)
SHERDI_ELEMENTWISE(sgd, "SGD", sgd,
                   (.parts = {{.name = "master"}, {.name = "momentum_buffer"}}, .state_tag = 5,
                    .without_momentum = &sherdi_optimizer_sgd_plain,
                    .with_momentum = &sherdi_optimizer_sgd, .keys = "momentum|dampening|nesterov",
                    .unread = "betas|eps|bias_correction"))
SHERDI_VARIANT(sgd_plain, "SGD", sgd_plain,
               (.parts = {{.name = "master"}}, .state_tag = 6,
                .without_momentum = &sherdi_optimizer_sgd_plain,
                .with_momentum    = &sherdi_optimizer_sgd))

#elif !defined(SHERDI_KERNELS_UPDATES_SGD_H)
#define SHERDI_KERNELS_UPDATES_SGD_H

#include "kernels/updates/step.h"

typedef struct sherdi_sgd_coeffs {
    float grad_scale;
    float decay;
    float momentum;
    float one_minus_dampening; /* 1 in the first step: the buffer becomes the gradient */
    float neg_step_size;       /* -lr */
    int   is_nesterov;
} sherdi_sgd_coeffs;

typedef sherdi_sgd_coeffs sherdi_sgd_plain_coeffs;

#ifndef __cplusplus /* the host makes them, in C */

static inline sherdi_sgd_coeffs sherdi_sgd_coeffs_of(const sherdi_group_step *step)
{
    return (sherdi_sgd_coeffs){
        .grad_scale          = (float)step->grad_scale,
        .decay               = (float)step->decay,
        .momentum            = (float)step->beta1,
        .one_minus_dampening = step->step == 1 ? 1 : (float)(1 - step->dampening),
        .neg_step_size       = (float)-step->lr,
        .is_nesterov         = step->is_nesterov,
    };
}

static inline sherdi_sgd_plain_coeffs sherdi_sgd_plain_coeffs_of(const sherdi_group_step *step)
{
    return sherdi_sgd_coeffs_of(step);
}

#endif

REAL_FN void sherdi_sgd_update(const sherdi_sgd_coeffs *c, real grad, real *x)
{
    real p = x[0], buffer = x[1];
    real g = real_fma(real_of(c->decay), p, grad * real_of(c->grad_scale));
    real direction;

    buffer    = real_fma(real_of(c->momentum), buffer, real_of(c->one_minus_dampening) * g);
    direction = c->is_nesterov ? real_fma(real_of(c->momentum), buffer, g) : buffer;
    x[0]      = real_fma(real_of(c->neg_step_size), direction, p);
    x[1]      = buffer;
}

REAL_FN void sherdi_sgd_plain_update(const sherdi_sgd_plain_coeffs *c, real grad, real *x)
{
    real g = real_fma(real_of(c->decay), x[0], grad * real_of(c->grad_scale));

    x[0] = real_fma(real_of(c->neg_step_size), g, x[0]);
}

#endif
