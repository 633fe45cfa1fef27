/* One address per unit: what is held together lies apart, a parameter lies at one address for the
 * life of the engine, and an acquire whose memory is taken is refused. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>

#define UNITS 4

typedef struct address_job {
    rig_options options;
    int         is_held; /* "u0" is held over u1 and u2 in forward, u3 over u2 in backward */
    uint64_t    fingerprint;
} address_job;

static const size_t ELEMS[UNITS] = {700, 3000, 5000, 1300};

static void units_add(rig *r)
{
    static const char *const NAMES[UNITS] = {"u0", "u1", "u2", "u3"};
    static const char *const W[UNITS]     = {"w0", "w1", "w2", "w3"};

    for (int u = 0; u < UNITS; u++) {
        (void)rig_unit(r, NAMES[u]);
        (void)rig_param(r, u, W[u], ELEMS[u]);
    }
}

static void passes_add_held(rig *r)
{
    for (int u = 0; u < UNITS; u++) {
        CHECK_OK(sherd_pass_add_held(r->engine, SHERD_FORWARD, r->units[u], u == 0 ? 2 : 0));
    }
    CHECK_OK(sherd_pass_add_held(r->engine, SHERD_BACKWARD, r->units[3], 1));
    for (int u = 2; u >= 0; u--) {
        CHECK_OK(sherd_pass_add(r->engine, SHERD_BACKWARD, r->units[u]));
    }
}

/* In the order that passes_add_held declares. */
static void micro_batch_held(rig *r, sherd_pass pass)
{
    rig_acquire(r, 0, pass);
    rig_forward(r, 1, pass);
    rig_acquire(r, 2, pass);
    (void)rig_read(r, 0);
    (void)rig_read(r, 2);
    rig_release(r, 2, pass);
    rig_release(r, 0, pass);
    rig_forward(r, 3, pass);
    if (pass == SHERD_EVAL) {
        return;
    }
    rig_acquire(r, 3, SHERD_BACKWARD);
    rig_backward(r, 2);
    rig_touch(r, 3, 1);
    rig_release(r, 3, SHERD_BACKWARD);
    rig_backward(r, 1);
    rig_backward(r, 0);
}

static void train_held(sherd_world *world, void *raw)
{
    address_job *job = raw;
    uint64_t     fingerprint;
    rig          r;

    rig_open(&r, world, &job->options);
    units_add(&r);
    if (job->is_held) {
        passes_add_held(&r);
    }
    rig_seal(&r);
    for (int i = 0; i < 3; i++) {
        if (job->is_held) {
            micro_batch_held(&r, SHERD_FORWARD);
            micro_batch_held(&r, SHERD_EVAL); /* the default of EVAL holds as FORWARD does */
        } else {
            rig_micro_batch(&r);
        }
        CHECK_INT(1, rig_step(&r).was_updated);
    }
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = fingerprint;
    }
    rig_close(&r);
}

#define NO_ROOM ", \"stage3_prefetch_bucket_size\": 0, \"overlap_comm\": false"

static void units_that_are_declared_held_are_there_together(void)
{
    static const char *const ZEROS[] = {NO_ROOM, "", ", \"overlap_comm\": true"};

    for (int stage = 0; stage <= 3; stage++) {
        for (size_t z = 0; z < sizeof(ZEROS) / sizeof(ZEROS[0]); z++) {
            for (int ranks = 1; ranks <= 3; ranks++) {
                rig_options options = {.stage = stage, .dtype = SHERD_BF16, .zero = ZEROS[z]};
                address_job plain   = {.options = options};
                address_job held    = {.options = options, .is_held = 1};

                test_world(ranks, train_held, &plain);
                test_world(ranks, train_held, &held);
                CHECK(plain.fingerprint == held.fingerprint);
            }
        }
    }
}

static void seal_with_another_hold_on_rank_1(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 3};
    rig         r;

    (void)ctx;
    rig_open(&r, world, &options);
    units_add(&r);
    CHECK_OK(sherd_pass_add_held(r.engine, SHERD_FORWARD, r.units[0],
                                 sherd_world_rank(world) == 1 ? 2 : 1));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[1]));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("rank 0 has the passes forward 0+1 1");
    CHECK_ERROR_SAYS("rank 1 has the passes forward 0+2 1");
    rig_close(&r);
}

static void holds_are_the_same_on_all_ranks(void)
{
    test_world(2, seal_with_another_hold_on_rank_1, NULL);
}

static void hold_over_everything_ends_with_the_micro_batch(void)
{
    rig_options  options = {.stage = 3, .zero = NO_ROOM};
    sherd_world *world;
    rig          r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    units_add(&r);
    for (int u = 0; u < UNITS; u++) {
        CHECK_OK(sherd_pass_add_held(r.engine, SHERD_FORWARD, r.units[u], u == 0 ? (size_t)-1 : 0));
    }
    rig_seal(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_pass_add_held(r.engine, SHERD_FORWARD, r.units[0], 1));
    CHECK_STATUS(SHERD_E_INVAL, sherd_pass_add_held(NULL, SHERD_FORWARD, 0, 1));
    for (int i = 0; i < 2; i++) {
        rig_acquire(&r, 0, SHERD_FORWARD);
        for (int u = 1; u < UNITS; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            rig_backward(&r, u);
        }
        (void)rig_read(&r, 0);
        rig_release(&r, 0, SHERD_FORWARD);
        CHECK_INT(1, rig_step(&r).was_updated);
    }
    rig_close(&r);
    sherd_world_destroy(world);
}

