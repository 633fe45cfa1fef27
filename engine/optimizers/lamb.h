/* Optimizers with ratios: the step of a tensor is in proportion to a number that is made from its
 * norms. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_LAMB_H
#define SHERDI_ENGINE_OPTIMIZERS_LAMB_H

#include "engine/optimizers/optimizer.h"

/* Arguments of `make`: from the norms of all parameters it makes the numbers of the second
 * sweep. */
typedef struct sherdi_ratio_args {
    const sherdi_norm_acc *norms;  /* num_norms for each parameter */
    const int32_t         *groups; /* by parameter; below 0: the ratio is 1 */
    const void            *coeffs; /* by group */
    float                 *ratios;
    size_t                 num_params;
} sherdi_ratio_args;

typedef struct sherdi_ratio_ops {
    int (*has_ratio)(const sherdi_settings *settings, const sherdi_model_group *group,
                     const sherdi_model_param *param);
    void (*make)(const sherdi_backend *host, const sherdi_ratio_args *args);
} sherdi_ratio_ops;

#endif
