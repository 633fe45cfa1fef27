/* Calls that the engine refuses: calls out of order, wrong arguments, ranks that do not agree. Each
 * refusal says what is wrong and leaves the engine usable. */
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const rig_options STAGE[4] = {{.stage = 0}, {.stage = 1}, {.stage = 2}, {.stage = 3}};

/* ------------------------------------------------ one rank: arguments ---- */

static rig self_rig(const rig_options *options)
{
    sherd_world *world;
    rig          r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, options);
    sherd_world_destroy(world); /* the engine has a reference of its own */
    return r;
}

/* Opens an engine with two units of one parameter each. */
static rig self_pair(const rig_options *options)
{
    rig r = self_rig(options);

    (void)rig_unit(&r, "first");
    (void)rig_unit(&r, "second");
    (void)rig_param(&r, 0, "a", 70);
    (void)rig_param(&r, 1, "b", 5);
    return r;
}

static void create_refuses_null(void)
{
    sherd_world  *world;
    sherd_engine *engine;
    sherd_config *config;

    CHECK_OK(sherd_world_self(&world));
    CHECK_OK(sherd_config_parse("{}", 2, &config));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_create(NULL, config, &engine));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_create(world, NULL, &engine));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_create(world, config, NULL));
    sherd_config_destroy(config);
    sherd_world_destroy(world);
}

static void calls_refuse_a_null_engine(void)
{
    sherd_group_params  group;
    sherd_unit_params   unit;
    sherd_param_params  param;
    sherd_memory_report memory = {.struct_size = sizeof(memory)};
    sherd_engine_info   info   = {.struct_size = sizeof(info)};
    sherd_group         g;
    sherd_unit          u;
    sherd_param         p;
    uint64_t            fingerprint;

    sherd_group_params_init(&group);
    sherd_unit_params_init(&unit);
    sherd_param_params_init(&param);
    CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(NULL, &group, &g));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(NULL, &unit, &u));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(NULL, 0, &param, &p));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_reads(NULL, 0, 0));
    CHECK_STATUS(SHERD_E_INVAL, sherd_pass_add(NULL, SHERD_FORWARD, 0));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_bind(NULL, 0, &u, &u));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_fill(NULL, 0, rig_fill, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_acquire(NULL, 0, SHERD_FORWARD));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_release(NULL, 0, SHERD_FORWARD));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step(NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_prepare(NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_discard(NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_wait(NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_close_window(NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_undo(NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_fingerprint(NULL, &fingerprint));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_memory(NULL, &memory));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_query(NULL, &info));
    CHECK(sherd_param_data(NULL, 0) == NULL);
    CHECK(sherd_param_grad(NULL, 0) == NULL);
    CHECK(sherd_param_address(NULL, 0) == NULL);
    CHECK(sherd_param_grad_address(NULL, 0) == NULL);
    CHECK_ERROR_SAYS("NULL");
    CHECK(sherd_loss_scale(NULL) == 1);
    sherd_engine_destroy(NULL);
}

static void declarations_refuse_what_is_missing(void)
{
    rig                r = self_rig(&STAGE[2]);
    sherd_group_params group;
    sherd_unit_params  unit;
    sherd_param_params param;
    sherd_group        g;
    sherd_unit         u;
    sherd_param        p;

    sherd_group_params_init(&group);
    sherd_unit_params_init(&unit);
    sherd_param_params_init(&param);
    CHECK_OK(sherd_group_add(r.engine, NULL, &g)); /* NULL means the defaults */
    CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(r.engine, &group, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, NULL, &u)); /* the defaults have no name */
    CHECK_ERROR_SAYS("name");
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &unit, &u));
    CHECK_ERROR_SAYS("name");
    unit.name = "";
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &unit, &u));
    unit.name = "unit";
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &unit, NULL));
    CHECK_OK(sherd_unit_add(r.engine, &unit, &u));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, u, NULL, &p));
    CHECK_ERROR_SAYS("name");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, u, &param, &p));
    CHECK_ERROR_SAYS("name");
    param.name = "param";
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, u, &param, NULL));
    CHECK_OK(sherd_param_add(r.engine, u, &param, &p));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_bind(r.engine, p, NULL, &u));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_bind(r.engine, p, &u, NULL));
    CHECK_ERROR_SAYS("param");
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_plan(r.engine, SHERD_PLAN_TABLE, NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_memory(r.engine, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_query(r.engine, NULL));
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_fill(r.engine, p, NULL, NULL));
    CHECK_ERROR_SAYS("param");
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_fingerprint(r.engine, NULL));
    rig_close(&r);
}

