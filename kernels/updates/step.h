/* A group's numbers for one step, of which the coefficients of an update are made.
 * engine/run/optimizer.c fills the struct. */
#ifndef SHERDI_KERNELS_UPDATES_STEP_H
#define SHERDI_KERNELS_UPDATES_STEP_H

#include <math.h>
#include <stdint.h>

typedef struct sherdi_group_step {
    double  grad_scale; /* factor of the gradient: unscaling, mean, clipping */
    double  lr, beta1, beta2, eps, decay;
    double  bias1, bias2; /* 1 - beta^step, or 1 */
    int64_t step;         /* number of the update, from 1 */
    /* Only some optimizers read these. A momentum is beta1. */
    double dampening;
    int    is_nesterov;
    double lr_decay, initial; /* Adagrad: decay of the rate; start of the sum of squares */
} sherdi_group_step;

#endif
