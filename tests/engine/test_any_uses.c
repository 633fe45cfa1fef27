/* Units that backward uses any number of times (SHERD_USES_ANY). However the uses come, the
 * gradient is their sum. Its bits are those of the same gradient made in planned uses. */
#include "tests/engine/planner.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include "engine/proof/check.h"
#include "sherd_build.h"
#include <stdio.h>
#include <stdlib.h>

static const rig_options *with_any(const rig_options *options, rig_options *out)
{
    *out               = *options;
    out->backward_uses = SHERD_USES_ANY;
    return out;
}

/* ------------------------------------------------ the same gradient, other uses -- */

static uint64_t train_as_listed(sherd_world *world, const rig_options *options)
{
    rig_options any;

    return ways_train_as_planned(world, with_any(options, &any));
}

static void uses_as_listed_give_the_same_bits(void)
{
    ways_expect_same(ways_train_as_planned, train_as_listed, 3);
}

static void touch_all(rig *r, int unit, float share)
{
    for (int p = 0; p < r->num_params; p++) {
        if (r->params[p].unit == unit && !r->params[p].is_frozen) {
            rig_touch(r, p, share);
        }
    }
}

/* Runs forward and backward twice, each time in another order and with half of the gradient; in the
 * second half one use is inside another. */
static void micro_batch_in_halves(rig *r)
{
    static const int ORDERS[2][4] = {{3, 1, 2, 0}, {0, 2, 3, 1}};

    for (int half = 0; half < 2; half++) {
        for (int u = 0; u < r->num_units; u++) {
            rig_forward(r, u, SHERD_FORWARD);
        }
        for (int i = 0; i < r->num_units; i++) {
            int u = ORDERS[half][i];

            rig_acquire(r, u, SHERD_BACKWARD);
            touch_all(r, u, half == 0 ? 0.5f : 0.25f);
            if (half == 1) {
                rig_acquire(r, u, SHERD_BACKWARD);
                touch_all(r, u, 0.25f);
                rig_release(r, u, SHERD_BACKWARD);
            }
            rig_release(r, u, SHERD_BACKWARD);
        }
    }
}

/* In fp32, shares that are powers of two add up to the gradient; in bf16 each addition rounds. So
 * this and train_in_parts add the same shares in the same order. */
