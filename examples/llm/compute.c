/* Chooses the CPU's or the GPU's operations, and what both share. See compute.h. */
#include "compute.h"

#include <math.h>
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

int compute_attention_find(const char *word, compute_attention *out)
{
    static const char *const WORDS[ATTENTION_CHOICES] = {[ATTENTION_AUTO]      = "auto",
                                                         [ATTENTION_OWN]       = "own",
                                                         [ATTENTION_CUDNN]     = "cudnn",
                                                         [ATTENTION_WARPGROUP] = "warpgroup"};

    for (int i = 0; i < ATTENTION_CHOICES; i++) {
        if (strcmp(WORDS[i], word) == 0) {
            *out = (compute_attention)i;
            return 0;
        }
    }
    return -1;
}

void compute_rotate_tables(size_t length, size_t width, double theta, float *cosines, float *sines)
{
    for (size_t t = 0; t < length; t++) {
        for (size_t i = 0; i < width / 2; i++) {
            double angle = (double)t * pow(theta, -2.0 * (double)i / (double)width);

            cosines[t * (width / 2) + i] = (float)cos(angle);
            sines[t * (width / 2) + i]   = (float)sin(angle);
        }
    }
}
