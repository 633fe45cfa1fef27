/* Gradients that the trainer retains (retain_grads): they stay until it calls the step, and
 * training is the same bits. */
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

static const rig_options *retaining(const rig_options *options, rig_options *out)
{
    *out              = *options;
    out->retain_grads = 1;
    return out;
}

static size_t param_bytes(const rig *r, int param)
{
    return r->params[param].elems * sherd_dtype_bytes(r->dtype);
}

/* Backward through all units; what each left is noted at its release. */
static void backward_noted(rig *r, unsigned char *left[RIG_PARAMS])
{
    for (int u = r->num_units - 1; u >= 0; u--) {
        rig_acquire(r, u, SHERD_BACKWARD);
        for (int p = 0; p < r->num_params; p++) {
            if (r->params[p].unit == u && !r->params[p].is_frozen) {
                rig_touch(r, p, 1);
                CHECK_OK(sherd_copy(r->engine, left[p],
                                    sherd_param_grad(r->engine, r->params[p].handle),
                                    param_bytes(r, p)));
            }
        }
        rig_release(r, u, SHERD_BACKWARD);
    }
}

static void expect_retained(rig *r, unsigned char *left[RIG_PARAMS])
{
    for (int p = 0; p < r->num_params; p++) {
        unsigned char now[4096];
        void         *grad = sherd_param_grad(r->engine, r->params[p].handle);

        if (r->params[p].is_frozen) {
            CHECK(grad == NULL);
            continue;
        }
        CHECK(grad != NULL && grad == sherd_param_grad_address(r->engine, r->params[p].handle));
        CHECK_OK(sherd_copy(r->engine, now, grad, param_bytes(r, p)));
        CHECK_BYTES_EQUAL(left[p], now, param_bytes(r, p));
    }
}

static void train_noted(rig *r, int count)
{
    unsigned char *left[RIG_PARAMS];

    for (int p = 0; p < RIG_PARAMS; p++) {
        left[p] = malloc(4096);
        CHECK(left[p] != NULL);
    }
    for (int i = 0; i < count; i++) {
        for (int u = 0; u < r->num_units; u++) {
            rig_forward(r, u, SHERD_FORWARD);
        }
        backward_noted(r, left);
        rig_forward(r, 1, SHERD_EVAL); /* whatever comes in between */
        expect_retained(r, left);
        (void)rig_step(r);
        CHECK(sherd_param_grad(r->engine, r->params[0].handle) == NULL);
        CHECK_ERROR_SAYS("is not acquired for backward");
    }
    for (int p = 0; p < RIG_PARAMS; p++) {
        free(left[p]);
    }
}

static uint64_t train_retaining(sherd_world *world, const rig_options *options)
{
    rig_options retains;
    rig         r;

    ways_declare_layers(&r, world, retaining(options, &retains));
    rig_seal(&r);
    train_noted(&r, 4);
    return ways_close(&r, 4 / options->accumulation);
}

static void gradients_stay_until_the_step_and_change_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_retaining, 3);
}

static uint64_t train_retaining_any(sherd_world *world, const rig_options *options)
{
    rig_options any = *options;

    any.backward_uses = SHERD_USES_ANY;
    return train_retaining(world, &any);
}

static void gradients_of_any_number_of_uses_stay_too(void)
{
    ways_expect_same(ways_train_as_planned, train_retaining_any, 3);
}

static uint64_t train_retaining_bound(sherd_world *world, const rig_options *options)
{
    rig_options retains;
    uint64_t    got;
    ways_bound  memory;
    rig         r;

    ways_declare_layers(&r, world, retaining(options, &retains));
    ways_bind(&r, &memory);
    rig_seal(&r);
    train_noted(&r, 4);
    got = ways_close(&r, 4 / options->accumulation);
    ways_unbind(&memory);
    return got;
}

static void bound_gradients_stay_too(void)
{
    ways_expect_same(ways_train_as_planned, train_retaining_bound, 2);
}

static void train_in_debug(sherd_world *world, void *raw)
{
    CHECK_INT(ways_train_as_planned(world, raw), train_retaining(world, raw));
}

static void debug_finds_nothing(void)
{
    CHECK_INT(0, setenv("SHERD_DEBUG", "1", 1));
    for (size_t kind = 0; kind < WAYS_NUM_KINDS; kind++) {
        for (int stage = 0; stage <= 3; stage++) {
            rig_options options = WAYS_KINDS[kind];

            options.stage = stage;
            test_world(2, train_in_debug, &options);
        }
    }
    CHECK_INT(0, unsetenv("SHERD_DEBUG"));
}

/* One unit of many retains its gradient, the last in backward: its place may be that of the first,
 * but not after it. */
static void go_another_way(sherd_world *world, void *raw)
{
    sherd_unit_params params;
    sherd_status      status = SHERD_OK;
    void             *first;
    int               u;
    rig               r;

    rig_open(&r, world, raw);
    sherd_unit_params_init(&params);
    for (u = 0; u < 6; u++) {
        static const char *const UNITS[]  = {"a", "b", "c", "d", "e", "f"};
        static const char *const PARAMS[] = {"a.w", "b.w", "c.w", "d.w", "e.w", "f.w"};

        params.retain_grads = u == 0;
        (void)rig_param(&r, rig_unit_as(&r, UNITS[u], &params), PARAMS[u], 500);
    }
    rig_seal(&r);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_acquire(&r, 0, SHERD_BACKWARD);
    first = sherd_param_grad(r.engine, r.params[0].handle);
    rig_release(&r, 0, SHERD_BACKWARD);
    for (u = 5; u > 0 && status == SHERD_OK; u--) {
        CHECK(sherd_param_grad(r.engine, r.params[0].handle) == first);
        status = sherd_unit_acquire(r.engine, r.units[u], SHERD_BACKWARD);
        if (status == SHERD_OK) {
            rig_release(&r, u, SHERD_BACKWARD);
        }
    }
    CHECK_STATUS(SHERD_E_NOMEM, status);
    CHECK_ERROR_SAYS("the memory of unit a, whose gradient stays");
    CHECK_ERROR_SAYS("retain_grads");
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void place_of_a_retained_gradient_is_taken(void)
{
    for (int stage = 2; stage <= 3; stage++) {
        rig_options options = {.stage = stage};

        test_world(2, go_another_way, &options);
    }
}

static const test_case CASES[] = {
    CASE(gradients_stay_until_the_step_and_change_nothing),
    CASE(gradients_of_any_number_of_uses_stay_too),
    CASE(bound_gradients_stay_too),
    CASE(debug_finds_nothing),
    CASE(place_of_a_retained_gradient_is_taken),
};

RUN_MAIN(CASES)