static void structs_refuse_a_wrong_size(void)
{
    static const size_t SIZES[] = {0, 7, 1000};
    rig                 r       = self_pair(&STAGE[3]);
    sherd_memory_report memory  = {0};
    sherd_engine_info   info    = {0};
    sherd_group_params  group;
    sherd_unit_params   unit;
    sherd_param_params  param;
    sherd_group         g;
    sherd_unit          u;
    sherd_param         p;

    sherd_group_params_init(&group);
    sherd_unit_params_init(&unit);
    sherd_param_params_init(&param);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        group.struct_size = unit.struct_size = param.struct_size = SIZES[i];
        memory.struct_size = info.struct_size = SIZES[i];
        CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(r.engine, &group, &g));
        CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &unit, &u));
        CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
        CHECK_ERROR_SAYS("sherd_param_params.struct_size");
        CHECK_STATUS(SHERD_E_INVAL, sherd_engine_memory(r.engine, &memory));
        CHECK_STATUS(SHERD_E_INVAL, sherd_engine_query(r.engine, &info));
        CHECK_ERROR_SAYS("sherd_engine_info.struct_size");
    }
    rig_close(&r);
}

/* A program that was built with an older header has shorter structs. The fields that they lack have
 * their defaults. */
static void structs_of_an_older_header_are_taken(void)
{
    rig                 r    = self_rig(&STAGE[3]);
    unsigned char       past = 0xa5;
    sherd_unit_params   unit = {.struct_size = offsetof(sherd_unit_params, name),
                                /* beyond struct_size, so it must not be read */
                                .name = (const char *)(uintptr_t)1};
    sherd_memory_report memory;
    sherd_unit          u;

    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &unit, &u));
    CHECK_ERROR_SAYS("needs a name");
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", 9);
    memset(&memory, past, sizeof(memory));
    memory.struct_size = offsetof(sherd_memory_report, grads_planned);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT(offsetof(sherd_memory_report, grads_planned), memory.struct_size);
    CHECK(memory.params_planned > 0);
    memset(&unit, past, sizeof(unit));
    CHECK_BYTES_EQUAL(&unit.name, &memory.grads_planned, sizeof(unit.name));
    rig_close(&r);
}

static void step_report_refuses_a_wrong_size_before_anything_happens(void)
{
    rig               r      = self_pair(&STAGE[2]);
    sherd_step_report report = {0};

    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_INVAL, sherd_step(r.engine, &report));
    CHECK_ERROR_SAYS("sherd_step_report.struct_size");
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_prepare(r.engine, &report));
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_wait(r.engine, &report));
    report.struct_size = sizeof(report) + 8;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step(r.engine, &report));
    report = rig_step(&r);
    CHECK_INT(1, report.micro_step);
    CHECK_INT(1, report.step);
    rig_close(&r);
}

static void handles_out_of_range_are_refused(void)
{
    rig                r = self_pair(&STAGE[2]);
    sherd_param_params param;
    sherd_param        p;

    sherd_param_params_init(&param);
    param.name = "c";
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 2, &param, &p));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, -1, &param, &p));
    CHECK_ERROR_SAYS("unit -1");
    param.group = 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
    CHECK_ERROR_SAYS("group 1");
    param.group = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_reads(r.engine, 2, 0));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_reads(r.engine, 0, 2));
    CHECK_ERROR_SAYS("parameter 2");
    CHECK_STATUS(SHERD_E_INVAL, sherd_pass_add(r.engine, SHERD_FORWARD, 2));
    CHECK_STATUS(SHERD_E_INVAL, sherd_pass_add(r.engine, (sherd_pass)3, 0));
    CHECK_ERROR_SAYS("pass 3");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_bind(r.engine, 2, &r, &r));
    rig_seal(&r);
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_fill(r.engine, 2, rig_fill, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_acquire(r.engine, 2, SHERD_FORWARD));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_acquire(r.engine, -1, SHERD_FORWARD));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_acquire(r.engine, 0, (sherd_pass)3));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_release(r.engine, 7, SHERD_FORWARD));
    CHECK(sherd_param_data(r.engine, 2) == NULL);
    CHECK_ERROR_SAYS("parameter 2");
    CHECK(sherd_param_grad(r.engine, -1) == NULL);
    CHECK(sherd_param_address(r.engine, -1) == NULL);
    CHECK(sherd_param_grad_address(r.engine, -1) == NULL);
    rig_close(&r);
}