static uint64_t train_in_halves(sherd_world *world, const rig_options *options)
{
    rig_options any;
    rig         r;

    ways_declare_layers(&r, world, with_any(options, &any));
    rig_seal(&r);
    for (int i = 0; i < 4; i++) {
        micro_batch_in_halves(&r);
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static uint64_t train_in_parts(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int i = 0; i < 4; i++) {
        for (int u = 3; u >= 0; u--) {
            rig_acquire(&r, u, SHERD_BACKWARD);
            touch_all(&r, u, 0.5f);
            touch_all(&r, u, 0.25f);
            touch_all(&r, u, 0.25f);
            rig_release(&r, u, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void several_uses_in_any_order_add_up(void)
{
    ways_expect_same(train_in_parts, train_in_halves, 3);
}

/* ------------------------------------------------ other uses on other ranks -- */

/* Whether this rank leaves a gradient in unit `u` of micro-batch `m`: on some units all ranks do,
 * on some only some, on some none. */
static int has_gradient(const rig *r, int u, int64_t m)
{
    int rank = sherd_world_rank(r->world);

    switch ((u + (int)m) % 4) {
    case 0:
        return 1;
    case 1:
        return rank == 0;
    case 2:
        return rank != 0;
    default:
        return 0;
    }
}

/* All ranks use all units, and some leave a gradient of zero. */
static uint64_t train_with_zeros(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int i = 0; i < 4; i++) {
        for (int u = 3; u >= 0; u--) {
            rig_acquire(&r, u, SHERD_BACKWARD);
            touch_all(&r, u, has_gradient(&r, u, r.micro) ? 1 : 0);
            rig_release(&r, u, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static uint64_t train_what_there_is(sherd_world *world, const rig_options *options)
{
    rig_options any;
    rig         r;

    ways_declare_layers(&r, world, with_any(options, &any));
    rig_seal(&r);
    for (int i = 0; i < 4; i++) {
        for (int u = 0; u < r.num_units; u++) {
            if (has_gradient(&r, u, r.micro)) {
                rig_forward(&r, u, SHERD_FORWARD);
                rig_backward(&r, u);
            }
        }
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void who_did_not_use_a_unit_counts_as_zero(void)
{
    ways_expect_same(train_with_zeros, train_what_there_is, 3);
}

/* A rank without data has no backward pass at all. */
static void leave_backward_to_rank_0(sherd_world *world, void *raw)
{
    rig_options any;
    rig         r;

    ways_declare_layers(&r, world, with_any(raw, &any));
    rig_seal(&r);
    if (sherd_world_rank(world) == 0) {
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_poke(&r, 4, 42, 3);
        rig_release(&r, 2, SHERD_BACKWARD);
    }
    CHECK_CLOSE(1, rig_step(&r).grad_norm, 1e-15); /* a gradient of 3 on one of 3 ranks */
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("had no backward pass");
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void backward_of_one_rank_alone_is_a_backward_pass(void)
{
    ways_on_every_stage(3, leave_backward_to_rank_0);
}

/* The same in a window that is closed early, before the rank has acquired anything. */
static void close_without_data(sherd_world *world, void *raw)
{
    rig_options any;
    rig         r;

    ways_declare_layers(&r, world, with_any(raw, &any));
    rig_seal(&r);
    if (sherd_world_rank(world) == 0) {
        rig_backward(&r, 2);
    }
    CHECK_OK(sherd_step_close_window(r.engine));
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
}

static void a_rank_without_data_may_close_the_first_window(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .accumulation = 2};

        test_world(3, close_without_data, &options);
    }
}

/* An acquire for EVAL that only one rank makes is found here too. */
static void evaluate_alone(sherd_world *world, void *raw)
{
    rig_options any;
    rig         r;

    ways_declare_layers(&r, world, with_any(raw, &any));
    rig_seal(&r);
    (void)rig_train(&r, 1);
    if (sherd_world_rank(world) == 1) {
        rig_forward(&r, 1, SHERD_EVAL);
    }
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("unit one");
    CHECK_ERROR_SAYS("for eval");
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void evaluation_of_one_rank_alone_is_named(void)
{
    ways_on_every_stage(2, evaluate_alone);
}

/* --------------------------------------------------------- mixed with others -- */

/* Trains with a tied table that the head reads; the head may have any number of uses. The layer
 * between them is used as planned. */
static uint64_t train_tied(sherd_world *world, const rig_options *options, int is_any)
{
    sherd_unit_params params;
    rig               r;

    rig_open(&r, world, options);
    sherd_unit_params_init(&params);
    (void)rig_unit(&r, "table");
    (void)rig_unit(&r, "layer");
    params.backward_uses = is_any ? SHERD_USES_ANY : 0;
    (void)rig_unit_as(&r, "head", &params);
    (void)rig_param(&r, 0, "table.w", 333);
    (void)rig_param(&r, 1, "layer.w", 129);
    (void)rig_param(&r, 2, "head.w", 65);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    rig_seal(&r);
    for (int m = 0; m < 4; m++) {
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_touch(&r, 2, 1);
        rig_touch(&r, 0, 1);
        rig_release(&r, 2, SHERD_BACKWARD);
        rig_backward(&r, 1);
        rig_backward(&r, 0);
        if (is_any) { /* one more use, which adds nothing */
            rig_acquire(&r, 2, SHERD_BACKWARD);
            rig_release(&r, 2, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static uint64_t train_tied_as_planned(sherd_world *world, const rig_options *options)
{
    return train_tied(world, options, 0);
}

static uint64_t train_tied_with_any(sherd_world *world, const rig_options *options)
{
    return train_tied(world, options, 1);
}

static void what_such_a_unit_reads_is_open_as_long(void)
{
    ways_expect_same(train_tied_as_planned, train_tied_with_any, 3);
}

static uint64_t train_bound(sherd_world *world, const rig_options *options)
{
    rig_options any;
    uint64_t    got;
    ways_bound  memory;
    rig         r;

    ways_declare_layers(&r, world, with_any(options, &any));
    ways_bind(&r, &memory);
    rig_seal(&r);
    for (int i = 0; i < 4; i++) {
        micro_batch_in_halves(&r);
        (void)rig_step(&r);
    }
    got = ways_close(&r, 4 / options->accumulation);
    ways_unbind(&memory);
    return got;
}

static void bound_gradients_are_taken_at_the_step(void)
{
    ways_expect_same(train_in_parts, train_bound, 2);
}

/* Both units with planned uses and others see a gradient of zero first, and then what was left in
 * it, until the step. */
static void find_what_was_left(sherd_world *world, void *raw)
{
    rig_options options;
    rig         r;

    options              = *with_any(raw, &options);
    options.accumulation = 2;
    ways_declare_layers(&r, world, &options);
    rig_seal(&r);
    for (int m = 0; m < 3; m++) {
        for (int use = 0; use < 3; use++) {
            for (int u = 0; u < 4; u++) {
                const float *grad;

                rig_acquire(&r, u, SHERD_BACKWARD);
                grad = sherd_param_grad(r.engine, r.params[2 * u].handle);
                CHECK(grad[7] == (use == 0 ? 0.0f : (float)(10 * u + use)));
                rig_poke(&r, 2 * u, 7, (float)(10 * u + use + 1));
                rig_release(&r, u, SHERD_BACKWARD);
            }
        }
        if (m == 1) {
            CHECK_OK(sherd_step_discard(r.engine)); /* also in the middle of a window */
        } else {
            (void)rig_step(&r);
        }
    }
    rig_close(&r);
}

static void gradient_is_zero_once_and_kept_until_the_step(void)
{
    ways_on_every_stage(2, find_what_was_left);
}

/* ------------------------------------------------------------- tiers, debug -- */

#define NVME "\"device\": \"nvme\", \"nvme_path\": \"%s\""

static const char *const TIERS[] = {
    ", \"sub_group_size\": 128, \"offload_optimizer\": {\"device\": \"cpu\"}",
#ifdef SHERDI_HAVE_XXHASH
    ", \"sub_group_size\": 128, \"offload_optimizer\": {" NVME
    ", \"durable\": false, \"gradients\": \"nvme\"}",
#endif
    ", \"sub_group_size\": 128, \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": "
    "{" NVME ", \"max_in_cpu\": 0}",
};

/* If parameters are offloaded, gathers are calls in which the ranks meet, so every rank acquires
 * the same units. */
static uint64_t train_on_a_tier(sherd_world *world, const rig_options *options)
{
    return (options->stage == 3 ? train_in_halves : train_what_there_is)(world, options);
}

static uint64_t train_beside_a_tier(sherd_world *world, const rig_options *options)
{
    rig_options plain = *options;

    plain.zero = NULL;
    return (options->stage == 3 ? train_in_parts : train_with_zeros)(world, &plain);
}

static void expect_same_on_tiers(sherd_world *world, void *raw)
{
    CHECK_INT(train_beside_a_tier(world, raw), train_on_a_tier(world, raw));
}

static void tiers_change_nothing(void)
{
    for (size_t t = 0; t < sizeof(TIERS) / sizeof(TIERS[0]); t++) {
        for (int accumulation = 1; accumulation <= 2; accumulation++) {
            char        keys[1024];
            rig_options options = {.accumulation = accumulation, .dtype = SHERD_BF16, .zero = keys};

            (void)snprintf(keys, sizeof(keys), TIERS[t], test_scratch());
            for (options.stage = t + 1 < sizeof(TIERS) / sizeof(TIERS[0]) ? 1 : 3;
                 options.stage <= 3; options.stage++) {
                test_world(2, expect_same_on_tiers, &options);
            }
        }
    }
}

/* With SHERD_DEBUG the plan is proved at seal, and memory that has no values is filled with NaN. */
static void train_in_debug(sherd_world *world, void *raw)
{
    CHECK_INT(train_in_parts(world, raw), train_in_halves(world, raw));
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

/* ----------------------------------------------------------------- the plan -- */

/* If the uses come as listed, traffic and memory are as planned. */
static void count_traffic(sherd_world *world, void *raw)
{
    rig_options          any;
    sherd_traffic_report t;
    sherd_memory_report  memory;
    rig                  r;

    ways_declare_layers(&r, world, with_any(raw, &any));
    rig_seal(&r);
    (void)rig_train(&r, any.accumulation);
    sherd_traffic_report_init(&t);
    CHECK_OK(sherd_engine_traffic(r.engine, &t));
    (void)rig_train(&r, 2 * any.accumulation);
    {
        uint64_t before = t.wire_counted;

        CHECK_OK(sherd_engine_traffic(r.engine, &t));
        CHECK_INT(2 * (t.wire_step_planned + (uint64_t)any.accumulation * t.wire_micro_planned),
                  t.wire_counted - before);
    }
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT(memory.total_planned, memory.total_held);
    rig_close(&r);
}

static void traffic_and_memory_are_as_planned(void)
{
    for (size_t kind = 0; kind < WAYS_NUM_KINDS; kind++) {
        for (int stage = 0; stage <= 3; stage++) {
            rig_options options = WAYS_KINDS[kind];

            options.stage = stage;
            test_world(3, count_traffic, &options);
        }
    }
}

/* Only rank 0 reaches the units. One has a frozen parameter without elements, whose gather must not
 * meet. */
static void rank_reaches_alone(sherd_world *world, void *ctx)
{
    static const rig_options OPTIONS = {.stage = 3,
                                        .zero  = ", \"stage3_param_persistence_threshold\": 0",
                                        .backward_uses = SHERD_USES_ANY};
    sherd_param_params       frozen;
    rig                      r;

    (void)ctx;
    sherd_param_params_init(&frozen);
    frozen.frozen = 1;
    rig_open(&r, world, &OPTIONS);
    (void)rig_param(&r, rig_unit(&r, "one"), "a", 300);
    (void)rig_param_as(&r, 0, "empty", 0, &frozen);
    (void)rig_param(&r, rig_unit(&r, "two"), "b", 200);
    rig_seal(&r);
    for (int unit = 0; unit < 2 && sherd_world_rank(world) == 0; unit++) {
        rig_acquire(&r, unit, SHERD_FORWARD);
        rig_release(&r, unit, SHERD_FORWARD);
    }
    for (int unit = 1; unit >= 0 && sherd_world_rank(world) == 0; unit--) {
        rig_acquire(&r, unit, SHERD_BACKWARD);
        rig_release(&r, unit, SHERD_BACKWARD);
    }
    CHECK_OK(sherd_step(r.engine, NULL));
    rig_close(&r);
}

static void a_parameter_without_elements_calls_no_other_rank(void)
{
    test_world(2, rank_reaches_alone, NULL);
}

/* A gradient that may be used at any time shares its place in the pool with no other. */
static void plan_gives_the_gradient_a_place_of_its_own(void)
{
    static const rig_options OPTIONS[] = {{.stage = 2}, {.stage = 3}};
    sherd_unit_params        params;

    sherd_unit_params_init(&params);
    for (size_t o = 0; o < sizeof(OPTIONS) / sizeof(OPTIONS[0]); o++) {
        sherdi_plan *plan;
        planner      b;

        planner_open(&b);
        for (int u = 0; u < 6; u++) {
            char name[8];

            (void)snprintf(name, sizeof(name), "u%d", u);
            params.backward_uses = u == 1 || u == 4 ? SHERD_USES_ANY : 0;
            (void)planner_param(&b, planner_unit_as(&b, name, &params), 1000, 1, 0);
        }
        CHECK_OK(sherdi_model_add_read(&b.model, 4, 2)); /* the read makes unit 2 open-ended too */
        planner_settings(&b, &OPTIONS[o], 2);
        plan = planner_plan(&b, 0, 2);
        CHECK_OK(sherdi_plan_check(plan, &b.model));
        CHECK_INT(1, plan->layout.used_words);
        for (int u = 0; u < 6; u++) {
            const sherdi_plan_unit *unit = &plan->layout.units[u];

            CHECK_INT(u == 1 || u == 2 || u == 4, unit->is_open_ended);
            for (int v = 0; v < 6 && unit->is_open_ended; v++) {
                CHECK(u == v ||
                      plan->layout.units[v].transient_pool_offset +
                              plan->layout.units[v].transient_bytes <=
                          unit->transient_pool_offset ||
                      unit->transient_pool_offset + unit->transient_bytes <=
                          plan->layout.units[v].transient_pool_offset);
            }
        }
        sherdi_plan_destroy(plan);
        planner_close(&b);
    }
}

/* A chain of reads, declared from its end: unit u reads unit u + 1. The last two units read each
 * other. */
static void plan_follows_reads_to_their_end(void)
{
    static const rig_options OPTIONS = {.stage = 2};
    sherd_unit_params        params;
    sherdi_plan             *plan;
    planner                  b;

    sherd_unit_params_init(&params);
    planner_open(&b);
    for (int u = 0; u < 7; u++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "u%d", u);
        params.backward_uses = u == 2 ? SHERD_USES_ANY : 0;
        (void)planner_param(&b, planner_unit_as(&b, name, &params), 1000, 1, 0);
    }
    for (int u = 5; u >= 0; u--) {
        CHECK_OK(sherdi_model_add_read(&b.model, u, u + 1));
    }
    CHECK_OK(sherdi_model_add_read(&b.model, 6, 5));
    planner_settings(&b, &OPTIONS, 2);
    plan = planner_plan(&b, 0, 2);
    CHECK_OK(sherdi_plan_check(plan, &b.model));
    CHECK_INT(1, plan->layout.used_words);
    for (int u = 0; u < 7; u++) {
        CHECK_INT(u >= 2, plan->layout.units[u].is_open_ended);
    }
    sherdi_plan_destroy(plan);
    planner_close(&b);
}

/* The head, of any uses, reads the layer, which reads the table. Backward goes through the layer as
 * often as `visits` says; each visit adds a part of the same gradient. */
static uint64_t train_chain(sherd_world *world, const rig_options *options, int is_any, int visits)
{
    sherd_unit_params params;
    rig               r;

    rig_open(&r, world, options);
    sherd_unit_params_init(&params);
    (void)rig_unit(&r, "table");
    (void)rig_unit(&r, "layer");
    params.backward_uses = is_any ? SHERD_USES_ANY : 0;
    (void)rig_unit_as(&r, "head", &params);
    for (int u = 0; u < 3; u++) {
        static const char *const NAMES[] = {"table.w", "layer.w", "head.w"};

        (void)rig_param(&r, u, NAMES[u], 333 - 64 * (size_t)u);
    }
    for (int u = 1; u < 3; u++) {
        CHECK_OK(sherd_unit_reads(r.engine, r.units[u], r.params[u - 1].handle));
    }
    rig_seal(&r);
    for (int m = 0; m < 4; m++) {
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_touch(&r, 2, 1);
        rig_release(&r, 2, SHERD_BACKWARD);
        for (int v = 0; v < visits; v++) {
            rig_acquire(&r, 1, SHERD_BACKWARD);
            rig_touch(&r, 1, 1.0f / (float)visits);
            rig_touch(&r, 0, 1.0f / (float)visits);
            rig_release(&r, 1, SHERD_BACKWARD);
        }
        rig_acquire(&r, 0, SHERD_BACKWARD);
        rig_release(&r, 0, SHERD_BACKWARD);
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static uint64_t train_chain_as_planned(sherd_world *world, const rig_options *options)
{
    return train_chain(world, options, 0, 1);
}

/* Two halves of a number add up to it in every type. */
static uint64_t train_chain_in_halves(sherd_world *world, const rig_options *options)
{
    return train_chain(world, options, 1, 2);
}

static void what_that_reads_is_open_as_long_too(void)
{
    ways_expect_same(train_chain_as_planned, train_chain_in_halves, 3);
}

/* --------------------------------------------------------------- what is wrong -- */

static void declare_wrongly(sherd_world *world, void *raw)
{
    sherd_unit_params params;
    sherd_unit        unit;
    rig               r;

    rig_open(&r, world, raw);
    sherd_unit_params_init(&params);
    params.name          = "layer";
    params.backward_uses = 2;
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &params, &unit));
    CHECK_ERROR_SAYS("unit layer");
    CHECK_ERROR_SAYS("backward_uses is 2");
    params.backward_uses = sherd_world_rank(world) == 1 ? SHERD_USES_ANY : 0;
    (void)rig_unit_as(&r, "layer", &params);
    (void)rig_param(&r, 0, "w", 10);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("different models");
    CHECK_ERROR_SAYS("any number of backward uses");
    rig_close(&r);
}

static void ranks_that_declare_otherwise_are_refused(void)
{
    rig_options options = {.stage = 2};

    test_world(3, declare_wrongly, &options);
}

static const test_case CASES[] = {
    CASE(uses_as_listed_give_the_same_bits),
    CASE(several_uses_in_any_order_add_up),
    CASE(who_did_not_use_a_unit_counts_as_zero),
    CASE(backward_of_one_rank_alone_is_a_backward_pass),
    CASE(a_rank_without_data_may_close_the_first_window),
    CASE(evaluation_of_one_rank_alone_is_named),
    CASE(what_such_a_unit_reads_is_open_as_long),
    CASE(bound_gradients_are_taken_at_the_step),
    CASE(gradient_is_zero_once_and_kept_until_the_step),
    CASE(tiers_change_nothing),
    CASE(debug_finds_nothing),
    CASE(traffic_and_memory_are_as_planned),
    CASE(a_parameter_without_elements_calls_no_other_rank),
    CASE(plan_gives_the_gradient_a_place_of_its_own),
    CASE(plan_follows_reads_to_their_end),
    CASE(what_that_reads_is_open_as_long_too),
    CASE(ranks_that_declare_otherwise_are_refused),
};

RUN_MAIN(CASES)
