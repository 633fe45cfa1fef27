/* Which kind of memory a model computes in. See compute.h. */
#include "compute.h"

#include <string.h>

compute *compute_create(const compute_params *params, char *why, size_t why_bytes)
{
    if (params->backend != NULL && strcmp(params->backend, "cuda") == 0) {
        return compute_cuda_create(params, why, why_bytes);
    }
    return compute_cpu_create(params, why, why_bytes);
}

void compute_destroy(compute *c)
{
    if (c != NULL) {
        c->ops->destroy(c);
    }
}