static void names_are_unique_and_utf8(void)
{
    rig                r = self_pair(&STAGE[1]);
    sherd_unit_params  unit;
    sherd_param_params param;
    sherd_unit         u;
    sherd_param        p;

    sherd_unit_params_init(&unit);
    sherd_param_params_init(&param);
    unit.name = "first";
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &unit, &u));
    CHECK_ERROR_SAYS("first");
    param.name = "a";
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 1, &param, &p));
    CHECK_ERROR_SAYS("in unit first");
    unit.name = param.name = "\xff\xfe";
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &unit, &u));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 1, &param, &p));
    CHECK_ERROR_SAYS("UTF-8");
    rig_close(&r);
}

static void shapes_that_no_memory_holds_are_refused(void)
{
    rig                r = self_pair(&STAGE[3]);
    sherd_param_params param;
    sherd_param        p;

    sherd_param_params_init(&param);
    param.name = "large";
    param.ndim = SHERD_MAX_NDIM + 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
    CHECK_ERROR_SAYS("ndim 9");
    param.ndim = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
    param.ndim     = 2;
    param.shape[0] = SIZE_MAX / 2;
    param.shape[1] = 3;
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
    CHECK_ERROR_SAYS("too many elements");
    param.shape[1] = 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
    /* each size alone is possible, all together are not */
    param.shape[0] = SIZE_MAX / 64 - 1000;
    CHECK_OK(sherd_param_add(r.engine, 0, &param, &p));
    param.name = "larger";
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_add(r.engine, 0, &param, &p));
    CHECK_ERROR_SAYS("the model has too many elements");
    rig_close(&r);
}

static void model_that_does_not_fit_is_refused_before_it_is_allocated(void)
{
    rig r = self_rig(&STAGE[3]);

    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "terabytes", (size_t)1 << 40);
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("more than");
    rig_close(&r);
}

static void groups_refuse_rates_out_of_range(void)
{
    rig                r = self_rig(&STAGE[0]);
    sherd_group_params group;
    sherd_group        g;

    sherd_group_params_init(&group);
    group.name = "odd";
    group.lr   = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(r.engine, &group, &g));
    CHECK_ERROR_SAYS("group odd: lr -1");
    group.lr    = 0;
    group.beta1 = 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(r.engine, &group, &g));
    CHECK_ERROR_SAYS("beta1");
    group.beta1 = NAN;
    group.eps   = INFINITY;
    CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(r.engine, &group, &g));
    CHECK_ERROR_SAYS("eps");
    rig_close(&r);
}

/* ---------------------------------------------- one rank: out of order ---- */

static void before_seal_the_loop_is_refused(void)
{
    rig      r = self_pair(&STAGE[3]);
    uint64_t fingerprint;

    CHECK_STATUS(SHERD_E_STATE, sherd_param_fill(r.engine, 0, rig_fill, NULL));
    CHECK_ERROR_SAYS("sherd_engine_seal");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_FORWARD));
    CHECK_ERROR_SAYS("sherd_engine_seal");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 0, SHERD_FORWARD));
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_prepare(r.engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_apply(r.engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_discard(r.engine));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_close_window(r.engine));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_wait(r.engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_fingerprint(r.engine, &fingerprint));
    CHECK(sherd_param_data(r.engine, 0) == NULL);
    CHECK_ERROR_SAYS("parameter a cannot be read now");
    rig_close(&r);
}

static void cpu_has_no_streams(void)
{
    rig r      = self_pair(&STAGE[2]);
    int stream = 0;

    CHECK_STATUS(SHERD_E_NOTSUP, sherd_engine_set_stream(r.engine, NULL));
    CHECK_ERROR_SAYS("no streams");
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_engine_set_stream(r.engine, &stream));
    rig_close(&r);
}

