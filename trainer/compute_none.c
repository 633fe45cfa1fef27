/* Takes the place of cuda/ in a trainer that was built without CUDA. */
#include "compute.h"

#include <stdio.h>

compute *compute_cuda_create(const compute_params *params, char *why, size_t why_bytes)
{
    (void)params;
    (void)snprintf(why, why_bytes,
                   "this sherd-llm was built without CUDA; meson -Dcuda=enabled says what is "
                   "missing");
    return NULL;
}
