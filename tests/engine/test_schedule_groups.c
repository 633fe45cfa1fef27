/* Schedules in an engine with parameter groups: a list has a number for each, and momenta reach the
 * update. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <math.h>

/* Two groups of a unit each. In `group` what the second differs in; the default group has no
 * parameter. */
static void grouped_open(rig *r, sherd_world *world, const rig_options *options,
                         const sherd_group_params *groups)
{
    rig_open(r, world, options);
    for (int g = 0; g < 2; g++) {
        sherd_param_params param;
        sherd_group        group;

        CHECK_OK(sherd_group_add(r->engine, &groups[g], &group));
        sherd_param_params_init(&param);
        param.group = group;
        (void)rig_param_as(r, rig_unit(r, g == 0 ? "a" : "b"), g == 0 ? "a.w" : "b.w", 500, &param);
    }
}

static uint64_t trained(sherd_world *world, const char *top, const sherd_group_params *groups,
                        double *lr_out)
{
    rig_options options = {.stage = 2, .clip = 1, .top = top};
    uint64_t    fingerprint;
    rig         r;

    grouped_open(&r, world, &options, groups);
    rig_seal(&r);
    *lr_out     = rig_train(&r, 3).lr;
    fingerprint = rig_fingerprint(&r);
    rig_close(&r);
    return fingerprint;
}

#define SCHEDULE(type, params) ", \"scheduler\": {\"type\": \"" type "\", \"params\": {" params "}}"

#define CYCLE(lr, momentum)                                                                        \
    ", \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": " lr                 \
    ", \"cycle_max_lr\": " lr ", \"cycle_min_mom\": " momentum ", \"cycle_max_mom\": " momentum    \
    "}}"

/* A cycle without a height is what the groups themselves can say. */
static void lists_are_the_groups_own(sherd_world *world, void *ctx)
{
    sherd_group_params plain[2], said[2];
    double             lr;
    uint64_t           own;

    (void)ctx;
    for (int g = 0; g < 2; g++) {
        sherd_group_params_init(&plain[g]);
        sherd_group_params_init(&said[g]);
        plain[g].name = said[g].name = g == 0 ? "first" : "second";
        said[g].lr                   = g == 0 ? 0.03 : 0.01;
        said[g].beta1                = g == 0 ? 0.7 : 0.6;
        said[g].beta2                = 0.99;
    }
    own = trained(world, "", said, &lr);
    /* The default group is empty: the report has the rate of the first of these. */
    CHECK_CLOSE(0.03, lr, 0);
    CHECK_INT(own, trained(world, CYCLE("[0.03, 0.01]", "[0.7, 0.6]"), plain, &lr));
    CHECK_CLOSE(0.03, lr, 0);
    CHECK(own != trained(world, CYCLE("[0.03, 0.01]", "0.7"), plain, &lr));
    CHECK(own != trained(world, CYCLE("[0.01, 0.03]", "[0.7, 0.6]"), plain, &lr));
}

static void schedule_lists_count_by_group(void)
{
    test_world(2, lists_are_the_groups_own, NULL);
}

/* Groups that the configuration fills out of the default one, which nothing is left in. */
static uint64_t trained_by_names(sherd_world *world, const char *top)
{
    rig_options options = {.stage = 2, .clip = 1, .top = top};
    uint64_t    fingerprint;
    rig         r;

    rig_open(&r, world, &options);
    (void)rig_param(&r, rig_unit(&r, "a"), "a.w", 500);
    (void)rig_param(&r, rig_unit(&r, "b"), "b.w", 500);
    rig_seal(&r);
    (void)rig_train(&r, 3);
    fingerprint = rig_fingerprint(&r);
    rig_close(&r);
    return fingerprint;
}

#define NAMED(a, b)                                                                                \
    ", \"sherd\": {\"groups\": [{\"name\": \"one\", \"matching\": [\"a*\"]" a                      \
    "}, {\"name\": \"two\", \"matching\": [\"b*\"]" b "}]}"

static void lists_of_named_groups(sherd_world *world, void *ctx)
{
    uint64_t own =
        trained_by_names(world, NAMED(", \"params\": {\"lr\": 0.03, \"betas\": [0.7, 0.99]}",
                                      ", \"params\": {\"lr\": 0.01, \"betas\": [0.6, 0.99]}"));

    (void)ctx;
    CHECK_INT(own, trained_by_names(world, NAMED("", "") CYCLE("[0.03, 0.01]", "[0.7, 0.6]")));
}

static void schedule_lists_count_groups_that_are_filled_by_name(void)
{
    test_world(2, lists_of_named_groups, NULL);
}

/* The default group counts where a trainable parameter is in it. */
static void lists_of_a_wrong_length_are_refused(sherd_world *world, void *ctx)
{
    sherd_group_params groups[2];
    rig_options        options = {.stage = 1, .top = CYCLE("[0.03, 0.01]", "0.7")};
    rig                r;

    (void)ctx;
    sherd_group_params_init(&groups[0]);
    sherd_group_params_init(&groups[1]);
    grouped_open(&r, world, &options, groups);
    (void)rig_param(&r, 0, "in the default group", 10);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("scheduler.params.cycle_min_lr is a list of length 2, but the number of "
                     "parameter groups is 3");
    rig_close(&r);
}

static void schedule_list_of_a_wrong_length_is_refused(void)
{
    test_world(1, lists_of_a_wrong_length_are_refused, NULL);
}

/* The rates are those that the updates have, and a schedule with a rate of its own takes no notice
 * of the group's. */