static void after_seal_declarations_are_refused(void)
{
    rig                r = self_pair(&STAGE[2]);
    sherd_group_params group;
    sherd_unit_params  unit;
    sherd_param_params param;
    int32_t            handle;

    sherd_group_params_init(&group);
    sherd_unit_params_init(&unit);
    sherd_param_params_init(&param);
    unit.name = param.name = "late";
    rig_seal(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_group_add(r.engine, &group, &handle));
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_add(r.engine, &unit, &handle));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_add(r.engine, 0, &param, &handle));
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_reads(r.engine, 0, 1));
    CHECK_STATUS(SHERD_E_STATE, sherd_pass_add(r.engine, SHERD_FORWARD, 0));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_bind(r.engine, 0, &r, &r));
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("sherd_engine_seal: the engine is sealed already");
    rig_close(&r);
}

static void seal_without_parameters_is_refused(void)
{
    rig r = self_rig(&STAGE[3]);

    CHECK_STATUS(SHERD_E_STATE, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("no parameter");
    (void)rig_unit(&r, "empty");
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_seal(r.engine));
    (void)rig_param(&r, 0, "w", 3);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    rig_close(&r);
}

static void unfilled_parameter_is_named_then_filled_works(void)
{
    rig      r = self_pair(&STAGE[3]);
    uint64_t fingerprint;

    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_FORWARD));
    CHECK_ERROR_SAYS("parameter a was never filled");
    CHECK_OK(sherd_param_fill(r.engine, 0, rig_fill, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_fingerprint(r.engine, &fingerprint));
    CHECK_ERROR_SAYS("parameter b was never filled");
    CHECK_OK(sherd_param_fill(r.engine, 1, rig_fill, NULL));
    (void)rig_train(&r, 1);
    CHECK_STATUS(SHERD_E_STATE, sherd_param_fill(r.engine, 1, rig_fill, NULL));
    CHECK_ERROR_SAYS("before the first acquire");
    rig_close(&r);
}

static sherd_status fill_fails(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    (void)first_elem;
    (void)count_elems;
    (void)out;
    return SHERD_E_IO;
}

static void failing_fill_function_leaves_the_parameter_unfilled(void)
{
    rig r = self_pair(&STAGE[1]);

    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_STATUS(SHERD_E_IO, sherd_param_fill(r.engine, 0, fill_fails, NULL));
    CHECK_ERROR_SAYS("parameter a");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_FORWARD));
    rig_close(&r);
}

static void step_before_any_acquire_is_refused(void)
{
    rig r = self_pair(&STAGE[0]);

    rig_seal(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("backward");
    CHECK_STATUS(SHERD_E_STATE, sherd_step_apply(r.engine, NULL));
    CHECK_OK(sherd_step_discard(r.engine)); /* another rank may have come further */
    rig_close(&r);
}

/* The window is dropped, the weights stay as they are, and training goes on. */
static void step_without_backward_is_refused(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .accumulation = 2};
        rig         r       = self_pair(&options);
        uint64_t    before;

        rig_seal(&r);
        before = rig_fingerprint(&r);
        rig_micro_batch(&r);
        CHECK_INT(0, rig_step(&r).is_boundary);
        rig_forward(&r, 0, SHERD_FORWARD);
        CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
        CHECK_ERROR_SAYS("1 of the 2 micro-batches");
        CHECK_INT(before, rig_fingerprint(&r));
        CHECK_INT(1, rig_train(&r, 2).was_updated);
        rig_close(&r);
    }
}

static void release_follows_an_acquire_of_the_same_unit_and_pass(void)
{
    rig r = self_pair(&STAGE[2]);

    CHECK_OK(sherd_unit_reads(r.engine, 1, 0));
    rig_seal(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 0, SHERD_FORWARD));
    rig_acquire(&r, 1, SHERD_FORWARD); /* this gathers unit 0 too */
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 0, SHERD_FORWARD));
    CHECK_ERROR_SAYS("unit first is not acquired for forward");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 1, SHERD_BACKWARD));
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 1, SHERD_EVAL));
    (void)rig_read(&r, 0);
    rig_release(&r, 1, SHERD_FORWARD);
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 1, SHERD_FORWARD));
    rig_acquire(&r, 0, SHERD_BACKWARD);
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 0, SHERD_FORWARD));
    CHECK_ERROR_SAYS("forward");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_BACKWARD));
    CHECK_ERROR_SAYS("already");
    rig_release(&r, 0, SHERD_BACKWARD);
    rig_backward(&r, 1);
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
}

