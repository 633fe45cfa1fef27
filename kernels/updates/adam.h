/* Adam (Kingma and Ba 2015), with the decay in the gradient, and AdamW, with the decay of the weight itself (Loshchilov
 * and Hutter 2019). */
#if defined(SHERDI_UPDATE_ROWS)

SHERDI_UPDATE(adam, 3)

#elif !defined(SHERDI_KERNELS_UPDATES_ADAM_H)
#define SHERDI_KERNELS_UPDATES_ADAM_H

/* Everything of one group that an element needs, made once per step in double on the
 * host (engine/optimizers/) and rounded to fp32 here. */
typedef struct sherdi_adam_coeffs {
    float grad_scale; /* unscale, mean over micro-batches, and clip, in one */
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float eps;
    float neg_lr_decay;  /* -lr * weight decay: decoupled (AdamW); 0 for Adam */
    float l2_decay;      /* weight decay added to the gradient: Adam; 0 for AdamW */
    float neg_step_size; /* -lr / (1 - beta1^t) */
    float inv_sqrt_bias; /* 1 / sqrt(1 - beta2^t) */
} sherdi_adam_coeffs;

/* Form and order of PyTorch's AdamW: decay with the old p, eps outside the corrected root. */
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
