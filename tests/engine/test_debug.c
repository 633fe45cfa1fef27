/* SHERD_DEBUG: ranks acquire the same units in the same order, what was released reads as NaN,
 * parameters are read-only. */
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
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
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_discard(engine)); /* the world is lost by it */
    CHECK_ERROR_SAYS("layer2");
    sherd_engine_destroy(engine);
}

static void debug_other_unit_is_named(void)
{
    test_world(2, other_order, NULL);
}

/* ------------------------------------------------------- open-ended units -- */

#define ONE_AT_A_TIME ", \"stage3_prefetch_bucket_size\": 0"

static int is_expert(int unit)
{
    return unit % 2 == 1;
}

/* On a device every gather synchronizes the ranks, so all ranks have to acquire these units in the
 * same order. */
static void gathers_must_not_meet(void)
{
    if (getenv("SHERD_BACKEND") != NULL) {
        test_skip("gathers meet on a device");
    }
}

/* Layers with an open-ended unit between each two; the last of these reads the first. */
static void experts_open(rig *r, sherd_world *world, const rig_options *options)
{
    static const char *const NAMES[] = {"first", "expert", "middle", "other", "last"};
    sherd_unit_params        params;

    rig_open(r, world, options);
    sherd_unit_params_init(&params);
    for (int u = 0; u < 5; u++) {
        char name[16];

        params.backward_uses = is_expert(u) ? SHERD_USES_ANY : 0;
        (void)rig_unit_as(r, NAMES[u], &params);
        (void)snprintf(name, sizeof(name), "%s.w", NAMES[u]);
        (void)rig_param(r, u, name, 700 + 100 * (size_t)u);
    }
    CHECK_OK(sherd_unit_reads(r->engine, r->units[3], r->params[1].handle));
    rig_seal(r);
}

/* Rank r visits the experts r times, and in the third micro-batch another expert than the plan has
 * there. */
static void experts_visit(rig *r, int unit, sherd_pass pass)
{
    for (int i = 0; i < sherd_world_rank(r->world); i++) {
        int expert = r->micro == 2 ? 4 - unit : unit;

        rig_acquire(r, expert, pass);
        if (i == 0) {
            rig_acquire(r, expert, pass);
            rig_release(r, expert, pass);
        }
        rig_release(r, expert, pass);
    }
}

static void experts_train(rig *r)
{
    for (int u = 0; u < r->num_units; u++) {
        is_expert(u) ? experts_visit(r, u, SHERD_FORWARD) : rig_forward(r, u, SHERD_FORWARD);
    }
    for (int u = r->num_units - 1; u >= 0; u--) {
        is_expert(u) ? experts_visit(r, u, SHERD_BACKWARD) : rig_backward(r, u);
    }
    for (int u = 0; u < r->num_units && r->micro == 1; u++) {
        rig_forward(r, u, SHERD_EVAL);
    }
    CHECK_INT(1, rig_step(r).was_updated);
}

static void uses_of_experts(sherd_world *world, void *ctx)
{
    rig r;

    experts_open(&r, world, ctx);
    for (int m = 0; m < 4; m++) {
        experts_train(&r);
    }
    rig_close(&r);
}

static void debug_lets_ranks_use_open_ended_units_as_they_like(void)
{
    static const char *const ZEROS[] = {
        "", ONE_AT_A_TIME, ", \"stage3_max_reuse_distance\": 1000000", ", \"overlap_comm\": true"};

    gathers_must_not_meet();
    for (int stage = 0; stage <= 3; stage++) {
        for (int z = 0; z < (stage == 3 ? 4 : 1); z++) {
            rig_options options = {.stage = stage, .zero = ZEROS[z]};

            test_world(2 + z % 2, uses_of_experts, &options);
        }
    }
}

/* The other units are compared all the same, however the experts were used before. */
static void other_layer(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 3};
    int         rank    = sherd_world_rank(world);
    rig         r;

    (void)ctx;
    experts_open(&r, world, &options);
    experts_train(&r);
    experts_visit(&r, 1, SHERD_FORWARD);
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_unit_acquire(r.engine, r.units[rank == 0 ? 0 : 4], SHERD_FORWARD));
    CHECK_ERROR_SAYS("first");
    CHECK_ERROR_SAYS("last");
    rig_close(&r);
}

static void debug_other_unit_is_named_beside_open_ended_units(void)
{
    gathers_must_not_meet();
    test_world(2, other_layer, NULL);
}

/* Rank 1 holds an expert where the layer should be, so its first try fails. */
static void try_again(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 3, .zero = ONE_AT_A_TIME};
    int         rank    = sherd_world_rank(world);
    rig         r;

    (void)ctx;
    experts_open(&r, world, &options);
    for (int i = 0; i < 2; i++) {
        if (rank == 1) {
            rig_acquire(&r, 3, SHERD_FORWARD);
            CHECK_STATUS(SHERD_E_NOMEM, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
            rig_forward(&r, 1, SHERD_FORWARD); /* which other ranks do not see */
            rig_release(&r, 3, SHERD_FORWARD);
        }
        rig_forward(&r, 0, SHERD_FORWARD);
        rig_forward(&r, 0, SHERD_FORWARD);
    }
    rig_micro_batch(&r);
    CHECK_OK(sherd_step(r.engine, NULL));
    rig_close(&r);
}

static void debug_acquire_that_failed_is_tried_again(void)
{
    gathers_must_not_meet();
    test_world(2, try_again, NULL);
}

/* ------------------------------------------------ parameters are read-only -- */