static void step_while_acquired_is_refused(void)
{
    rig r = self_pair(&STAGE[3]);

    rig_seal(&r);
    rig_acquire(&r, 1, SHERD_EVAL);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("unit second is still acquired");
    rig_release(&r, 1, SHERD_EVAL);
    rig_acquire(&r, 0, SHERD_BACKWARD);
    CHECK_STATUS(SHERD_E_STATE, sherd_step_prepare(r.engine, NULL));
    CHECK_ERROR_SAYS("unit first");
    rig_touch(&r, 0, 1);
    rig_release(&r, 0, SHERD_BACKWARD);
    CHECK_INT(1, rig_step(&r).micro_step);
    rig_close(&r);
}

static void prepared_step_wants_apply_or_discard(void)
{
    rig               r = self_pair(&STAGE[1]);
    sherd_step_report report;

    sherd_step_report_init(&report);
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step_apply(r.engine, NULL));
    CHECK_ERROR_SAYS("sherd_step_prepare");
    CHECK_OK(sherd_step_prepare(r.engine, &report));
    CHECK_INT(1, report.is_boundary);
    CHECK_STATUS(SHERD_E_STATE, sherd_step_prepare(r.engine, &report));
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, &report));
    CHECK_ERROR_SAYS("sherd_step_apply");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_EVAL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_close_window(r.engine));
    CHECK(sherd_param_data(r.engine, 0) == NULL);
    CHECK_OK(sherd_step_apply(r.engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_apply(r.engine, NULL));
    CHECK_OK(sherd_step_discard(r.engine)); /* there is nothing to drop */
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_step_undo(r.engine));
    rig_close(&r);
}

static void step_params_refuse_what_makes_no_sense(void)
{
    rig               r        = self_pair(&STAGE[2]);
    double            rates[2] = {NAN, -1};
    sherd_step_params params;

    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    sherd_step_params_init(&params);
    params.struct_size = 0;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("sherd_step_params.struct_size");
    sherd_step_params_init(&params);
    params.grad_norm = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("grad_norm");
    sherd_step_params_init(&params);
    params.clip_coefficient = INFINITY;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("clip_coefficient");
    sherd_step_params_init(&params);
    params.group_lr    = rates;
    params.group_count = 2;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("but the number of groups is 1;");
    params.group_count = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    params.group_count = 1;
    rates[0]           = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("group_lr");
    rates[0]           = 1;
    params.group_lr    = NULL;
    params.group_beta1 = rates;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("group_beta1 is 1 for group ");
    rates[0]                  = INFINITY;
    params.group_weight_decay = rates;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("group_weight_decay");
    rates[0] = NAN;
    CHECK_OK(sherd_step_apply(r.engine, &params)); /* the step has stayed prepared all the time */
    rig_close(&r);
}

static void pointers_are_null_with_a_sentence_when_not_acquired(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig r = self_pair(&STAGE[stage]);

        rig_seal(&r);
        CHECK(sherd_param_data(r.engine, 0) == NULL);
        rig_acquire(&r, 0, SHERD_FORWARD);
        CHECK(sherd_param_data(r.engine, 0) != NULL);
        CHECK(sherd_param_grad(r.engine, 0) == NULL);
        CHECK_ERROR_SAYS("unit first is not acquired for backward");
        CHECK(sherd_param_data(r.engine, 1) == NULL);
        CHECK_ERROR_SAYS("parameter b cannot be read now: its unit second is not acquired");
        rig_release(&r, 0, SHERD_FORWARD);
        CHECK(sherd_param_data(r.engine, 0) == NULL);
        rig_acquire(&r, 0, SHERD_EVAL);
        CHECK(sherd_param_grad(r.engine, 0) == NULL);
        rig_release(&r, 0, SHERD_EVAL);
        rig_acquire(&r, 0, SHERD_BACKWARD);
        CHECK(sherd_param_grad(r.engine, 0) != NULL);
        rig_release(&r, 0, SHERD_BACKWARD);
        CHECK(sherd_param_grad(r.engine, 0) == NULL);
        rig_close(&r);
    }
}

