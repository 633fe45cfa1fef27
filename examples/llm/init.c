/* A counter-based normal generator for initial weights. See init.h. */
#include "init.h"

#include <math.h>

#define SIGMA 0.02

typedef struct fill_source {
    arch_param param;
    uint64_t   key;
    double     sigma;
} fill_source;

static uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Uniform in (0, 1). */
static double uniform_of(uint64_t bits)
{
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

/* Element i takes one side of pair i / 2 (Box and Muller 1958). */
static float normal_at(const fill_source *source, uint64_t i)
{
    uint64_t pair   = mix64(source->key ^ mix64(i / 2));
    double   radius = sqrt(-2.0 * log(uniform_of(pair)));
    double   angle  = 6.283185307179586 * uniform_of(mix64(pair));

    return (float)(source->sigma * radius * (i % 2 == 0 ? cos(angle) : sin(angle)));
}

static sherd_status weights_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    const fill_source *source = ctx;

    for (size_t i = 0; i < count_elems; i++) {
        if (source->param.is_norm) {
            out[i] = 1.0f;
        } else if (source->param.is_bias) {
            out[i] = 0.0f;
        } else {
            out[i] = normal_at(source, first_elem + i);
        }
    }
    return SHERD_OK;
}

sherd_status init_fill(const arch *sizes, sherd_engine *engine, uint64_t seed)
{
    for (size_t k = 0; k < arch_param_count(sizes); k++) {
        fill_source  source = {.key = mix64(seed) ^ mix64(~(uint64_t)k), .sigma = SIGMA};
        sherd_status status;

        arch_param_get(sizes, k, &source.param);
        if (source.param.is_residual) {
            source.sigma = SIGMA / sqrt(2.0 * (double)sizes->layers);
        }
        status = sherd_param_fill(engine, (sherd_param)k, weights_fill, &source);
        if (status != SHERD_OK) {
            return status;
        }
    }
    return SHERD_OK;
}
