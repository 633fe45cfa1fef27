/* Ranks whose loops differ: other units, other acquires, other parameters of the step. Every rank
 * reports what differs and on which rank, none waits for ever, and where nothing was lost all go
 * on. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>

static const rig_options STAGE[4] = {{.stage = 0}, {.stage = 1}, {.stage = 2}, {.stage = 3}};

/* --------------------------------- ranks that run other units than others -- */

/* Trains four units of equal sizes; rank 2 leaves out the backward of "two". */
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
        CHECK_INT(1, rig_train(&r, 1).was_updated); /* only the window was dropped */
    } else {
        /* the ranks met with different units, so they cannot go on, but all know why */
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

/* The same for a trainer that checks only the status of the step. */
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

/* --------------------------------- acquires that only some ranks make -- */

static void disagree_open(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    (void)rig_unit(r, "table");
    (void)rig_unit(r, "layer");
    (void)rig_unit(r, "head");
    (void)rig_param(r, 0, "table.w", 5000);
    (void)rig_param(r, 1, "layer.w", 700);
    (void)rig_param(r, 2, "head.w", 900);
    rig_seal(r);
}

static void evaluate(rig *r)
{
    for (int u = 1; u < r->num_units; u++) {
        rig_forward(r, u, SHERD_EVAL);
    }
}

/* Rank 0 evaluates alone after the first step, on a transport on which that happens to work. */
static void evaluate_on_rank_0_alone(sherd_world *world, void *raw)
{
    rig r;

    disagree_open(&r, world, raw);
    (void)rig_train(&r, 1);
    evaluate(&r); /* all ranks evaluate, so there is no error */
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    if (sherd_world_rank(world) == 0) {
        evaluate(&r);
    }
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("unit layer");
    CHECK_ERROR_SAYS("rank 0 acquired it 1 time(s) for eval");
    CHECK_ERROR_SAYS("rank(s) 1 2");
    CHECK_INT(1, rig_train(&r, 1).was_updated); /* only the window was dropped */
    if (sherd_world_rank(world) == 2) {
        rig_forward(&r, 0, SHERD_FORWARD);
    }
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("unit table");
    CHECK_ERROR_SAYS("forward");
    CHECK_ERROR_SAYS("rank(s) 2");
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    if (sherd_world_rank(world) == 0) {
        evaluate(&r); /* no rank waits for it at the end either */
    }
    rig_close(&r);
}

static void acquire_on_some_ranks_alone_is_named_at_the_step(void)
{
    for (int overlap = 0; overlap <= 1; overlap++) {
        for (int stage = 0; stage <= 3; stage++) {
            rig_options options = {.stage = stage,
                                   .zero  = overlap ? ", \"overlap_comm\": true"
                                                    : ", \"overlap_comm\": false"};

            test_world(3, evaluate_on_rank_0_alone, &options);
        }
    }
}

/* Parameters on the host are gathered by calls in which the ranks meet. A call of rank 0 meets the
 * others' call for another unit. */
static void evaluate_on_rank_0_alone_where_gathers_meet(sherd_world *world, void *raw)
{
    sherd_status status = SHERD_OK;
    rig          r;

    disagree_open(&r, world, raw);
    if (sherd_world_rank(world) == 0) {
        for (int u = 1; u < r.num_units && status == SHERD_OK; u++) {
            status = sherd_unit_acquire(r.engine, r.units[u], SHERD_EVAL);
            if (status == SHERD_OK) {
                status = sherd_unit_release(r.engine, r.units[u], SHERD_EVAL);
            }
        }
    }
    for (int u = 0; u < r.num_units && status == SHERD_OK; u++) {
        status = sherd_unit_acquire(r.engine, r.units[u], SHERD_FORWARD);
        if (status == SHERD_OK) {
            status = sherd_unit_release(r.engine, r.units[u], SHERD_FORWARD);
        }
    }
    CHECK_STATUS(SHERD_E_INVAL, status);
    CHECK_ERROR_SAYS("all-gather");
    CHECK_ERROR_SAYS("table");
    CHECK_ERROR_SAYS("layer");
    CHECK_ERROR_SAYS("rank 0");
    rig_close(&r);
}

/* The others have nothing more to do. */
static void evaluate_on_rank_0_alone_at_the_end(sherd_world *world, void *raw)
{
    sherd_status status;
    rig          r;

    disagree_open(&r, world, raw);
    (void)rig_train(&r, 1);
    if (sherd_world_rank(world) == 0) {
        status = sherd_unit_acquire(r.engine, r.units[1], SHERD_EVAL);
        CHECK_STATUS(SHERD_E_PEER_LOST, status);
        CHECK_ERROR_SAYS("ended its part (sherd_world_destroy)");
    }
    rig_close(&r);
}

static void acquire_on_some_ranks_alone_is_named_where_gathers_meet(void)
{
    static const char *const ZEROS[] = {
        ", \"overlap_comm\": true, \"offload_param\": {\"device\": \"cpu\"}",
        ", \"overlap_comm\": false, \"offload_param\": {\"device\": \"cpu\"}",
    };

    for (int z = 0; z < 2; z++) {
        rig_options options = {.stage = 3, .zero = ZEROS[z]};

        test_world(2, evaluate_on_rank_0_alone_where_gathers_meet, &options);
        test_world(2, evaluate_on_rank_0_alone_at_the_end, &options);
    }
}

/* --------------------------------------------------- parameters of the step -- */

static void prepared(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    (void)rig_unit(r, "unit");
    (void)rig_param(r, 0, "w", 300);
    rig_seal(r);
    rig_micro_batch(r);
    CHECK_OK(sherd_step_prepare(r->engine, NULL));
}

static void apply_other_params_on_rank_1(sherd_world *world, void *raw)
{
    sherd_step_params params;
    sherd_step_report report;
    uint64_t          fingerprint;
    rig               r;

    prepared(&r, world, raw);
    sherd_step_params_init(&params);
    params.overflow = sherd_world_rank(world) == 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    CHECK_ERROR_SAYS("rank 1 was given other sherd_step_params");
    params.overflow  = 0;
    params.is_queued = sherd_world_rank(world) == 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    params.is_queued = 0;
    params.grad_norm = 1 + sherd_world_rank(world);
    CHECK_STATUS(SHERD_E_INVAL, sherd_step_apply(r.engine, &params));
    params.grad_norm = 2;
    CHECK_OK(sherd_step_apply(r.engine, &params));
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r.engine, &report));
    CHECK(report.was_updated);
    CHECK_OK(sherd_engine_fingerprint(r.engine, &fingerprint));
    CHECK_INT(report.fingerprint, fingerprint);
    rig_close(&r);
    CHECK_OK(sherd_world_barrier(world));
}