static void backward_beyond_the_planned_uses_is_refused(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig r = self_pair(&STAGE[stage]);

        rig_seal(&r);
        rig_backward(&r, 0);
        CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_BACKWARD));
        CHECK_ERROR_SAYS("unit first");
        CHECK_ERROR_SAYS("sherd_pass_add");
        rig_backward(&r, 1);
        CHECK_INT(1, rig_step(&r).was_updated);
        rig_backward(&r, 0); /* in the next micro-batch */
        rig_close(&r);
    }
}

/* ------------------------------------------------- ranks that disagree ---- */

typedef struct model_change {
    const char *what; /* words that the error must have */
    void (*declare)(rig *r, int is_odd);
} model_change;

static void odd_count(rig *r, int is_odd)
{
    if (is_odd) {
        (void)rig_param(r, 0, "extra", 3);
    }
}

static void odd_name(rig *r, int is_odd)
{
    (void)rig_param(r, 0, is_odd ? "left" : "right", 3);
}

static void odd_unit(rig *r, int is_odd)
{
    (void)rig_unit(r, is_odd ? "middle" : "center");
}

static void odd_shape(rig *r, int is_odd)
{
    (void)rig_param(r, 0, "shape", is_odd ? 6 : 7);
}

static void odd_frozen(rig *r, int is_odd)
{
    sherd_param_params params;

    sherd_param_params_init(&params);
    params.frozen = is_odd;
    (void)rig_param_as(r, 0, "fixed", 3, &params);
}

static void odd_group(rig *r, int is_odd)
{
    sherd_param_params params;
    sherd_group_params group;
    sherd_group        added;

    sherd_param_params_init(&params);
    sherd_group_params_init(&group);
    CHECK_OK(sherd_group_add(r->engine, &group, &added));
    params.group = is_odd ? added : SHERD_GROUP_DEFAULT;
    (void)rig_param_as(r, 0, "grouped", 3, &params);
}

static void odd_group_rate(rig *r, int is_odd)
{
    sherd_group_params group;
    sherd_group        added;

    sherd_group_params_init(&group);
    group.name = "biases";
    group.lr   = is_odd ? 0.25 : 0.5;
    CHECK_OK(sherd_group_add(r->engine, &group, &added));
}

static void odd_atom(rig *r, int is_odd)
{
    sherd_param_params params;

    sherd_param_params_init(&params);
    params.atom_elems = is_odd ? 8 : 16;
    (void)rig_param_as(r, 0, "atoms", 16, &params);
}

static void odd_read(rig *r, int is_odd)
{
    if (is_odd) {
        CHECK_OK(sherd_unit_reads(r->engine, r->units[1], r->params[0].handle));
    }
}

static void odd_pass(rig *r, int is_odd)
{
    CHECK_OK(sherd_pass_add(r->engine, SHERD_FORWARD, r->units[is_odd]));
    CHECK_OK(sherd_pass_add(r->engine, SHERD_FORWARD, r->units[!is_odd]));
}

/* The same list, in another pass. */
static void odd_pass_kind(rig *r, int is_odd)
{
    CHECK_OK(sherd_pass_add(r->engine, is_odd ? SHERD_EVAL : SHERD_BACKWARD, r->units[0]));
}

static void odd_binding(rig *r, int is_odd)
{
    static float data[3], grad[3];

    (void)rig_param(r, 0, "maybe", 3);
    if (is_odd) {
        CHECK_OK(sherd_param_bind(r->engine, r->params[2].handle, data, grad));
    }
}

static const model_change CHANGES[] = {
    {"groups, units and", odd_count},
    {"parameter left", odd_name},
    {"unit middle", odd_unit},
    {"[6]", odd_shape},
    {"fixed [3] frozen", odd_frozen},
    {"of unit 0, group 1", odd_group},
    {"group biases (lr 0.25", odd_group_rate},
    {"atoms of 8", odd_atom},
    {"reading units 0", odd_read},
    {"the passes forward 1 0", odd_pass},
    {"eval 0", odd_pass_kind},
    {"maybe [3] bound", odd_binding},
};

static void seal_with_another_model(sherd_world *world, void *raw)
{
    const model_change *change  = raw;
    rig_options         options = {.stage = 2};
    rig                 r;

    rig_open(&r, world, &options);
    (void)rig_unit(&r, "first");
    (void)rig_unit(&r, "second");
    (void)rig_param(&r, 0, "a", 70);
    (void)rig_param(&r, 1, "b", 5);
    change->declare(&r, sherd_world_rank(world) == 2);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("rank 2");
    CHECK_ERROR_SAYS(change->what);
    rig_close(&r);
    CHECK_OK(sherd_world_barrier(world)); /* the world can still be used */
}

