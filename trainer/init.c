/* A counter-based normal generator for initial weights. See init.h. */
#include "init.h"

#include "mix.h"
#include "try.h"

#include <math.h>

#define SIGMA 0.02

/* Elements of one task of the pool; even, so that no task cuts a pair of normal values. */
#define FILL_CHUNK 1024

/* Uniform in (0, 1). */
static double uniform_of(uint64_t bits)
{
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

/* Makes two normal values (Box and Muller 1958). */
static void pair_make(const init_source *source, uint64_t number, float pair[2])
{
    uint64_t bits   = mix64(source->key ^ mix64(number));
    double   radius = sqrt(-2.0 * log(uniform_of(bits)));
    double   angle  = 6.283185307179586 * uniform_of(mix64(bits));
    double   sine, cosine;

    sincos(angle, &sine, &cosine);
    pair[0] = (float)(source->sigma * radius * cosine);
    pair[1] = (float)(source->sigma * radius * sine);
}

void init_values(const init_source *source, size_t first_elem, size_t count_elems, float *out)
{
    size_t i = 0;

    if (source->param.is_norm || source->param.is_bias) {
        for (; i < count_elems; i++) {
            out[i] = source->param.is_norm ? 1.0f : 0.0f;
        }
        return;
    }
    while (i < count_elems) {
        size_t at = first_elem + i;
        float  pair[2];

        pair_make(source, at / 2, pair);
        out[i++] = pair[at % 2];
        if (at % 2 == 0 && i < count_elems) {
            out[i++] = pair[1];
        }
    }
}

init_source init_source_of(const arch *sizes, size_t k, uint64_t seed)
{
    init_source source = {.key = mix64(seed) ^ mix64(~(uint64_t)k), .sigma = SIGMA};

    arch_param_get(sizes, k, &source.param);
    if (source.param.is_residual) {
        source.sigma = SIGMA / sqrt(2.0 * (double)sizes->layers);
    }
    return source;
}

/* A range of values that the engine asks for; the threads share its tasks. */
typedef struct fill_job {
    const init_source *source;
    pool              *threads;
    size_t             first, count;
    float             *out;
} fill_job;

static void chunk_fill(void *ctx, size_t task, int thread)
{
    const fill_job *job   = ctx;
    size_t          start = task * FILL_CHUNK;
    size_t          left  = job->count - start;

    (void)thread;
    init_values(job->source, job->first + start, left < FILL_CHUNK ? left : FILL_CHUNK,
                job->out + start);
}

static sherd_status weights_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    fill_job job = *(const fill_job *)ctx;

    job.first = first_elem;
    job.count = count_elems;
    job.out   = out;
    pool_run(job.threads, (count_elems + FILL_CHUNK - 1) / FILL_CHUNK, chunk_fill, &job);
    return SHERD_OK;
}

sherd_status init_fill(const arch *sizes, sherd_engine *engine, uint64_t seed, pool *threads)
{
    for (size_t k = 0; k < arch_param_count(sizes); k++) {
        init_source source = init_source_of(sizes, k, seed);
        fill_job    job    = {.source = &source, .threads = threads};

        TRY(sherd_param_fill(engine, (sherd_param)k, weights_fill, &job));
    }
    return SHERD_OK;
}