static void param_write(sherd_engine *engine, sherd_param param, float value)
{
    CHECK_OK(sherd_copy(engine, sherd_param_data(engine, param), &value, sizeof(value)));
}

/* Every layout says the same of a write, though it would persist in some and be lost in others. */
static void write_to_parameters(sherd_world *world, void *ctx)
{
    toy_options  *options = ctx;
    sherd_engine *engine;
    sherd_unit    units[TOY_UNITS];
    sherd_param   params[TOY_PARAMS];
    float         value;

    engine_open(world, options, &engine, units, params);
    CHECK_OK(sherd_unit_acquire(engine, units[2], SHERD_FORWARD));
    value = first_of(engine, sherd_param_data(engine, params[4]));
    param_write(engine, params[4], value); /* the same bits: nobody can see it */
    CHECK_OK(sherd_unit_release(engine, units[2], SHERD_FORWARD));

    CHECK_OK(sherd_unit_acquire(engine, units[2], SHERD_EVAL));
    param_write(engine, params[6], 17); /* its last parameter, of one element */
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(engine, units[2], SHERD_EVAL));
    CHECK_ERROR_SAYS("unit layer2");
    CHECK_ERROR_SAYS("parameter layer2.one");
    CHECK_ERROR_SAYS("read-only");
    CHECK(sherd_param_data(engine, params[6]) == NULL); /* it is released all the same */

    CHECK_OK(sherd_unit_acquire(engine, units[3], SHERD_BACKWARD));
    param_write(engine, params[0], 17); /* of a unit that it reads */
    value = 1;
    CHECK_OK(sherd_copy(engine, sherd_param_grad(engine, params[7]), &value, sizeof(value)));
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(engine, units[3], SHERD_BACKWARD));
    CHECK_ERROR_SAYS("unit embedding");
    CHECK_ERROR_SAYS("parameter embed");

    CHECK_OK(sherd_unit_acquire(engine, units[1], SHERD_FORWARD));
    CHECK_OK(sherd_unit_acquire(engine, units[1], SHERD_EVAL));
    param_write(engine, params[3], 17); /* frozen */
    CHECK_OK(sherd_unit_release(engine, units[1], SHERD_EVAL));
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(engine, units[1], SHERD_FORWARD));
    CHECK_ERROR_SAYS("parameter layer1.fixed");
    CHECK_OK(sherd_world_barrier(world));
    sherd_engine_destroy(engine);
}

static void debug_write_to_a_parameter_is_named_at_release(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        toy_options options = {.stage = stage, .accumulation = 1, .dtype = SHERD_F32};

        test_world(1, write_to_parameters, &options);
        test_world(3, write_to_parameters, &options);
    }
}

/* The trainer's own memory: the engine's values all the same while the unit is acquired. */
static void write_to_bound_parameters(sherd_world *world, void *ctx)
{
    static _Thread_local float data[37 * 11], gradient[37 * 11];
    toy_options                options = {.stage = 2, .accumulation = 1, .dtype = SHERD_F32};
    const char                *json    = toy_json(&options);
    sherd_config              *config;
    sherd_engine              *engine;
    sherd_unit                 units[TOY_UNITS];
    sherd_param                params[TOY_PARAMS];

    (void)ctx;
    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_OK(sherd_engine_create(world, config, &engine));
    sherd_config_destroy(config);
    toy_declare(engine, units, params);
    CHECK_OK(sherd_param_bind(engine, params[0], data, gradient));
    CHECK_OK(sherd_engine_seal(engine));
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        CHECK_OK(sherd_param_fill(engine, params[p], toy_fill, (void *)(uintptr_t)p));
    }
    CHECK_OK(sherd_unit_acquire(engine, units[0], SHERD_FORWARD));
    data[100] = 17;
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(engine, units[0], SHERD_FORWARD));
    CHECK_ERROR_SAYS("parameter embed");
    CHECK_OK(sherd_world_barrier(world));
    sherd_engine_destroy(engine);
}

static void debug_write_to_a_bound_parameter_is_named_too(void)
{
    if (getenv("SHERD_BACKEND") != NULL) {
        test_skip("binds memory of the host");
    }
    test_world(2, write_to_bound_parameters, NULL);
}

static void debug_that_is_neither_on_nor_off_is_refused(void)
{
    toy_options   options = {.stage = 0, .accumulation = 1, .dtype = SHERD_F32};
    const char   *json    = toy_json(&options);
    sherd_engine *engine  = NULL;
    sherd_config *config;
    sherd_world  *world;

    CHECK_OK(sherd_world_self(&world));
    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_INT(0, setenv("SHERD_DEBUG", "off", 1));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_create(world, config, &engine));
    CHECK_ERROR_SAYS("SHERD_DEBUG is \"off\"");
    CHECK_INT(0, setenv("SHERD_DEBUG", "0", 1));
    CHECK_OK(sherd_engine_create(world, config, &engine));
    CHECK_INT(0, setenv("SHERD_DEBUG", "1", 1));
    sherd_engine_destroy(engine);
    sherd_config_destroy(config);
    sherd_world_destroy(world);
}

static const test_case CASES[] = {
    CASE(debug_that_is_neither_on_nor_off_is_refused),
    CASE(debug_released_memory_reads_as_nan),
    CASE(debug_other_unit_is_named),
    CASE(debug_lets_ranks_use_open_ended_units_as_they_like),
    CASE(debug_other_unit_is_named_beside_open_ended_units),
    CASE(debug_acquire_that_failed_is_tried_again),
    CASE(debug_write_to_a_parameter_is_named_at_release),
    CASE(debug_write_to_a_bound_parameter_is_named_too),
};

RUN_MAIN(CASES)