static void models_that_differ_are_refused_by_name(void)
{
    for (size_t i = 0; i < sizeof(CHANGES) / sizeof(CHANGES[0]); i++) {
        test_world(3, seal_with_another_model, (void *)(uintptr_t)&CHANGES[i]);
    }
}

/* A key, its value on rank 0 and its value on rank 1. */
static const char *const SETTINGS[][3] = {
    {"gradient_clipping", "1.0", "0.5"},
    {"train_micro_batch_size_per_gpu", "1", "2"},
    {"gradient_accumulation_steps", "1", "2"},
    {"communication_data_type", "\"fp32\"", "\"bf16\""},
    {"data_types.grad_accum_dtype", "\"fp32\"", "\"bf16\""},
    {"bf16.enabled", "false", "true"},
    {"optimizer.params.lr", "0.01", "0.02"},
    {"optimizer.params.betas", "[0.9, 0.95]", "[0.9, 0.99]"},
    {"optimizer.params.eps", "1e-8", "1e-6"},
    {"optimizer.params.weight_decay", "0.1", "0"},
    {"optimizer.params.bias_correction", "true", "false"},
    {"scheduler.params.cos_min_ratio", "0.1", "0.2"},
    {"scheduler.params.warmup_min_ratio", "0.1", "0.2"},
    {"scheduler.params.warmup_num_steps", "10", "20"},
    {"scheduler.params.total_num_steps", "100", "200"},
    {"zero_optimization.stage", "2", "3"},
    {"zero_optimization.overlap_comm", "true", "false"},
    {"zero_optimization.sub_group_size", "1000", "2000"},
    {"zero_optimization.stage3_max_reuse_distance", "0", "1000"},
    {"zero_optimization.stage3_max_live_parameters", "1000", "2000"},
    {"zero_optimization.stage3_prefetch_bucket_size", "1000", "2000"},
    {"zero_optimization.stage3_param_persistence_threshold", "1000", "2000"},
    {"zero_optimization.stage3_model_persistence_threshold", "1000", "2000"},
};

static void create_with_another_setting(sherd_world *world, void *raw)
{
    static const char BASE[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1,"
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
        "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 100}},"
        "\"zero_optimization\": {\"stage\": 3}}";
    const char *const *setting = raw;
    sherd_engine      *engine;
    sherd_config      *config;
    char               key[128];

    (void)snprintf(key, sizeof(key), "!%s", setting[0]);
    CHECK_OK(sherd_config_parse(BASE, strlen(BASE), &config));
    CHECK_OK(sherd_config_set(config, key, setting[1 + sherd_world_rank(world)]));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_create(world, config, &engine));
    CHECK_ERROR_SAYS("rank 1");
    if (strcmp(setting[0], "train_micro_batch_size_per_gpu") != 0 &&
        strcmp(setting[0], "gradient_accumulation_steps") != 0 &&
        strcmp(setting[0], "bf16.enabled") != 0) {
        /* these change other settings too */
        CHECK_ERROR_SAYS(setting[0]);
    }
    sherd_config_destroy(config);
    CHECK_OK(sherd_world_barrier(world));
}

static void configurations_that_differ_are_refused_by_key(void)
{
    for (size_t i = 0; i < sizeof(SETTINGS) / sizeof(SETTINGS[0]); i++) {
        test_world(2, create_with_another_setting, (void *)(uintptr_t)SETTINGS[i]);
    }
}

static void create_with_a_bad_file_on_rank_1(sherd_world *world, void *ctx)
{
    sherd_engine *engine;
    int           is_bad = sherd_world_rank(world) == 1;

    (void)ctx;
    CHECK_STATUS(
        SHERD_E_INVAL,
        rig_create(world, is_bad ? "{\"train_micro_batch_size_per_gpu\": 1}" : rig_json(&STAGE[3]),
                   &engine));
    CHECK_ERROR_SAYS(is_bad ? "optimizer" : "sherd_engine_create: rank 1 failed: ");
    CHECK_OK(rig_create(world, rig_json(&STAGE[3]), &engine));
    sherd_engine_destroy(engine);
}