/* -------------------------------------------------------- off the plan -- */

static uint64_t wire_sent(const rig *r)
{
    uint64_t sent;
    uint64_t received;

    sherd_world_traffic(r->world, &sent, &received);
    return sent;
}

static void acquire_over_what_is_held(sherd_world *world, void *raw)
{
    uint64_t sent;
    double   sum;
    rig      r;

    rig_open(&r, world, raw);
    units_add(&r);
    rig_seal(&r);
    rig_acquire(&r, 1, SHERD_FORWARD);
    sum  = rig_read(&r, 1);
    sent = wire_sent(&r);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(SHERD_E_NOMEM, sherd_unit_acquire(r.engine, r.units[2], SHERD_FORWARD));
        CHECK_ERROR_SAYS("the plan gives it the memory of unit u1, which is still acquired");
        CHECK_ERROR_SAYS("release u1 before this acquire");
        CHECK_ERROR_SAYS("sherd_pass_add_held");
    }
    CHECK(wire_sent(&r) == sent);
    CHECK(sherd_param_data(r.engine, r.params[2].handle) == NULL);
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, r.units[2], SHERD_FORWARD));
    CHECK(rig_read(&r, 1) == sum);
    rig_acquire(&r, 1, SHERD_EVAL); /* again, while it is held */
    rig_release(&r, 1, SHERD_FORWARD);
    CHECK(rig_read(&r, 1) == sum);
    rig_release(&r, 1, SHERD_EVAL);
    rig_forward(&r, 2, SHERD_FORWARD);
    rig_micro_batch(&r);
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
}

static void acquire_whose_memory_is_held_is_refused_naming_both(void)
{
    rig_options options = {.stage = 3, .zero = NO_ROOM};

    test_world(2, acquire_over_what_is_held, &options);
    test_world(3, acquire_over_what_is_held, &options);
}

/* EVAL after a part of forward, other orders, a unit held over others that do not overlap it. */
static void micro_batch_off_the_plan(rig *r)
{
    static const int ORDER[UNITS] = {2, 0, 3, 1};

    rig_forward(r, 0, SHERD_FORWARD);
    for (int i = 0; i < UNITS; i++) {
        rig_forward(r, ORDER[i], SHERD_EVAL);
    }
    rig_forward(r, 1, SHERD_FORWARD);
    rig_forward(r, 1, SHERD_EVAL);
    for (int i = 0; i < UNITS; i++) {
        rig_forward(r, ORDER[i], SHERD_FORWARD);
    }
    for (int i = 0; i < UNITS; i++) {
        rig_backward(r, ORDER[i]);
    }
}

static void train_off_the_plan(sherd_world *world, void *raw)
{
    address_job *job = raw;
    uint64_t     fingerprint;
    rig          r;

    rig_open(&r, world, &job->options);
    units_add(&r);
    rig_seal(&r);
    for (int i = 0; i < 3; i++) {
        micro_batch_off_the_plan(&r);
        CHECK_INT(1, rig_step(&r).was_updated);
    }
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = fingerprint;
    }
    rig_close(&r);
}

static void orders_off_the_plan_train_the_same(void)
{
    static const char *const ZEROS[] = {NO_ROOM, ", \"stage3_prefetch_bucket_size\": 5500",
                                        ", \"stage3_max_reuse_distance\": 4000", ""};
    static const char *const TOPS[]  = {NULL, ", \"sherd\": {\"free_packing\": true}"};

    for (size_t z = 0; z < sizeof(ZEROS) / sizeof(ZEROS[0]); z++) {
        for (int t = 0; t < 2; t++) {
            for (int ranks = 1; ranks <= 3; ranks++) {
                rig_options options = {
                    .stage = 3, .dtype = SHERD_BF16, .zero = ZEROS[z], .top = TOPS[t]};
                address_job plain = {.options = options};
                address_job off   = {.options = options};

                test_world(ranks, train_held, &plain);
                test_world(ranks, train_off_the_plan, &off);
                CHECK(plain.fingerprint == off.fingerprint);
            }
        }
    }
}

/* ------------------------------------------------------------- addresses -- */

typedef struct addresses {
    void *data[UNITS], *grad[UNITS];
} addresses;

static void addresses_take(rig *r, addresses *out)
{
    for (int u = 0; u < UNITS; u++) {
        out->data[u] = sherd_param_address(r->engine, r->params[u].handle);
        out->grad[u] = sherd_param_grad_address(r->engine, r->params[u].handle);
        CHECK(out->data[u] != NULL && out->grad[u] != NULL);
    }
}

