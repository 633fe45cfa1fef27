/* What the coefficients of an update are made of: a group's numbers for one step. The engine fills it
 * (engine/run/optimizer.c). */
#ifndef SHERDI_KERNELS_UPDATES_STEP_H
#define SHERDI_KERNELS_UPDATES_STEP_H

#include <math.h>
#include <stdint.h>

typedef struct sherdi_group_step {
    double  grad_scale; /* what the gradient is multiplied by */
    double  lr, beta1, beta2, eps, decay;
    double  bias1, bias2; /* 1 - beta^step, or 1 */
    int64_t step;         /* the update's number, from 1 */
    /* What some optimizers alone read. The momentum is beta1. */
    double dampening;
    int    is_nesterov;
    double lr_decay, initial; /* of Adagrad: of the rate; what the sum of squares begins at */
} sherdi_group_step;

#endif
