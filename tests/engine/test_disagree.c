/* Ranks whose loops differ: other units, other acquires, other parameters of the step. Every rank says what and
 * who, none waits for ever, and where nothing was lost all go on. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

static const rig_options STAGE[4] = {{.stage = 0}, {.stage = 1}, {.stage = 2}, {.stage = 3}};

/* --------------------------------- ranks that run other units than others -- */

/* Four units of equal sizes; rank 2 leaves out the backward of "two". */
static void skip_a_unit_on_rank_2(sherd_world *world, void *raw)
{
    static const char *const NAMES[] = {"zero", "one", "two", "three"};
    static const char *const WORDS[] = {"zero.w", "one.w", "two.w", "three.w"};
    const rig_options       *options = raw;
    int                      is_late = options->stage < 2;
    sherd_status             status  = SHERD_OK;
    uint64_t                 before;
    rig                      r;

    rig_open(&r, world, options);
    for (int u = 0; u < 4; u++) {
        (void)rig_unit(&r, NAMES[u]);
        (void)rig_param(&r, u, WORDS[u], 100);
    }
    rig_seal(&r);
    before = rig_fingerprint(&r);
    for (int u = 3; u >= 0 && status == SHERD_OK; u--) {
        if (u == 2 && sherd_world_rank(world) == 2) {
            continue;
        }
        status = sherd_unit_acquire(r.engine, r.units[u], SHERD_BACKWARD);
        if (status == SHERD_OK) {
            status = sherd_unit_release(r.engine, r.units[u], SHERD_BACKWARD);
        }
    }
    if (is_late) {
        CHECK_OK(status);
    }
    if (status == SHERD_OK) {
        status = sherd_step(r.engine, NULL);
    }
    if (is_late) {
        CHECK_STATUS(SHERD_E_STATE, status);
        CHECK_ERROR_SAYS("unit two");
        CHECK_ERROR_SAYS("rank(s) 2");
        CHECK_INT(before, rig_fingerprint(&r));
        CHECK_INT(1, rig_train(&r, 1).was_updated); /* the window was dropped, nothing else */
    } else { /* the ranks met over different units: no way on, but all know why */
        CHECK_STATUS(SHERD_E_INVAL, status);
        CHECK_ERROR_SAYS("two");
        CHECK_ERROR_SAYS("rank 2");
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_barrier(world));
    }
    rig_close(&r);
}

static void units_that_ran_on_some_ranks_only_are_an_error_everywhere(void)
{
    for (int overlap = 0; overlap <= 1; overlap++) {
        for (int stage = 0; stage <= 3; stage++) {
            rig_options options = {.stage = stage,
                                   .zero  = overlap ? ", \"overlap_comm\": true"
                                                    : ", \"overlap_comm\": false"};

            test_world(3, skip_a_unit_on_rank_2, &options);
        }
    }
}

/* A trainer that looks at the status of the step alone. */
static void skip_a_unit_and_look_at_the_step(sherd_world *world, void *raw)
{
    rig r;

    rig_open(&r, world, raw);
    for (int u = 0; u < 4; u++) {
        static const char *const NAMES[] = {"zero", "one", "two", "three"};

        (void)rig_unit(&r, NAMES[u]);
        (void)rig_param(&r, u, NAMES[u], 100);
    }
    rig_seal(&r);
    for (int u = 3; u >= 0; u--) {
        if (u != 2 || sherd_world_rank(world) != 2) {
            sherd_status acquired = sherd_unit_acquire(r.engine, r.units[u], SHERD_BACKWARD);
            sherd_status released = sherd_unit_release(r.engine, r.units[u], SHERD_BACKWARD);

            CHECK(acquired == SHERD_OK || released != SHERD_OK);
        }
    }
    CHECK_STATUS(SHERD_E_INVAL, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("ranks disagree");
    CHECK_ERROR_SAYS("two");
    CHECK_ERROR_SAYS("rank 2");
    rig_close(&r);
}

static void step_after_ranks_disagreed_says_the_first_error_on_every_rank(void)
{
    for (int overlap = 0; overlap <= 1; overlap++) {
        for (int stage = 2; stage <= 3; stage++) {
            rig_options options = {.stage = stage,
                                   .zero  = overlap ? ", \"overlap_comm\": true"
                                                    : ", \"overlap_comm\": false"};

            test_world(3, skip_a_unit_and_look_at_the_step, &options);
        }
    }
}

static void apply_other_params_on_rank_1(sherd_world *world, void *raw)
{
    sherd_step_params params;
    rig               r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", 300);
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    sherd_step_params_init(&params);
    params.overflow = sherd_world_rank(world) == 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("rank 1 was given other sherd_step_params");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, 0, SHERD_FORWARD));
    CHECK_ERROR_SAYS("can only be destroyed");
    CHECK_ERROR_SAYS("sherd_step_params");
    rig_close(&r);
    CHECK_OK(sherd_world_barrier(world));
}

/* Weights differ by then: the engine is lost, but says so instead of training on. */
static void step_params_that_differ_between_ranks_are_an_error(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        test_world(2, apply_other_params_on_rank_1, (void *)(uintptr_t)&STAGE[stage]);
    }
}

static const test_case CASES[] = {
    CASE(units_that_ran_on_some_ranks_only_are_an_error_everywhere),
    CASE(step_after_ranks_disagreed_says_the_first_error_on_every_rank),
    CASE(step_params_that_differ_between_ranks_are_an_error),
};

RUN_MAIN(CASES)
