/* Stochastic gradient descent with momentum, an optimizer that the library does not have in this
 * form: the update of one element. The setting beta1 is the momentum. */
#ifndef TESTS_ENGINE_SGD_H
#define TESTS_ENGINE_SGD_H

#include <math.h>

typedef struct sgd_coeffs {
    float grad_scale, momentum, decay, neg_lr;
} sgd_coeffs;

static inline void sgd_element(const sgd_coeffs *c, float grad, float *weight, float *buffer)
{
    float g = fmaf(c->decay, *weight, grad * c->grad_scale);

    *buffer = fmaf(c->momentum, *buffer, g);
    *weight = fmaf(c->neg_lr, *buffer, *weight);
}

#endif