/* What lies at the address while the unit is acquired is what sherd_param_data gives. */
static void visit_at(rig *r, int unit, sherd_pass pass, const addresses *at)
{
    rig_acquire(r, unit, pass);
    CHECK(sherd_param_data(r->engine, r->params[unit].handle) == at->data[unit]);
    (void)rig_read(r, unit);
    if (pass == SHERD_BACKWARD) {
        CHECK(sherd_param_grad(r->engine, r->params[unit].handle) == at->grad[unit]);
        rig_touch(r, unit, 1);
    }
    rig_release(r, unit, pass);
}

static void addresses_through_passes(sherd_world *world, void *raw)
{
    static const int ORDER[UNITS] = {2, 0, 3, 1};
    addresses        at, later;
    rig              r;

    rig_open(&r, world, raw);
    units_add(&r);
    CHECK(sherd_param_address(r.engine, 0) == NULL);
    CHECK_ERROR_SAYS("before sherd_engine_seal");
    rig_seal(&r);
    addresses_take(&r, &at);
    for (int step = 0; step < 3; step++) {
        const int *order = ORDER; /* off the plan in the second step */

        for (int i = 0; i < UNITS; i++) {
            visit_at(&r, step == 1 ? order[i] : i, SHERD_FORWARD, &at);
            visit_at(&r, order[i], SHERD_EVAL, &at);
        }
        for (int i = UNITS - 1; i >= 0; i--) {
            visit_at(&r, step == 1 ? order[i] : i, SHERD_BACKWARD, &at);
        }
        CHECK(sherd_param_data(r.engine, r.params[0].handle) == NULL);
        CHECK_INT(1, rig_step(&r).was_updated);
        addresses_take(&r, &later);
        for (int u = 0; u < UNITS; u++) {
            CHECK(at.data[u] == later.data[u] && at.grad[u] == later.grad[u]);
        }
    }
    rig_close(&r);
}

static void parameters_have_one_address_for_the_life_of_the_engine(void)
{
    static const char *const ZEROS[] = {NO_ROOM, ", \"stage3_prefetch_bucket_size\": 5500", "",
                                        ", \"offload_param\": {\"device\": \"cpu\"}"};

    for (int stage = 0; stage <= 3; stage++) {
        for (int z = 0; z < (stage == 3 ? 4 : 2); z++) {
            for (int ranks = 1; ranks <= 3; ranks++) {
                rig_options options = {.stage        = stage,
                                       .accumulation = 1,
                                       .dtype        = z == 0 ? SHERD_F32 : SHERD_BF16,
                                       .zero         = ZEROS[z]};

                test_world(ranks, addresses_through_passes, &options);
            }
        }
    }
}

/* Whole parameters have one all the same, and gradients. */
static void addresses_with_free_packing(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    rig                r;

    rig_open(&r, world, options);
    units_add(&r);
    rig_seal(&r);
    CHECK((sherd_param_address(r.engine, 0) == NULL) == (options->stage == 3));
    if (options->stage == 3) {
        CHECK_ERROR_SAYS("sherd.free_packing");
        CHECK_ERROR_SAYS("parameter w0");
    }
    CHECK(sherd_param_grad_address(r.engine, 0) != NULL);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void gathered_parameters_have_no_address_with_free_packing(void)
{
    for (int stage = 2; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .top = ", \"sherd\": {\"free_packing\": true}"};

        test_world(2, addresses_with_free_packing, &options);
    }
}

static void frozen_empty_and_bound_parameters_have_their_address(void)
{
    static float       data[10];
    static float       grad[10];
    rig_options        options = {.stage = 2};
    sherd_param_params frozen  = {.frozen = 1, .dtype = -1};
    sherd_world       *world;
    rig                r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "bound", 10);
    (void)rig_param_as(&r, 0, "frozen", 100, &frozen);
    (void)rig_unit(&r, "nothing");
    (void)rig_param(&r, 1, "empty", 0);
    CHECK_OK(sherd_param_bind(r.engine, r.params[0].handle, data, grad));
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK(sherd_param_address(r.engine, 0) == (void *)data);
    CHECK(sherd_param_grad_address(r.engine, 0) == (void *)grad);
    CHECK(sherd_param_address(r.engine, 1) != NULL);
    CHECK(sherd_param_grad_address(r.engine, 1) == NULL);
    CHECK_ERROR_SAYS("parameter frozen is frozen and has no gradient");
    CHECK(sherd_param_address(r.engine, 2) != NULL);
    CHECK(sherd_param_grad_address(r.engine, 2) != NULL);
    rig_close(&r);
    sherd_world_destroy(world);
}

static const test_case CASES[] = {
    CASE(units_that_are_declared_held_are_there_together),
    CASE(holds_are_the_same_on_all_ranks),
    CASE(hold_over_everything_ends_with_the_micro_batch),
    CASE(acquire_whose_memory_is_held_is_refused_naming_both),
    CASE(orders_off_the_plan_train_the_same),
    CASE(parameters_have_one_address_for_the_life_of_the_engine),
    CASE(gathered_parameters_have_no_address_with_free_packing),
    CASE(frozen_empty_and_bound_parameters_have_their_address),
};

RUN_MAIN(CASES)
