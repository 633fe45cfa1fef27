/* LAMB (You et al. 2020). Its first sweep only takes the norms of weights and directions. Its
 * second sweep is an element-wise update, whose step is in proportion to the parameter's norm.
 * list.h explains the two faces of this file. */
#if defined(SHERDI_UPDATE_ROWS)

SHERDI_UPDATE(lamb, 3) /* of engine/optimizers/lamb.c */

#elif !defined(SHERDI_KERNELS_UPDATES_LAMB_H)
#define SHERDI_KERNELS_UPDATES_LAMB_H

#include "kernels/backend.h"

/* The kernel lamb_norms adds to norms[span.param] what sherdi_lamb_direction gives for each span, a
 * chunk of 64 elements at a time, counted from the span's start (sherdi_norm_chunk; the last one is
 * filled up with zeros). It only reads. lamb_ratios makes ratios of these norms. */

/* Made like sherdi_adam_coeffs. One formula serves two forms, which apply the bias corrections at
 * different places:
 *   DeepSpeed's   the corrections multiply the whole step: inv_bias1 = inv_bias2 = 1
 *   the paper's   u is made of the corrected m and v (You et al. 2020, algorithm 2) */
typedef struct sherdi_lamb_coeffs {
    float grad_scale;
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float inv_bias1;  /* of m: 1 / (1 - beta1^t), or 1 */
    float inv_bias2;  /* of v, under the root: 1 / (1 - beta2^t), or 1 */
    float eps_inside; /* under the root: eps or 0 */
    float eps;        /* added to the root: eps or 0 */
    float decay;
    float neg_step_size; /* -lr; in DeepSpeed's form, times sqrt(1 - beta2^t) / (1 - beta1^t).
                            The second sweep multiplies it by the parameter's ratio, rounded once */
    float min_ratio, max_ratio;
} sherdi_lamb_coeffs;

/* The two norms of one parameter tensor that LAMB divides: of its weights before the update, and of
 * the update's direction. They are sums of integers, so shares of blocks and ranks can be added in
 * any order. */
struct sherdi_lamb_norms {
    sherdi_norm_acc param, update;
};

/* Trust ratios of all parameters: ratios[i] = sherdi_lamb_ratio(...) of norms[i], in any form
 * (normalised or not). */
struct sherdi_lamb_ratio_args {
    const sherdi_lamb_norms  *norms;
    const int32_t            *groups; /* of parameter i; below 0: the ratio is 1 */
    const sherdi_lamb_coeffs *coeffs; /* indexed by group */
    float                    *ratios;
    size_t                    num_params;
};

/** Returns the bytes that the first sweep of one block touches. */
static inline size_t sherdi_lamb_norms_traffic_bytes(const sherdi_update_args *args)
{
    return sherdi_update_bytes(SHERDI_UPDATE_lamb, args, 0);
}

REAL_FN void sherdi_lamb_moments(const sherdi_lamb_coeffs *c, real grad, real *m, real *v)
{
    real g = grad * real_of(c->grad_scale);

    *m = real_fma(real_of(c->beta1), *m, real_of(c->one_minus_beta1) * g);
    *v = real_fma(real_of(c->one_minus_beta2) * g, g, real_of(c->beta2) * *v);
}

REAL_FN real sherdi_lamb_root(const sherdi_lamb_coeffs *c, real v)
{
    return real_sqrt(real_fma(real_of(c->inv_bias2), v, real_of(c->eps_inside)));
}

/* Makes the new moments, and returns the direction, which the trust ratio scales. p is the weight
 * before the update. */
REAL_FN real sherdi_lamb_direction(const sherdi_lamb_coeffs *c, real grad, real p, real *m, real *v)
{
    sherdi_lamb_moments(c, grad, m, v);
    return real_fma(real_of(c->decay), p,
                    *m * real_of(c->inv_bias1) / (sherdi_lamb_root(c, *v) + real_of(c->eps)));
}

REAL_FN void sherdi_lamb_update(const sherdi_lamb_coeffs *c, real grad, real *x)
{
    real u = sherdi_lamb_direction(c, grad, x[0], &x[1], &x[2]);

    x[0] = real_fma(real_of(c->neg_step_size), u, x[0]);
}

/* The trust ratio, with phi of You et al. 2020 as DeepSpeed has it: ||p|| / ||u||, clamped to
 * min_ratio and max_ratio; 1 when either norm is 0. Roots, quotient and comparisons are in double,
 * and the result is rounded once. NaN stays NaN. */
SHERDI_FN float sherdi_lamb_ratio(const sherdi_lamb_coeffs *c, const sherdi_norm_acc *param,
                                  const sherdi_norm_acc *update)
{
    double p = sqrt(sherdi_norm_value(param));
    double u = sqrt(sherdi_norm_value(update));
    double ratio;

    if (p == 0 || u == 0) {
        return 1;
    }
    ratio = p / u;
    if (ratio < (double)c->min_ratio) {
        ratio = (double)c->min_ratio;
    }
    if (ratio > (double)c->max_ratio) {
        ratio = (double)c->max_ratio;
    }
    return sherdi_canonical_f32((float)ratio);
}

#endif
