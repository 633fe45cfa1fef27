/* "sherd.unused_units": "skip": what no rank reached in a window keeps its weights, its state and
 * its share of the fingerprint, on every layout and tier; what was reached is trained as ever. */
#include "tests/engine/value_rig.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIP ", \"sherd\": {\"unused_units\": \"skip\"}"

static const char *const VALUES[] = {SHERD_MASTER, "exp_avg", "exp_avg_sq", SHERD_COMPUTE};
#define NUM_VALUES 4

/* Everything of one unit. */
typedef struct unit_values {
    float    values[RIG_PARAMS][NUM_VALUES][VALUE_RIG_ELEMS];
    uint64_t fingerprints[RIG_PARAMS];
} unit_values;

static unit_values *values_of(rig *r, int unit)
{
    unit_values *v = calloc(1, sizeof(*v));

    CHECK(v != NULL);
    for (int p = 0; p < r->num_params; p++) {
        for (int i = 0; i < NUM_VALUES && r->params[p].unit == unit; i++) {
            if (r->params[p].is_frozen && i < 3) {
                continue;
            }
            CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, VALUES[i], 0,
                                      r->params[p].elems, v->values[p][i]));
            CHECK_OK(sherd_param_fingerprint(r->engine, r->params[p].handle, &v->fingerprints[p]));
        }
    }
    return v;
}

static int values_are_equal(const unit_values *a, const unit_values *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* A window in which unit 1 has no backward. */
static sherd_step_report train_without_unit_1(rig *r, int accumulation)
{
    sherd_step_report report = {0};
    float             out[VALUE_RIG_ELEMS];

    for (int m = 0; m < accumulation; m++) {
        rig_forward(r, 0, SHERD_FORWARD);
        rig_forward(r, 1, SHERD_FORWARD);
        rig_backward(r, 0);
        if (m + 1 < accumulation) {
            (void)rig_step(r);
        }
    }
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_prepare(r->engine, &report));
    CHECK_OK(sherd_param_read(r->engine, r->params[5].handle, SHERD_GRAD, 0, 100, out));
    for (int i = 0; i < 100; i++) {
        CHECK(out[i] == 0);
    }
    CHECK_OK(sherd_step_apply(r->engine, NULL));
    CHECK_OK(sherd_step_wait(r->engine, &report));
    r->micro++;
    return report;
}

/* Two windows with all, two without unit 1, two with all; returns the values of unit 0 at the
 * end. */
static unit_values *train(sherd_world *world, const rig_options *options, int skips)
{
    int          accumulation = options->accumulation;
    unit_values *before;
    unit_values *after;
    rig          r;

    value_rig_declare(&r, world, options);
    rig_seal(&r);
    (void)rig_train(&r, 2 * accumulation);
    before = values_of(&r, 1);
    for (int i = 0; i < 2; i++) {
        sherd_step_report report = train_without_unit_1(&r, accumulation);

        CHECK_INT(1, report.was_updated);
        CHECK_INT(report.fingerprint, rig_fingerprint(&r));
    }
    after = values_of(&r, 1);
    CHECK_INT(skips, values_are_equal(before, after));
    CHECK_INT(1, rig_train(&r, 2 * accumulation).was_updated);
    free(before);
    before = values_of(&r, 1);
    CHECK(!values_are_equal(before, after));
    free(after);
    free(before);
    after = values_of(&r, 0);
    rig_close(&r);
    return after;
}

/* Without a norm that counts for all, what becomes of one unit is nothing to the other. */
static void train_both_ways(sherd_world *world, void *raw)
{
    rig_options  options = *(const rig_options *)raw;
    char         top[256];
    unit_values *zero;
    unit_values *skip;

    options.clip = 0;
    zero         = train(world, &options, 0);
    (void)snprintf(top, sizeof(top), "%s%s", options.top == NULL ? "" : options.top, SKIP);
    options.top = top;
    skip        = train(world, &options, 1);
    CHECK(values_are_equal(zero, skip));
    free(zero);
    free(skip);
}

static void unit_that_nobody_reached_stays_as_it_is(void)
{
    static const int RANKS[] = {1, 3};

    for (size_t r = 0; r < 2; r++) {
        for (int stage = 0; stage <= 3; stage++) {
            for (size_t kind = 0; kind < WAYS_NUM_KINDS; kind++) {
                rig_options options = WAYS_KINDS[kind];

                options.stage     = stage;
                options.optimizer = (stage + (int)kind) % 3 == 0 ? "Lamb" : NULL;
                test_world(RANKS[r], train_both_ways, &options);
            }
        }
    }
}

static void tiers_keep_it_too(void)
{
    for (size_t t = 1; t < value_rig_tiers(); t++) {
        const value_rig_tier *tier = &VALUE_RIG_TIERS[t];
        char                  keys[1024];

        for (int stage = tier->params != NULL ? 3 : 1; stage <= 3; stage += 2) {
            rig_options options = {.stage        = stage,
                                   .accumulation = 1 + (int)t % 2,
                                   .dtype        = SHERD_BF16,
                                   .optimizer    = t % 2 == 0 ? "Lamb" : NULL,
                                   .zero         = value_rig_keys(tier, keys)};

            test_world(2, train_both_ways, &options);
        }
    }
}

