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

/* Returns how far the i-th pair turns from one token to the next. */
static double turn_of(const arch_rope *rope, size_t width, size_t i)
{
    double turn  = pow(rope->theta, -2.0 * (double)i / (double)width);
    double turns = (double)rope->original_length * turn / 6.283185307179586;
    double part  = (turns - rope->low_factor) / (rope->high_factor - rope->low_factor);

    switch (rope->kind) {
    case ARCH_ROPE_PLAIN:
        return turn;
    case ARCH_ROPE_LINEAR:
        return turn / rope->factor;
    case ARCH_ROPE_LLAMA3:
        part = part < 0.0 ? 0.0 : part > 1.0 ? 1.0 : part;
        return (1.0 - part) * turn / rope->factor + part * turn;
    }
    return turn;
}

void compute_rotate_tables(size_t length, size_t width, const arch_rope *rope, float *cosines,
                           float *sines)
{
    for (size_t t = 0; t < length; t++) {
        for (size_t i = 0; i < width / 2; i++) {
            double angle = (double)t * turn_of(rope, width, i);

            cosines[t * (width / 2) + i] = (float)cos(angle);
            sines[t * (width / 2) + i]   = (float)sin(angle);
        }
    }
}