/* Nothing is written before the ranks have compared their arguments, so a call with the same ones
 * can follow. */
static void step_params_that_differ_between_ranks_are_an_error(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .clip = 1};

        test_world(2, apply_other_params_on_rank_1, &options);
    }
}

/* Rank 1 gets a bad value, and discards. Rank 0 waits in apply: it is notified, and discards
 * too. */
static void discard_on_rank_1(sherd_world *world, void *raw)
{
    sherd_step_params params;
    rig               r;

    prepared(&r, world, raw);
    sherd_step_params_init(&params);
    params.clip_coefficient = sherd_world_rank(world) == 1 ? -1 : 1;
    CHECK_STATUS(sherd_world_rank(world) == 1 ? SHERD_E_INVAL : SHERD_E_STATE,
                 sherd_step_apply(r.engine, &params));
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK(rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void a_rank_that_discards_where_another_applies_loses_nothing(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        test_world(2, discard_on_rank_1, (void *)(uintptr_t)&STAGE[stage]);
    }
}

/* Rank 0 alone saves, where rank 1 comes to its step: both messages name the save. */
static void save_on_rank_0_alone(sherd_world *world, void *raw)
{
    char         dir[256];
    sherd_status status;
    rig          r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", 300);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    if (sherd_world_rank(world) == 0) {
        (void)snprintf(dir, sizeof(dir), "%s/alone", test_scratch());
        status = sherd_checkpoint_save(r.engine, dir, "one", NULL);
    } else {
        status = sherd_unit_acquire(r.engine, 0, SHERD_FORWARD);
        for (int i = 0; i < 2 && status == SHERD_OK; i++) { /* a gather need not meet */
            status = i == 0 ? sherd_unit_release(r.engine, 0, SHERD_FORWARD)
                            : sherd_step(r.engine, NULL);
        }
    }
    CHECK_STATUS(SHERD_E_INVAL, status);
    CHECK_ERROR_SAYS("of sherd_checkpoint_save");
    CHECK_ERROR_SAYS("this world is lost");
    rig_close(&r);
}

static void a_save_on_one_rank_alone_is_named(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        test_world(2, save_on_rank_0_alone, (void *)(uintptr_t)&STAGE[stage]);
    }
}

/* --------------------------------------------- a loader that ends early ---- */

typedef struct early {
    rig_options options;
    int         has_left; /* rank 1 ends then; else it comes to a barrier */
} early;

