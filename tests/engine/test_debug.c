/* SHERD_DEBUG: gathers meet and compare, what was released reads as NaN. */
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void engine_open(sherd_world *world, const toy_options *options, sherd_engine **engine,
                        sherd_unit *units, sherd_param *params)
{
    const char   *json = toy_json(options);
    sherd_config *config;

    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_OK(sherd_engine_create(world, config, engine));
    sherd_config_destroy(config);
    toy_declare(*engine, units, params);
    CHECK_OK(sherd_engine_seal(*engine));
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        CHECK_OK(sherd_param_fill(*engine, params[p], toy_fill, (void *)(uintptr_t)p));
    }
}

/* The first value there, wherever the memory is. */
static float first_of(sherd_engine *engine, const float *values)
{
    float first = -1;

    CHECK_OK(sherd_copy(engine, &first, values, sizeof(first)));
    return first;
}

/* What a read sees after the release; the engine keeps the memory, so reading it is no fault. */
static void late_read(sherd_world *world, void *ctx)
{
    toy_options   options = {.stage = 3, .accumulation = 1, .dtype = SHERD_F32, .clip = 1};
    sherd_engine *engine;
    sherd_unit    units[TOY_UNITS];
    sherd_param   params[TOY_PARAMS];
    const float  *weights;
    const float  *gradient;

    (void)ctx;
    engine_open(world, &options, &engine, units, params);
    CHECK_OK(sherd_unit_acquire(engine, units[1], SHERD_FORWARD));
    weights = sherd_param_data(engine, params[1]);
    CHECK(weights != NULL && isfinite(first_of(engine, weights)));
    CHECK_OK(sherd_unit_release(engine, units[1], SHERD_FORWARD));
    CHECK(isnan(first_of(engine, weights)));

    CHECK_OK(sherd_unit_acquire(engine, units[1], SHERD_BACKWARD));
    gradient = sherd_param_grad(engine, params[1]);
    CHECK(gradient != NULL && first_of(engine, gradient) == 0);
    CHECK_OK(sherd_unit_release(engine, units[1], SHERD_BACKWARD));
    CHECK(isnan(first_of(engine, gradient)));
    CHECK_OK(sherd_world_barrier(world));
    sherd_engine_destroy(engine);
}

static void debug_released_memory_reads_as_nan(void)
{
    test_world(3, late_read, NULL);
}

/* Rank 1 visits the layers in another order than the others. */
static void other_order(sherd_world *world, void *ctx)
{
    toy_options   options = {.stage        = 3,
                             .accumulation = 1,
                             .dtype        = SHERD_F32,
                             .zero_extra   = ", \"stage3_prefetch_bucket_size\": 0"};
    sherd_engine *engine;
    sherd_unit    units[TOY_UNITS];
    sherd_param   params[TOY_PARAMS];
    int           mine = sherd_world_rank(world) == 1 ? 2 : 1;
    sherd_status  status;

    (void)ctx;
    engine_open(world, &options, &engine, units, params);
    status = sherd_unit_acquire(engine, units[mine], SHERD_FORWARD);
    CHECK_STATUS(SHERD_E_INVAL, status);
    CHECK_ERROR_SAYS("rank");
    CHECK_ERROR_SAYS("layer1");
    CHECK_ERROR_SAYS("layer2");
    CHECK(sherd_param_data(engine, params[1]) == NULL);
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(engine, units[mine], SHERD_FORWARD));
    CHECK_ERROR_SAYS("is not acquired");
    CHECK_OK(sherd_step_discard(engine));
    sherd_engine_destroy(engine);
}

static void debug_other_unit_is_named(void)
{
    test_world(2, other_order, NULL);
}

static const test_case CASES[] = {
    CASE(debug_released_memory_reads_as_nan),
    CASE(debug_other_unit_is_named),
};

RUN_MAIN(CASES)