/* What a step wrote is undone, and what it did not write as well: nothing of it is lost, and
 * nothing is written for it. */
static void undo_a_step_that_skipped(sherd_world *world, void *raw)
{
    sherd_step_report full;
    sherd_step_report part;
    unit_values      *before;
    unit_values      *after;
    uint64_t          fingerprint;
    rig               r;

    value_rig_declare(&r, world, raw);
    rig_seal(&r);
    full        = rig_train(&r, 2);
    before      = values_of(&r, 1);
    fingerprint = rig_fingerprint(&r);
    part        = train_without_unit_1(&r, 1);
    CHECK(part.fingerprint != fingerprint);
    CHECK(part.nvme_written_bytes < full.nvme_written_bytes * 3 / 4);
    CHECK_OK(sherd_step_undo(r.engine));
    CHECK_INT(fingerprint, rig_fingerprint(&r));
    r.micro--;
    CHECK_INT(part.fingerprint, train_without_unit_1(&r, 1).fingerprint);
    (void)train_without_unit_1(&r, 1);
    after = values_of(&r, 1);
    CHECK(values_are_equal(before, after));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    CHECK_OK(sherd_step_undo(r.engine));
    free(after);
    after = values_of(&r, 1);
    CHECK(values_are_equal(before, after));
    free(after);
    free(before);
    rig_close(&r);
}

static void undo_goes_back_over_what_was_skipped(void)
{
    for (size_t t = 3; t < value_rig_tiers(); t++) {
        for (int stage = VALUE_RIG_TIERS[t].params != NULL ? 3 : 1; stage <= 3; stage += 2) {
            char        keys[1024];
            rig_options options = {.stage = stage, .top = SKIP};

            options.zero = value_rig_keys(&VALUE_RIG_TIERS[t], keys);
            test_world(2, undo_a_step_that_skipped, &options);
        }
    }
}

/* Backward through what is frozen alone: a step that changes nothing. */
static void update_nothing(sherd_world *world, void *raw)
{
    sherd_param_params fixed;
    uint64_t           before;
    rig                r;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    rig_open(&r, world, raw);
    (void)rig_unit(&r, "frozen");
    (void)rig_unit(&r, "trained");
    (void)rig_param_as(&r, 0, "f", 130, &fixed);
    (void)rig_param(&r, 1, "w", 200);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    before = rig_fingerprint(&r);
    for (int i = 0; i < 2; i++) {
        rig_acquire(&r, 0, SHERD_BACKWARD);
        rig_release(&r, 0, SHERD_BACKWARD);
        CHECK_INT(before, rig_step(&r).fingerprint);
    }
    CHECK(before != rig_train(&r, 1).fingerprint);
    rig_close(&r);
}

static void step_may_update_nothing(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .top = SKIP};

        test_world(2, update_nothing, &options);
    }
}

/* With uses of any number a rank that reached it is enough; bound memory stays the same bytes. */
static void reach_it_on_one_rank(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    uint64_t    before;
    uint64_t    after;
    ways_bound  memory;
    float       kept[200], now[200];
    rig         r;

    options.backward_uses = SHERD_USES_ANY;
    options.top           = SKIP;
    rig_open(&r, world, &options);
    (void)rig_param(&r, rig_unit(&r, "always"), "a", 100);
    (void)rig_param(&r, rig_unit(&r, "sometimes"), "s", 200);
    ways_bind(&r, &memory);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_param_fingerprint(r.engine, r.params[1].handle, &before));
    CHECK_OK(sherd_copy(r.engine, kept, memory.data[1], sizeof(kept)));
    rig_backward(&r, 0);
    (void)rig_step(&r);
    CHECK_OK(sherd_param_fingerprint(r.engine, r.params[1].handle, &after));
    CHECK_INT(before, after);
    CHECK_OK(sherd_copy(r.engine, now, memory.data[1], sizeof(now)));
    CHECK_BYTES_EQUAL(kept, now, sizeof(kept));
    if (sherd_world_rank(world) == 1) {
        rig_backward(&r, 1);
    }
    (void)rig_step(&r);
    CHECK_OK(sherd_param_fingerprint(r.engine, r.params[1].handle, &after));
    CHECK(before != after);
    CHECK_OK(sherd_copy(r.engine, now, memory.data[1], sizeof(now)));
    CHECK(memcmp(kept, now, sizeof(kept)) != 0);
    rig_close(&r);
    ways_unbind(&memory);
}

static void unit_that_one_rank_reached_is_updated_on_all(void)
{
    for (int stage = 0; stage <= 2; stage++) {
        rig_options options = {.stage = stage};

        test_world(3, reach_it_on_one_rank, &options);
    }
}

static const test_case CASES[] = {
    CASE(unit_that_nobody_reached_stays_as_it_is),      CASE(tiers_keep_it_too),
    CASE(undo_goes_back_over_what_was_skipped),         CASE(step_may_update_nothing),
    CASE(unit_that_one_rank_reached_is_updated_on_all),
};

RUN_MAIN(CASES)
