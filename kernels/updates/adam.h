/* Adam (Kingma and Ba 2015) adds the decay to the gradient; AdamW (Loshchilov and Hutter 2019)
 * decays the weight itself. Both share a formula and differ in its coefficients. list.h explains
 * the two faces of this file. */
#if defined(SHERDI_UPDATE_ROWS)

SHERDI_UPDATE(adam, 3)
SHERDI_ELEMENTWISE(adamw, "AdamW", adam,
                   (.parts = {{.name = "master"},
                              {.name = "exp_avg"},
                              {.name = "exp_avg_sq", .is_never_negative = 1}}))
SHERDI_ELEMENTWISE(adam, "Adam", adam,
                   (.parts     = {{.name = "master"},
                                  {.name = "exp_avg"},
                                  {.name = "exp_avg_sq", .is_never_negative = 1}},
                    .decoupled = &sherdi_optimizer_adamw))

#elif !defined(SHERDI_KERNELS_UPDATES_ADAM_H)
#define SHERDI_KERNELS_UPDATES_ADAM_H

#include "kernels/updates/step.h"

/* All numbers of a group that the formula needs. The host makes them once per step in double and
 * rounds them to fp32. */
typedef struct sherdi_adam_coeffs {
    float grad_scale; /* unscaling, the mean over micro-batches, and clipping in one factor */
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float eps;
    float neg_lr_decay;  /* AdamW: -lr * weight decay, decoupled; Adam: 0 */
    float l2_decay;      /* Adam: weight decay, added to the gradient; AdamW: 0 */
    float neg_step_size; /* -lr / (1 - beta1^t) */
    float inv_sqrt_bias; /* 1 / sqrt(1 - beta2^t) */
} sherdi_adam_coeffs;

#ifndef __cplusplus /* the host makes them, in C */

/* Makes all coefficients except those of the decay. */
static inline sherdi_adam_coeffs sherdi_adam_coeffs_without_decay(const sherdi_group_step *step)
{
    return (sherdi_adam_coeffs){
        .grad_scale      = (float)step->grad_scale,
        .beta1           = (float)step->beta1,
        .one_minus_beta1 = (float)(1 - step->beta1),
        .beta2           = (float)step->beta2,
        .one_minus_beta2 = (float)(1 - step->beta2),
        .eps             = (float)step->eps,
        .neg_step_size   = (float)(-step->lr / step->bias1),
        .inv_sqrt_bias   = (float)(1 / sqrt(step->bias2)),
    };
}

static inline sherdi_adam_coeffs sherdi_adam_coeffs_of(const sherdi_group_step *step)
{
    sherdi_adam_coeffs coeffs = sherdi_adam_coeffs_without_decay(step);

    coeffs.l2_decay = (float)step->decay;
    return coeffs;
}

static inline sherdi_adam_coeffs sherdi_adamw_coeffs_of(const sherdi_group_step *step)
{
    sherdi_adam_coeffs coeffs = sherdi_adam_coeffs_without_decay(step);

    coeffs.neg_lr_decay = (float)(-step->lr * step->decay);
    return coeffs;
}

#endif

/* Form and order of operations are those of PyTorch's AdamW: the decay uses the old p, and eps is
 * outside the corrected root. */
REAL_FN void sherdi_adam_update(const sherdi_adam_coeffs *c, real grad, real *x)
{
    real p = x[0], m = x[1], v = x[2];
    real g = grad * real_of(c->grad_scale);
    real denominator;

    g           = real_fma(real_of(c->l2_decay), p, g);
    p           = real_fma(real_of(c->neg_lr_decay), p, p);
    m           = real_fma(real_of(c->beta1), m, real_of(c->one_minus_beta1) * g);
    v           = real_fma(real_of(c->one_minus_beta2) * g, g, real_of(c->beta2) * v);
    denominator = real_fma(real_sqrt(v), real_of(c->inv_sqrt_bias), real_of(c->eps));
    x[0]        = real_fma(real_of(c->neg_step_size), m / denominator, p);
    x[1]        = m;
    x[2]        = v;
}

#endif
