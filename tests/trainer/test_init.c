/* Initial weights: the same values whatever range is asked for, and by however many threads. */
#include "tests/lib/check.h"

#include "trainer/declare.h"
#include "trainer/passes.h"
#include "trainer/init.h"

#include <math.h>
#include <string.h>

static uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* One element by itself, as the values were first defined: runs of older programs start from
 * these. */
static float value_at(const init_source *source, uint64_t i)
{
    uint64_t pair   = mix64(source->key ^ mix64(i / 2));
    double   radius = sqrt(-2.0 * log(((double)(pair >> 11) + 0.5) * 0x1p-53));
    double   angle  = 6.283185307179586 * (((double)(mix64(pair) >> 11) + 0.5) * 0x1p-53);

    return (float)(source->sigma * radius * (i % 2 == 0 ? cos(angle) : sin(angle)));
}

static arch tiny_arch(void)
{
    arch sizes;

    CHECK_INT(0, arch_preset(ARCH_GPT2, "tiny", &sizes));
    return sizes;
}

static void values_are_those_of_single_elements(void)
{
    enum { MOST = 300000 };
    static float out[MOST];
    arch         sizes  = tiny_arch();
    init_source  source = init_source_of(&sizes, 0, 7);

    init_values(&source, 0, MOST, out);
    for (size_t i = 0; i < MOST; i++) {
        CHECK(out[i] == value_at(&source, i));
    }
    for (size_t first = 1000; first < 1004; first++) {
        for (size_t count = 0; count < 5; count++) {
            out[count] = 42.0f;
            init_values(&source, first, count, out);
            CHECK(out[count] == 42.0f);
            for (size_t i = 0; i < count; i++) {
                CHECK(out[i] == value_at(&source, first + i));
            }
        }
    }
}

/* In an engine: norms, biases and matrices, of each parameter the first and the last element. */
static void engine_gets_the_same_of_any_number_of_threads(void)
{
    const char    json[] = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": "
                           "\"AdamW\"}, \"zero_optimization\": {\"stage\": 0}}";
    arch          sizes  = tiny_arch();
    sherd_config *config;
    sherd_world  *world;
    sherd_engine *engine;
    pool         *threads;

    for (int count = 1; count <= 3; count++) {
        threads = pool_create(count);
        CHECK(threads != NULL);
        CHECK_OK(sherd_config_parse(json, strlen(json), &config));
        CHECK_OK(sherd_world_self(&world));
        CHECK_OK(sherd_engine_create(world, config, &engine));
        CHECK_OK(arch_declare(&sizes, engine));
        CHECK_OK(sherd_engine_seal(engine));
        CHECK_OK(init_fill(&sizes, engine, 7, threads));
        for (size_t unit = 0; unit < arch_unit_count(&sizes); unit++) {
            CHECK_OK(sherd_unit_acquire(engine, (sherd_unit)unit, SHERD_EVAL));
            for (size_t k = arch_unit_first_param(&sizes, unit);
                 k < arch_unit_first_param(&sizes, unit + 1); k++) {
                init_source  source = init_source_of(&sizes, k, 7);
                const float *got    = sherd_param_data(engine, (sherd_param)k);

                CHECK(got != NULL);
                for (size_t i = 0; i < arch_param_elems(&source.param); i++) {
                    CHECK(got[i] == (source.param.is_norm   ? 1.0f
                                     : source.param.is_bias ? 0.0f
                                                            : value_at(&source, i)));
                }
            }
            CHECK_OK(sherd_unit_release(engine, (sherd_unit)unit, SHERD_EVAL));
        }
        sherd_engine_destroy(engine);
        sherd_config_destroy(config);
        sherd_world_destroy(world);
        pool_destroy(threads);
    }
}

static const test_case cases[] = {
    CASE(values_are_those_of_single_elements),
    CASE(engine_gets_the_same_of_any_number_of_threads),
};

RUN_MAIN(cases)