static void rates_of_groups(sherd_world *world, void *ctx)
{
    static const struct {
        const char *top;
        double      want[2]; /* of the two groups in update 3 */
    } ROWS[] = {
        {"", {0.03, 0.01}},
        {SCHEDULE("constant", ""), {0.03, 0.01}},
        {SCHEDULE("constant_with_warmup", "\"warmup_num_steps\": 4"), {0.015, 0.005}},
        {SCHEDULE("WarmupLR", "\"warmup_max_lr\": 0.5, \"warmup_num_steps\": 2"), {0.5, 0.5}},
        {SCHEDULE("WarmupLR", "\"warmup_max_lr\": [0.5, 0.25], \"warmup_num_steps\": 2"),
         {0.5, 0.25}},
    };

    (void)ctx;
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        rig_options        options = {.stage = 1, .top = ROWS[i].top};
        sherd_group_params groups[2];
        rig                r;

        for (int g = 0; g < 2; g++) {
            sherd_group_params_init(&groups[g]);
            groups[g].lr = g == 0 ? 0.03 : 0.01;
        }
        grouped_open(&r, world, &options, groups);
        rig_seal(&r);
        CHECK_CLOSE(ROWS[i].want[0], rig_train(&r, 3).lr, 1e-15);
        for (int g = 0; g < 2; g++) {
            CHECK_CLOSE(ROWS[i].want[g], sherd_group_lr(r.engine, g + 1, 3), 1e-15);
        }
        CHECK(isnan(sherd_group_lr(r.engine, 3, 3)) && isnan(sherd_group_lr(r.engine, -1, 3)));
        CHECK(isnan(sherd_group_lr(r.engine, 0, 0)));
        rig_close(&r);
    }
}

static void rates_of_groups_are_those_of_the_updates(void)
{
    test_world(2, rates_of_groups, NULL);
}

/* A momentum that is none of the betas stays: a cycle about nothing but momenta changes what has
 * betas, and not the others. */
static void momentum_under_a_cycle(sherd_world *world, void *ctx)
{
    static const struct {
        const char *optimizer, *params;
        int         has_betas;
    } ROWS[] = {
        {"SGD", ", \"momentum\": 0.9", 0}, {"Muon", "", 0}, {"Lion", "", 1}, {"AdamW", "", 1}};

    (void)ctx;
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        uint64_t fingerprints[2];

        for (int has_cycle = 0; has_cycle < 2; has_cycle++) {
            rig_options options = {.stage        = 2,
                                   .clip         = 1,
                                   .optimizer    = ROWS[i].optimizer,
                                   .params       = ROWS[i].params,
                                   .has_matrices = 1,
                                   .top          = has_cycle ? CYCLE("0.01", "0.7") : ""};
            rig         r;

            rig_open(&r, world, &options);
            (void)rig_param(&r, rig_unit(&r, "a"), "a.w", 500);
            rig_seal(&r);
            (void)rig_train(&r, 3);
            fingerprints[has_cycle] = rig_fingerprint(&r);
            rig_close(&r);
        }
        CHECK_INT(ROWS[i].has_betas, fingerprints[0] != fingerprints[1]);
    }
}

static void schedule_cycle_leaves_a_momentum_that_is_no_beta(void)
{
    test_world(2, momentum_under_a_cycle, NULL);
}

/* Groups 1 and 2 have one parameter each, which is frozen where `frozen` has the group's bit; the
 * default group has none. */
static double reported_rate(sherd_world *world, int stage, unsigned frozen)
{
    rig_options       options = {.stage = stage, .accumulation = 2};
    sherd_step_report first, last;
    rig               r;

    rig_open(&r, world, &options);
    for (int g = 1; g <= 2; g++) {
        sherd_group_params group;
        sherd_param_params param;
        sherd_group        added;

        sherd_group_params_init(&group);
        group.name = g == 1 ? "head" : "trunk";
        group.lr   = 0.1 * (g + 1);
        CHECK_OK(sherd_group_add(r.engine, &group, &added));
        sherd_param_params_init(&param);
        param.group  = added;
        param.frozen = frozen >> g & 1;
        (void)rig_param_as(&r, rig_unit(&r, g == 1 ? "b" : "a"), g == 1 ? "b.w" : "a.w", 100,
                           &param);
    }
    rig_seal(&r);
    first = rig_train(&r, 1); /* the window is not over */
    last  = rig_train(&r, 1);
    CHECK_CLOSE(first.lr, last.lr, 0);
    rig_close(&r);
    return last.lr;
}

static void rates_of_the_first_that_trains(sherd_world *world, void *ctx)
{
    (void)ctx;
    for (int stage = 0; stage <= 3; stage++) {
        CHECK_CLOSE(0.2, reported_rate(world, stage, 0), 1e-15);
        CHECK_CLOSE(0.1 * 3, reported_rate(world, stage, 1u << 1), 1e-15);
        CHECK_CLOSE(0.2, reported_rate(world, stage, 1u << 2), 1e-15);
    }
}

static void report_has_the_rate_of_the_first_group_that_trains_something(void)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        test_world(ranks, rates_of_the_first_that_trains, NULL);
    }
}

static const test_case CASES[] = {
    CASE(report_has_the_rate_of_the_first_group_that_trains_something),
    CASE(schedule_lists_count_by_group),
    CASE(schedule_lists_count_groups_that_are_filled_by_name),
    CASE(schedule_list_of_a_wrong_length_is_refused),
    CASE(schedule_cycle_leaves_a_momentum_that_is_no_beta),
    CASE(rates_of_groups_are_those_of_the_updates),
};

RUN_MAIN(CASES)