/* Rank 1 has one batch less. The unit is called as a list of layers calls it. */
static void loader_ends_early(sherd_world *world, void *raw)
{
    const early *e      = raw;
    int          rank   = sherd_world_rank(world);
    sherd_status status = SHERD_OK;
    rig          r;

    rig_open(&r, world, &e->options);
    (void)rig_unit(&r, "2");
    (void)rig_param(&r, 0, "2.weight", 100);
    rig_seal(&r);
    for (int batch = 0; batch < 2 - rank && status == SHERD_OK; batch++) {
        status = sherd_unit_acquire(r.engine, r.units[0], SHERD_BACKWARD);
        if (status == SHERD_OK) {
            status = sherd_unit_release(r.engine, r.units[0], SHERD_BACKWARD);
        }
        if (status == SHERD_OK) {
            status = sherd_step(r.engine, NULL);
        }
    }
    if (rank == 1 && !e->has_left) {
        status = sherd_world_barrier(world);
    }
    if (!e->has_left) {
        CHECK_STATUS(SHERD_E_INVAL, status);
        CHECK_ERROR_SAYS("sherd_unit_release (reduce-scatter of ");
        CHECK_ERROR_SAYS(" bytes of unit \"2\")");
        CHECK_ERROR_SAYS("sherd_world_barrier (barrier of 0 bytes)");
        CHECK_ERROR_SAYS("a data loader that ends earlier on one rank");
    } else if (rank == 0) {
        CHECK_STATUS(SHERD_E_PEER_LOST, status);
        CHECK_ERROR_SAYS("rank 1 ended its part");
        CHECK_ERROR_SAYS("waited for it in sherd_unit_release");
        CHECK_ERROR_SAYS("a data loader that ends earlier on one rank");
    }
    rig_close(&r);
}

static void a_loader_that_ends_early_is_named_with_unit_and_calls(void)
{
    for (int i = 0; i < 4; i++) {
        early e = {
            .options  = {.stage = 2,
                         .zero  = i & 1 ? ", \"overlap_comm\": true" : ", \"overlap_comm\": false"},
            .has_left = i >> 1};

        test_world(2, loader_ends_early, &e);
    }
}

/* ------------------------------------------- ranks that end a window differently -- */

static sherd_status window_end(rig *r, int call)
{
    return call == 0   ? sherd_step(r->engine, NULL)
           : call == 1 ? sherd_step_queue(r->engine)
                       : sherd_step_prepare(r->engine, NULL);
}

static void end_differently(sherd_world *world, void *raw)
{
    static const char *const NAMES[] = {"sherd_step,", "sherd_step_queue,", "sherd_step_prepare,"};
    const rig_options       *options = raw;
    uint64_t                 before;
    rig                      r;

    rig_open(&r, world, options);
    rig_three(&r, 300);
    rig_seal(&r);
    before = rig_fingerprint(&r);
    for (int call = 0; call < 3; call++) {
        int mine = sherd_world_rank(world) == 2 ? (call + 1) % 3 : call;

        rig_micro_batch(&r);
        CHECK_STATUS(SHERD_E_STATE, window_end(&r, mine));
        CHECK_ERROR_SAYS("rank 0 ends this window by");
        CHECK_ERROR_SAYS(NAMES[call]);
        CHECK_ERROR_SAYS("rank 2 by");
    }
    CHECK_INT(before, rig_fingerprint(&r));
    CHECK_INT(1, rig_train(&r, 1).was_updated); /* only the windows were dropped */
    rig_close(&r);
}

static void ranks_that_end_a_window_by_other_calls_are_an_error_at_once(void)
{
    rig_options options = {.stage = 1, .zero = ", \"offload_optimizer\": {\"device\": \"cpu\"}"};

    test_world(3, end_differently, &options);
}

static const test_case CASES[] = {
    CASE(ranks_that_end_a_window_by_other_calls_are_an_error_at_once),
    CASE(units_that_ran_on_some_ranks_only_are_an_error_everywhere),
    CASE(step_after_ranks_disagreed_says_the_first_error_on_every_rank),
    CASE(acquire_on_some_ranks_alone_is_named_at_the_step),
    CASE(acquire_on_some_ranks_alone_is_named_where_gathers_meet),
    CASE(step_params_that_differ_between_ranks_are_an_error),
    CASE(a_rank_that_discards_where_another_applies_loses_nothing),
    CASE(a_save_on_one_rank_alone_is_named),
    CASE(a_loader_that_ends_early_is_named_with_unit_and_calls),
};

RUN_MAIN(CASES)