/* No rank waits for one that could not read its own configuration. */
static void configuration_that_is_bad_on_one_rank_fails_on_all(void)
{
    test_world(3, create_with_a_bad_file_on_rank_1, NULL);
}

static sherd_status fill_by_rank(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    const rig *r = ctx;

    for (size_t i = 0; i < count_elems; i++) {
        out[i] = (float)(first_elem + i) + (sherd_world_rank(r->world) == 2 ? 0.5f : 0);
    }
    return SHERD_OK;
}

static void fill_another_way_on_rank_2(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    rig_open(&r, world, &options);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "same", 10);
    (void)rig_param(&r, 0, "other", 10);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(sherd_param_fill(r.engine, r.params[0].handle, rig_fill, NULL));
    CHECK_OK(sherd_param_fill(r.engine, r.params[1].handle, fill_by_rank, &r));
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_acquire(r.engine, 0, SHERD_FORWARD));
    CHECK_ERROR_SAYS("parameter other starts with other values on rank 2");
    CHECK_OK(sherd_param_fill(r.engine, r.params[1].handle, rig_fill, NULL));
    (void)rig_train(&r, 1);
    rig_close(&r);
}

static void fills_that_differ_between_ranks_are_refused_by_name(void)
{
    rig_options persistent = {.stage = 3, .zero = ", \"stage3_param_persistence_threshold\": 100"};

    for (int stage = 0; stage <= 2; stage++) {
        test_world(3, fill_another_way_on_rank_2, (void *)(uintptr_t)&STAGE[stage]);
    }
    test_world(3, fill_another_way_on_rank_2, &persistent);
    test_world(3, fill_another_way_on_rank_2, (void *)(uintptr_t)&STAGE[3]);
}

static void leave_one_unfilled_on_rank_1(sherd_world *world, void *raw)
{
    rig r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", 10);
    CHECK_OK(sherd_engine_seal(r.engine));
    if (sherd_world_rank(world) != 1) {
        CHECK_OK(sherd_param_fill(r.engine, r.params[0].handle, rig_fill, NULL));
    }
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_FORWARD));
    CHECK_ERROR_SAYS(sherd_world_rank(world) == 1 ? "parameter w was never filled" : "rank 1");
    CHECK_OK(sherd_param_fill(r.engine, r.params[0].handle, rig_fill, NULL));
    (void)rig_train(&r, 1);
    rig_close(&r);
}

static void unfilled_on_one_rank_fails_on_all(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        test_world(2, leave_one_unfilled_on_rank_1, (void *)(uintptr_t)&STAGE[stage]);
    }
}

static const test_case CASES[] = {
    CASE(create_refuses_null),
    CASE(calls_refuse_a_null_engine),
    CASE(declarations_refuse_what_is_missing),
    CASE(structs_refuse_a_wrong_size),
    CASE(structs_of_an_older_header_are_taken),
    CASE(step_report_refuses_a_wrong_size_before_anything_happens),
    CASE(handles_out_of_range_are_refused),
    CASE(names_are_unique_and_utf8),
    CASE(shapes_that_no_memory_holds_are_refused),
    CASE(model_that_does_not_fit_is_refused_before_it_is_allocated),
    CASE(groups_refuse_rates_out_of_range),
    CASE(before_seal_the_loop_is_refused),
    CASE(cpu_has_no_streams),
    CASE(after_seal_declarations_are_refused),
    CASE(seal_without_parameters_is_refused),
    CASE(unfilled_parameter_is_named_then_filled_works),
    CASE(failing_fill_function_leaves_the_parameter_unfilled),
    CASE(step_before_any_acquire_is_refused),
    CASE(step_without_backward_is_refused),
    CASE(release_follows_an_acquire_of_the_same_unit_and_pass),
    CASE(step_while_acquired_is_refused),
    CASE(prepared_step_wants_apply_or_discard),
    CASE(step_params_refuse_what_makes_no_sense),
    CASE(pointers_are_null_with_a_sentence_when_not_acquired),
    CASE(backward_beyond_the_planned_uses_is_refused),
    CASE(models_that_differ_are_refused_by_name),
    CASE(configurations_that_differ_are_refused_by_key),
    CASE(configuration_that_is_bad_on_one_rank_fails_on_all),
    CASE(fills_that_differ_between_ranks_are_refused_by_name),
    CASE(unfilled_on_one_rank_fails_on_all),
};

RUN_MAIN(CASES)
