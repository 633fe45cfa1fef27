/* What a trainer may do between seal and destroy, on every stage: the same training done in two ways
 * must give the same bits, and what is promised about gradients, windows and overflows must hold. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include "kernels/formulas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A way of training: declares, trains, leaves the fingerprint. */
typedef uint64_t (*way_fn)(sherd_world *world, const rig_options *options);

typedef struct ways {
    way_fn      one, other;
    rig_options options;
} ways;

static void train_in_two_ways(sherd_world *world, void *raw)
{
    const ways *w    = raw;
    uint64_t    want = w->one(world, &w->options);

    CHECK_INT(want, w->other(world, &w->options));
}

static const int RANKS[] = {1, 2, 3};

/* The kinds of training that both ways are done in. */
static const rig_options KINDS[] = {
    {.accumulation = 1, .dtype = SHERD_F32, .clip = 1, .zero = ", \"overlap_comm\": false"},
    {.accumulation = 1, .dtype = SHERD_BF16, .clip = 1, .zero = ", \"overlap_comm\": true"},
    {.accumulation = 2, .dtype = SHERD_F32, .clip = 1, .zero = ", \"overlap_comm\": false"},
    {.accumulation = 2, .dtype = SHERD_BF16, .clip = 1, .zero = ", \"overlap_comm\": true"},
    {.accumulation = 2, .dtype = SHERD_BF16, .clip = 1, .top = ", \"deterministic\": true"},
};

/* On all stages up to `last_stage`, 1 to 3 ranks. */
static void expect_same(way_fn one, way_fn other, int last_stage)
{
    for (size_t r = 0; r < sizeof(RANKS) / sizeof(RANKS[0]); r++) {
        for (int stage = 0; stage <= last_stage; stage++) {
            for (size_t kind = 0; kind < sizeof(KINDS) / sizeof(KINDS[0]); kind++) {
                ways w = {one, other, KINDS[kind]};

                w.options.stage = stage;
                test_world(RANKS[r], train_in_two_ways, &w);
            }
        }
    }
}

/* On every stage, with so many ranks. */
static void on_every_stage(int world_size, void (*body)(sherd_world *world, void *ctx))
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage};

        test_world(world_size, body, &options);
    }
}

/* ---------------------------------------------- a parameter used twice ---- */

/* Embedding, a layer, a head. */
static void declare_tied(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    (void)rig_unit(r, "embedding");
    (void)rig_unit(r, "layer");
    (void)rig_unit(r, "head");
    (void)rig_param(r, 0, "embedding.w", 333);
    (void)rig_param(r, 1, "layer.w", 129);
    (void)rig_param(r, 2, "head.w", 65);
}

static uint64_t close_with_fingerprint(rig *r, int64_t steps)
{
    uint64_t          fingerprint = rig_fingerprint(r);
    sherd_step_report report;

    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r->engine, &report));
    CHECK_INT(steps, report.step);
    CHECK_INT(fingerprint, report.fingerprint);
    rig_close(r);
    return fingerprint;
}

/* The head reads the embedding. */
static uint64_t train_tied_by_reading(sherd_world *world, const rig_options *options)
{
    rig r;

    declare_tied(&r, world, options);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle)); /* twice is once */
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        rig_forward(&r, 0, SHERD_FORWARD);
        rig_forward(&r, 1, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_FORWARD);
        (void)rig_read(&r, 0);
        rig_release(&r, 2, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_touch(&r, 2, 1);
        rig_touch(&r, 0, 0.5f);
        rig_release(&r, 2, SHERD_BACKWARD);
        rig_backward(&r, 1);
        rig_backward(&r, 0);
        (void)rig_step(&r);
    }
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

/* The embedding comes twice in each pass. */
static uint64_t train_tied_by_acquiring_twice(sherd_world *world, const rig_options *options)
{
    static const int FORWARD[]  = {0, 1, 0, 2};
    static const int BACKWARD[] = {2, 0, 1, 0};
    rig              r;

    declare_tied(&r, world, options);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[FORWARD[i]]));
        CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[BACKWARD[i]]));
    }
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 4; i++) {
            rig_forward(&r, FORWARD[i], SHERD_FORWARD);
        }
        rig_backward(&r, 2);
        rig_acquire(&r, 0, SHERD_BACKWARD);
        rig_touch(&r, 0, 0.5f);
        rig_release(&r, 0, SHERD_BACKWARD);
        rig_backward(&r, 1);
        rig_backward(&r, 0);
        (void)rig_step(&r);
    }
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

/* Head and embedding are held at once, and the reader goes first. */
static uint64_t train_tied_nested(sherd_world *world, const rig_options *options)
{
    rig r;

    declare_tied(&r, world, options);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        rig_acquire(&r, 0, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_FORWARD);
        rig_release(&r, 0, SHERD_FORWARD);
        (void)rig_read(&r, 0); /* the head's */
        rig_release(&r, 2, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_acquire(&r, 0, SHERD_BACKWARD);
        rig_touch(&r, 2, 1);
        rig_touch(&r, 0, 0.5f);
        rig_release(&r, 2, SHERD_BACKWARD);
        rig_touch(&r, 0, 1);
        rig_release(&r, 0, SHERD_BACKWARD);
        rig_backward(&r, 1);
        (void)rig_step(&r);
    }
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

static void tied_by_reading_equals_acquired_twice(void)
{
    expect_same(train_tied_by_reading, train_tied_by_acquiring_twice, 3);
}

static void tied_nested_equals_tied_in_turn(void)
{
    expect_same(train_tied_by_reading, train_tied_nested, 3);
}

/* ------------------------------------------------------ orders of passes -- */

static void declare_layers(rig *r, sherd_world *world, const rig_options *options)
{
    static const char *const UNITS[]  = {"zero", "one", "two", "three"};
    static const char *const WIDE[]   = {"zero.w", "one.w", "two.w", "three.w"};
    static const char *const NARROW[] = {"zero.b", "one.b", "two.b", "three.b"};
    sherd_param_params       fixed;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    rig_open(r, world, options);
    for (int u = 0; u < 4; u++) {
        (void)rig_unit(r, UNITS[u]);
        (void)rig_param(r, u, WIDE[u], 150 + 50 * (size_t)u);
        (void)rig_param(r, u, NARROW[u], 7);
    }
    (void)rig_param_as(r, 1, "one.fixed", 77, &fixed);
}

static uint64_t train_as_planned(sherd_world *world, const rig_options *options)
{
    rig r;

    declare_layers(&r, world, options);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

/* Forward again before each backward, or inside it. */
static uint64_t train_recomputing(sherd_world *world, const rig_options *options, int is_inside)
{
    rig r;

    declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        for (int u = 0; u < 4; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        for (int u = 3; u >= 0; u--) {
            if (!is_inside) {
                rig_forward(&r, u, SHERD_FORWARD);
                rig_backward(&r, u);
                continue;
            }
            rig_acquire(&r, u, SHERD_BACKWARD);
            rig_forward(&r, u, SHERD_FORWARD);
            rig_touch(&r, 2 * u, 1);
            rig_touch(&r, 2 * u + 1, 1);
            rig_release(&r, u, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

static uint64_t train_recomputing_before(sherd_world *world, const rig_options *options)
{
    return train_recomputing(world, options, 0);
}

static uint64_t train_recomputing_inside(sherd_world *world, const rig_options *options)
{
    return train_recomputing(world, options, 1);
}

static void recomputation_before_backward_changes_nothing(void)
{
    expect_same(train_as_planned, train_recomputing_before, 3);
}

static void recomputation_inside_backward_changes_nothing(void)
{
    expect_same(train_as_planned, train_recomputing_inside, 3);
}

/* EVAL between micro-batches, inside forward and backward, while others are held. */
static uint64_t train_with_eval(sherd_world *world, const rig_options *options)
{
    rig r;

    declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        rig_forward(&r, 0, SHERD_FORWARD);
        for (int pass = 0; pass < 2 * k; pass++) {
            for (int u = 0; u < 4; u++) {
                rig_forward(&r, u, SHERD_EVAL);
            }
        }
        for (int u = 1; u < 4; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        rig_backward(&r, 3);
        rig_forward(&r, 1, SHERD_EVAL);
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_forward(&r, 2, SHERD_EVAL);
        rig_touch(&r, 4, 1);
        rig_touch(&r, 5, 1);
        rig_release(&r, 2, SHERD_BACKWARD);
        rig_backward(&r, 1);
        rig_backward(&r, 0);
        (void)rig_step(&r);
        rig_forward(&r, 3, SHERD_EVAL);
    }
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

static void eval_anywhere_changes_nothing(void)
{
    expect_same(train_as_planned, train_with_eval, 3);
}

/* Another order every time, the same on all ranks. */
static uint64_t train_off_the_plan(sherd_world *world, const rig_options *options)
{
    uint64_t state = 11;
    rig      r;

    declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        int order[4] = {0, 1, 2, 3};

        for (int i = 3; i > 0; i--) {
            int j    = (int)(test_random(&state) % (uint64_t)(i + 1));
            int swap = order[i];

            order[i] = order[j];
            order[j] = swap;
        }
        for (int i = 0; i < 4; i++) {
            rig_forward(&r, (int)(test_random(&state) % 4), SHERD_FORWARD);
            rig_forward(&r, order[3 - i], SHERD_FORWARD);
        }
        for (int i = 0; i < 4; i++) {
            rig_backward(&r, order[i]);
        }
        (void)rig_step(&r);
    }
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

static void orders_off_the_plan_change_nothing(void)
{
    expect_same(train_as_planned, train_off_the_plan, 3);
}

/* Passes listed in part: what they leave out works off the plan. */
static uint64_t train_with_passes_in_part(sherd_world *world, const rig_options *options)
{
    rig r;

    declare_layers(&r, world, options);
    CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[1]));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[3]));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[1]));
    rig_seal(&r);
    (void)rig_train(&r, 4);
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

static void passes_listed_in_part_change_nothing(void)
{
    expect_same(train_as_planned, train_with_passes_in_part, 3);
}

/* Off the plan, units that were gathered ahead may split the room that a reader and what it reads need
 * together: any single acquire must find room all the same. */
static void acquire_anything(sherd_world *world, void *raw)
{
    static const char *const UNITS[]  = {"a", "b", "c", "d", "e", "f"};
    static const char *const PARAMS[] = {"a.w", "b.w", "c.w", "d.w", "e.w", "f.w"};
    uint64_t                 state    = *(const uint64_t *)raw;
    char                     zero[160];
    rig_options              options = {.stage = 3, .zero = zero};
    rig                      r;

    (void)snprintf(zero, sizeof(zero),
                   ", \"stage3_prefetch_bucket_size\": %d, \"stage3_max_reuse_distance\": %d,"
                   "\"overlap_comm\": false",
                   (int)(test_random(&state) % 12000), (int)(test_random(&state) % 8000));
    rig_open(&r, world, &options);
    for (int u = 0; u < 6; u++) {
        (void)rig_unit(&r, UNITS[u]);
        (void)rig_param(&r, u, PARAMS[u], 1 + 1024 * (test_random(&state) % 6));
    }
    for (int i = 0; i < 5; i++) {
        CHECK_OK(sherd_unit_reads(r.engine, r.units[test_random(&state) % 6],
                                  r.params[test_random(&state) % 6].handle));
    }
    rig_seal(&r);
    for (int i = 0; i < 40; i++) {
        sherd_pass pass = test_random(&state) % 3 > 0 ? SHERD_FORWARD : SHERD_EVAL;

        /* in order for a while, then anywhere */
        rig_forward(&r, i / 10 % 2 == 0 ? i % 6 : (int)(test_random(&state) % 6), pass);
    }
    rig_close(&r);
}

static void single_acquires_always_find_room(void)
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
        test_world(2, acquire_anything, &seed);
    }
}

/* A reader that no pass lists, with the unit that it reads: more than any planned acquire needs. */
static void acquire_an_unlisted_reader(sherd_world *world, void *raw)
{
    rig r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "small");
    (void)rig_unit(&r, "table");
    (void)rig_unit(&r, "reader");
    (void)rig_param(&r, 0, "small.w", 10);
    (void)rig_param(&r, 1, "table.w", 5000);
    (void)rig_param(&r, 2, "reader.w", 5000);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[1].handle));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[0]));
    rig_seal(&r);
    rig_forward(&r, 2, SHERD_FORWARD);
    rig_acquire(&r, 2, SHERD_BACKWARD);
    rig_touch(&r, 1, 1);
    rig_touch(&r, 2, 1);
    rig_release(&r, 2, SHERD_BACKWARD);
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
}

static void reader_that_no_pass_lists_finds_room(void)
{
    on_every_stage(2, acquire_an_unlisted_reader);
}

/* --------------------------------------------- windows of micro-batches --- */

static uint64_t train_short_windows(sherd_world *world, const rig_options *options)
{
    rig r;

    declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 3; k++) {
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_close_window(r.engine));
        CHECK_INT(1, rig_step(&r).was_updated);
    }
    return close_with_fingerprint(&r, 3);
}

static uint64_t train_single_windows(sherd_world *world, const rig_options *options)
{
    rig_options one = *options;
    rig         r;

    if (one.top == NULL) {
        one.accumulation = 1;
    }
    declare_layers(&r, world, &one);
    rig_seal(&r);
    for (int k = 0; k < 3; k++) {
        if (one.accumulation > 1) { /* closed ahead */
            rig_forward(&r, 2, SHERD_EVAL);
            CHECK_OK(sherd_step_close_window(r.engine));
        }
        (void)rig_train(&r, 1);
    }
    return close_with_fingerprint(&r, 3);
}

/* A window that is closed after one micro-batch is a window of one. (The deterministic mode counts in
 * other steps where the global batch is another.) */
static void short_window_is_the_mean_of_what_it_saw(void)
{
    expect_same(train_single_windows, train_short_windows, 3);
}

static void count_windows(sherd_world *world, void *raw)
{
    rig_options       options = *(const rig_options *)raw;
    sherd_step_report report;
    rig               r;

    options.accumulation = 3;
    declare_layers(&r, world, &options);
    rig_seal(&r);
    for (int k = 1; k <= 7; k++) {
        report = rig_train(&r, 1);
        CHECK_INT(k % 3 == 0, report.is_boundary);
        CHECK_INT(k % 3 == 0, report.was_updated);
        CHECK_INT(k, report.micro_step);
        CHECK_INT(k / 3, report.step);
        CHECK_INT(0, report.skipped_steps);
        CHECK(report.loss_scale == 1);
        CHECK(k % 3 == 0 ? report.grad_norm > 0 : report.grad_norm == 0);
    }
    CHECK_OK(sherd_step_wait(r.engine, &report)); /* of the last boundary, not of the last call */
    CHECK_INT(1, report.is_boundary);
    CHECK_INT(6, report.micro_step);
    CHECK_INT(2, report.step);
    CHECK(report.grad_norm > 0);
    CHECK_INT(rig_fingerprint(&r), report.fingerprint);
    CHECK_CLOSE(report.grad_norm * report.grad_norm, report.grad_sumsq, 1e-12);
    CHECK_OK(sherd_step_close_window(r.engine));
    CHECK_INT(1, rig_train(&r, 1).is_boundary); /* seven and eight */
    rig_close(&r);
}

static void windows_are_counted(void)
{
    on_every_stage(2, count_windows);
}

/* ---------------------------------------------------- prepare and apply --- */

static uint64_t train_in_two_calls(sherd_world *world, const rig_options *options)
{
    sherd_step_params params;
    sherd_step_report report;
    rig               r;

    sherd_step_params_init(&params);
    sherd_step_report_init(&report);
    declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++, r.micro++) {
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_prepare(r.engine, &report));
        CHECK_INT(0, report.was_updated);
        if (report.is_boundary) {
            params.grad_norm = k < 2 ? NAN : report.grad_norm; /* the engine's own either way */
            CHECK_OK(sherd_step_apply(r.engine, k % 3 == 0 ? NULL : &params));
        }
    }
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

static void prepare_and_apply_equal_step(void)
{
    expect_same(train_as_planned, train_in_two_calls, 3);
}

/* A window that is thrown away between two others. */
static uint64_t train_with_discards(sherd_world *world, const rig_options *options)
{
    uint64_t before;
    rig      r;

    declare_layers(&r, world, options);
    rig_seal(&r);
    for (int window = 0; window < 4 / options->accumulation; window++) {
        int64_t first = r.micro;

        before = rig_fingerprint(&r);
        for (int k = 0; k < options->accumulation; k++, r.micro++) {
            rig_micro_batch(&r);
            CHECK_OK(sherd_step_prepare(r.engine, NULL));
        }
        CHECK_OK(sherd_step_discard(r.engine));
        CHECK_INT(before, rig_fingerprint(&r));
        r.micro = first;
        CHECK_INT(1, rig_train(&r, options->accumulation).was_updated);
    }
    before = rig_fingerprint(&r);
    rig_close(&r);
    return before;
}

static void discarded_windows_leave_nothing(void)
{
    expect_same(train_as_planned, train_with_discards, 3);
}

/* The update in plain words, first step from zero moments: fp32, one parameter. */
static float first_update(float w, float g, double lr, double decay, double coefficient)
{
    double scaled = (double)g * coefficient;
    double m      = 0.1 * scaled / (1 - 0.9);
    double v      = 0.05 * scaled * scaled / (1 - 0.95);

    return (float)((double)w * (1 - lr * decay) - lr * m / (sqrt(v) + 1e-8));
}

typedef struct apply_case {
    double clip;        /* of the configuration */
    double norm;        /* given; NaN: not */
    double coefficient; /* given; NaN: not */
    double lr[3];       /* given for the groups; NaN: the schedule's */
    int    lr_count;
    double want_coefficient;
    double want_lr[3];
} apply_case;

static const apply_case APPLIES[] = {
    {0, NAN, NAN, {0}, 0, 1, {0.01, 0.02, 0.03}},
    {1, 4, NAN, {0}, 0, 0.25, {0.01, 0.02, 0.03}},
    {0, 4, NAN, {0}, 0, 1, {0.01, 0.02, 0.03}},
    {1, 4, 1e-7, {0}, 0, 1e-7, {0.01, 0.02, 0.03}},
    {0, NAN, 0, {0}, 0, 0, {0.01, 0.02, 0.03}},
    {0, NAN, NAN, {0.5, 0.25, 0.125}, 3, 1, {0.5, 0.25, 0.125}},
    {0, NAN, NAN, {NAN, 0.25, NAN}, 3, 1, {0.01, 0.25, 0.03}},
    {0, NAN, NAN, {0.5, NAN, 0.125}, 2, 1, {0.5, 0.02, 0.03}},
    {0, NAN, NAN, {0, 0, 0}, 3, 1, {0, 0, 0}},
};

/* Gradients of 1e-8 and the like show the coefficient against eps. */
static void apply_one_case(sherd_world *world, void *raw)
{
    static const double DECAY[] = {0.1, 0.5, 0};
    rig_options         options = {.stage = 0};
    const apply_case   *c       = ((void **)raw)[0];
    sherd_step_params   params;
    sherd_step_report   report;
    rig                 r;

    options.stage = *(const int *)((void **)raw)[1];
    options.clip  = c->clip;
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "unit");
    for (int g = 0; g < 3; g++) {
        static const char *const NAMES[] = {"p0", "p1", "p2"};
        sherd_group_params       group;
        sherd_param_params       param;

        sherd_group_params_init(&group);
        sherd_param_params_init(&param);
        group.lr           = 0.01 * (g + 1);
        group.weight_decay = DECAY[g];
        param.group        = SHERD_GROUP_DEFAULT;
        if (g > 0) {
            CHECK_OK(sherd_group_add(r.engine, &group, &param.group));
        }
        (void)rig_param_as(&r, 0, NAMES[g], 70, &param);
    }
    rig_seal(&r);
    rig_acquire(&r, 0, SHERD_BACKWARD);
    for (int p = 0; p < 3; p++) {
        for (size_t i = 0; i < 70; i++) {
            rig_poke(&r, p, i, 0x1p-24f);
        }
    }
    rig_release(&r, 0, SHERD_BACKWARD);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    sherd_step_params_init(&params);
    params.grad_norm        = c->norm;
    params.clip_coefficient = c->coefficient;
    params.group_lr         = c->lr_count > 0 ? c->lr : NULL;
    params.group_count      = c->lr_count;
    CHECK_OK(sherd_step_apply(r.engine, &params));
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r.engine, &report));
    CHECK_INT(1, report.was_updated);
    CHECK_CLOSE(c->want_coefficient, report.clip_coefficient, 1e-6);
    CHECK_CLOSE(c->want_lr[0], report.lr, 0);
    for (int p = 0; p < 3; p++) {
        float want[70];
        float got[70];

        CHECK_OK(rig_fill((void *)(uintptr_t)p, 0, 70, want));
        for (size_t i = 0; i < 70; i++) {
            want[i] = first_update(want[i], 0x1p-24f, c->want_lr[p], DECAY[p], c->want_coefficient);
        }
        rig_values(&r, p, got);
        CHECK_CLOSE_F32(got, want, 70, 1e-6, 1e-7); /* the plain words are in double */
    }
    rig_close(&r);
}

static void apply_takes_norm_coefficient_and_rates(void)
{
    for (size_t i = 0; i < sizeof(APPLIES) / sizeof(APPLIES[0]); i++) {
        for (int stage = 0; stage <= 3; stage++) {
            void *ctx[] = {(void *)(uintptr_t)&APPLIES[i], &stage};

            test_world(2, apply_one_case, ctx);
        }
    }
}

/* ---------------------------------------------------------- overflows ---- */

static void overflow_from_outside(sherd_world *world, void *raw)
{
    sherd_step_report report;
    sherd_step_params params;
    uint64_t          before;
    rig               r;

    declare_layers(&r, world, raw);
    rig_seal(&r);
    before = rig_fingerprint(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    sherd_step_params_init(&params);
    params.overflow = 1;
    CHECK_OK(sherd_step_apply(r.engine, &params));
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r.engine, &report));
    CHECK_INT(1, report.has_overflow);
    CHECK_INT(0, report.was_updated);
    CHECK_INT(0, report.step);
    CHECK_INT(1, report.skipped_steps);
    CHECK_INT(before, report.fingerprint);
    CHECK_INT(before, rig_fingerprint(&r));
    report = rig_train(&r, 1);
    CHECK_INT(1, report.was_updated);
    CHECK_INT(0, report.has_overflow);
    CHECK_INT(1, report.step);
    CHECK_INT(1, report.skipped_steps);
    rig_close(&r);
}

static void overflow_flag_skips_the_update(void)
{
    on_every_stage(2, overflow_from_outside);
}

typedef struct spoil {
    rig_options options;
    float       value; /* Inf or NaN */
    int         param; /* where, on the last rank */
    size_t      index;
} spoil;

static void spoil_one_element(sherd_world *world, void *raw)
{
    const spoil      *s       = raw;
    int               is_last = sherd_world_rank(world) == sherd_world_size(world) - 1;
    sherd_step_report report;
    uint64_t          before;
    uint64_t          clean;
    rig               r;

    declare_layers(&r, world, &s->options);
    rig_seal(&r);
    before = rig_train(&r, s->options.accumulation).fingerprint;
    for (int k = 0; k < s->options.accumulation; k++) {
        for (int u = 3; u >= 0; u--) {
            rig_acquire(&r, u, SHERD_BACKWARD);
            for (int p = 2 * u; p <= 2 * u + 1; p++) {
                rig_touch(&r, p, 1);
                if (p == s->param && is_last && k == 0) {
                    rig_poke(&r, p, s->index, s->value);
                }
            }
            rig_release(&r, u, SHERD_BACKWARD);
        }
        report = rig_step(&r);
    }
    CHECK_INT(1, report.is_boundary);
    CHECK_INT(1, report.has_overflow);
    CHECK_INT(0, report.was_updated);
    CHECK_INT(1, report.step);
    CHECK_INT(1, report.skipped_steps);
    CHECK_INT(before, report.fingerprint);
    CHECK(!isfinite(report.grad_norm));
    /* the weights and moments are those of a run that never saw it */
    r.micro = s->options.accumulation;
    clean   = rig_train(&r, s->options.accumulation).fingerprint;
    rig_close(&r);
    if (s->options.dtype != SHERD_F16) { /* there the scale changes roundings */
        declare_layers(&r, world, &s->options);
        rig_seal(&r);
        CHECK_INT(rig_train(&r, 2 * s->options.accumulation).fingerprint, clean);
        rig_close(&r);
    }
}

static void inf_or_nan_on_one_rank_skips_on_all(void)
{
    static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16, SHERD_F16};

    for (int d = 0; d < 3; d++) {
        for (int stage = 0; stage <= 3; stage++) {
            for (int i = 0; i < 4; i++) {
                spoil s = {
                    {.stage = stage, .accumulation = 1 + i / 2, .dtype = DTYPES[d], .clip = 1},
                    i % 2 == 0 ? INFINITY : NAN,
                    i * 2,
                    (size_t)i * 49};

                test_world(3, spoil_one_element, &s);
            }
        }
    }
}

/* With the check off the update is made, and the report still says what was seen. */
static void spoil_unchecked(sherd_world *world, void *raw)
{
    sherd_step_report report;
    rig               r;

    declare_layers(&r, world, raw);
    rig_seal(&r);
    rig_acquire(&r, 0, SHERD_BACKWARD);
    rig_poke(&r, 0, 3, NAN);
    rig_release(&r, 0, SHERD_BACKWARD);
    report = rig_step(&r);
    CHECK_INT(1, report.has_overflow);
    CHECK_INT(1, report.was_updated);
    rig_close(&r);
}

static void bf16_overflow_check_can_be_switched_off(void)
{
    rig_options options = {.stage = 2,
                           .clip  = 1,
                           .dtype = SHERD_F32,
                           .top   = ", \"bf16\": {\"check_grad_overflow\": false}"};

    test_world(2, spoil_unchecked, &options);
}

/* fp16: initial scale 16, window 2, hysteresis 1, floor 1. */
static void scale_up_and_down(sherd_world *world, void *raw)
{
    double            scale = 16;
    sherd_step_report report;
    rig               r;

    declare_layers(&r, world, raw);
    rig_seal(&r);
    for (int step = 0; step < 4; step++) {
        CHECK_CLOSE(scale, (double)sherd_loss_scale(r.engine), 0);
        report = rig_train(&r, 1);
        CHECK_CLOSE(scale, report.loss_scale, 0);
        CHECK_INT(1, report.was_updated);
        scale *= step % 2 == 1 ? 2 : 1; /* after every second clean step */
    }
    while (scale >= 1) {
        CHECK_CLOSE(scale, (double)sherd_loss_scale(r.engine), 0);
        rig_acquire(&r, 3, SHERD_BACKWARD);
        rig_poke(&r, 6, 0, INFINITY);
        rig_release(&r, 3, SHERD_BACKWARD);
        sherd_step_report_init(&report);
        if (scale == 1) {
            CHECK_STATUS(SHERD_E_NUMERIC, sherd_step(r.engine, &report));
            CHECK_ERROR_SAYS("smallest loss scale 1");
            break;
        }
        CHECK_OK(sherd_step(r.engine, &report));
        CHECK_INT(1, report.has_overflow);
        CHECK_CLOSE(scale, report.loss_scale, 0);
        scale /= 2;
    }
    CHECK_OK(sherd_step_wait(r.engine, &report));
    CHECK_INT(4, report.step);
    CHECK_INT(rig_fingerprint(&r), report.fingerprint);
    CHECK_INT(1, rig_train(&r, 1).was_updated); /* a clean batch still trains */
    rig_close(&r);
}

static void fp16_scale_halves_doubles_and_ends_at_the_floor(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .dtype = SHERD_F16};

        test_world(2, scale_up_and_down, &options);
    }
}

/* ------------------------------------------------------- rates over time -- */

static void follow_a_schedule(sherd_world *world, void *raw)
{
    static const double WANT[] = {0.001, 0.001, 0.00325, 0.0055, 0.00775, 0.01, 0.01};
    rig                 r;

    declare_layers(&r, world, raw);
    rig_seal(&r);
    for (int step = 0; step < 7; step++) {
        CHECK_CLOSE(WANT[step], rig_train(&r, 1).lr, 1e-12);
    }
    rig_close(&r);
}

static void report_gives_the_rate_of_the_schedule(void)
{
    rig_options options = {
        .stage = 1,
        .top   = ", \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0.001,"
                 " \"warmup_max_lr\": 0.01, \"warmup_num_steps\": 4, \"warmup_type\": \"linear\"}}"};

    test_world(2, follow_a_schedule, &options);
}

/* ------------------------------------- frozen, unused, small, empty parts -- */

static void keep_frozen(sherd_world *world, void *raw)
{
    float               want[130];
    float               got[130];
    sherd_param_params  fixed;
    sherd_memory_report memory = {.struct_size = sizeof(memory)};
    rig                 r;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    rig_open(&r, world, raw);
    (void)rig_unit(&r, "all frozen");
    (void)rig_unit(&r, "trained");
    (void)rig_unit(&r, "also frozen");
    (void)rig_param_as(&r, 0, "f", 130, &fixed);
    (void)rig_param(&r, 1, "w", 10);
    (void)rig_param_as(&r, 1, "g", 9, &fixed);
    (void)rig_param_as(&r, 2, "h", 64, &fixed);
    rig_seal(&r);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK(memory.state_held <= 4096 && memory.grads_held <= 4096); /* of w alone */
    rig_acquire(&r, 1, SHERD_BACKWARD);
    CHECK(sherd_param_grad(r.engine, r.params[2].handle) == NULL);
    CHECK_ERROR_SAYS("parameter g is frozen");
    rig_release(&r, 1, SHERD_BACKWARD);
    CHECK_INT(1, rig_step(&r).was_updated);
    CHECK_INT(1, rig_train(&r, 3).was_updated); /* backward through frozen units as well */
    CHECK_OK(rig_fill((void *)(uintptr_t)0, 0, 130, want));
    rig_values(&r, 0, got);
    CHECK_BYTES_EQUAL(want, got, sizeof(want));
    CHECK_OK(rig_fill((void *)(uintptr_t)3, 0, 64, want));
    rig_values(&r, 3, got);
    CHECK_BYTES_EQUAL(want, got, 64 * sizeof(float));
    rig_close(&r);
}

static void frozen_parameters_never_change(void)
{
    on_every_stage(3, keep_frozen);
}

/* Only frozen units: nothing to update, and still a step. */
static void train_nothing(sherd_world *world, void *raw)
{
    sherd_param_params fixed;
    uint64_t           before;
    rig                r;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    rig_open(&r, world, raw);
    (void)rig_unit(&r, "all frozen");
    (void)rig_param_as(&r, 0, "f", 130, &fixed);
    rig_seal(&r);
    before = rig_fingerprint(&r);
    CHECK_INT(before, rig_train(&r, 2).fingerprint);
    rig_close(&r);
}

static void model_without_trainable_parameters_steps(void)
{
    on_every_stage(2, train_nothing);
}

/* AdamW of a zero gradient: the moments stay zero, the weights decay. */
static void leave_a_unit_out(sherd_world *world, void *raw)
{
    float want[150];
    float got[150];
    rig   r;

    declare_layers(&r, world, raw);
    rig_seal(&r);
    CHECK_OK(rig_fill((void *)(uintptr_t)0, 0, 150, want));
    for (int step = 0; step < 3; step++) {
        for (int u = 3; u >= 1; u--) {
            rig_backward(&r, u);
        }
        (void)rig_step(&r);
        for (size_t i = 0; i < 150; i++) {
            want[i] = fmaf((float)(-0.01 * 0.1), want[i], want[i]);
        }
    }
    rig_values(&r, 0, got);
    CHECK_BYTES_EQUAL(want, got, sizeof(want));
    rig_close(&r);
}

static void unused_unit_decays_and_no_more(void)
{
    on_every_stage(3, leave_a_unit_out);
}

/* Used in the second micro-batch of a window only: its gradient is half of what it left there. */
static void use_a_unit_once_in_a_window(sherd_world *world, void *raw)
{
    rig_options       options = *(const rig_options *)raw;
    sherd_step_report report;
    rig               r;

    options.accumulation = 2;
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "always");
    (void)rig_unit(&r, "once");
    (void)rig_param(&r, 0, "a", 100);
    (void)rig_param(&r, 1, "o", 100);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < 2; k++) {
            rig_acquire(&r, 0, SHERD_BACKWARD); /* touches nothing: zero */
            rig_release(&r, 0, SHERD_BACKWARD);
            if (k == 1) {
                rig_acquire(&r, 1, SHERD_BACKWARD);
                rig_poke(&r, 1, 42, 3);
                rig_release(&r, 1, SHERD_BACKWARD);
            }
            report = rig_step(&r);
        }
        CHECK_CLOSE(1.5, report.grad_norm, 0);
    }
    rig_close(&r);
}

static void unit_used_once_in_a_window_brings_its_share(void)
{
    on_every_stage(3, use_a_unit_once_in_a_window);
}

/* Used in one window and not in the next: nothing of the old gradient is left. */
static void use_a_unit_in_the_first_window(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    rig_open(&r, world, &options);
    (void)rig_unit(&r, "always");
    (void)rig_unit(&r, "first");
    (void)rig_param(&r, 0, "a", 100);
    (void)rig_param(&r, 1, "f", 100);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < options.accumulation; k++) {
            rig_acquire(&r, 0, SHERD_BACKWARD);
            rig_release(&r, 0, SHERD_BACKWARD);
            if (step == 0) {
                rig_acquire(&r, 1, SHERD_BACKWARD);
                rig_poke(&r, 1, 42, 3);
                rig_release(&r, 1, SHERD_BACKWARD);
            }
            if (k < options.accumulation - 1) {
                (void)rig_step(&r);
            }
        }
        CHECK_CLOSE(step == 0 ? 3 : 0, rig_step(&r).grad_norm, 0);
    }
    rig_close(&r);
}

static void unit_that_is_no_longer_used_has_no_gradient(void)
{
    for (size_t kind = 0; kind < sizeof(KINDS) / sizeof(KINDS[0]); kind++) {
        for (int stage = 0; stage <= 3; stage++) {
            rig_options options = KINDS[kind];

            options.stage = stage;
            test_world(2, use_a_unit_in_the_first_window, &options);
        }
    }
}

static void train_odd_sizes(sherd_world *world, void *raw)
{
    static const size_t ELEMS[] = {0, 1, 63, 64, 65, 0, 127, 129};
    uint64_t            fingerprint;
    rig                 r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "odd");
    (void)rig_unit(&r, "empty");
    (void)rig_unit(&r, "without parameters");
    for (size_t i = 0; i < sizeof(ELEMS) / sizeof(ELEMS[0]); i++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "p%zu", i);
        (void)rig_param(&r, i == 5 ? 1 : 0, name, ELEMS[i]);
    }
    rig_seal(&r);
    rig_acquire(&r, 1, SHERD_BACKWARD);
    CHECK(sherd_param_data(r.engine, r.params[5].handle) != NULL);
    CHECK(sherd_param_grad(r.engine, r.params[5].handle) != NULL);
    rig_release(&r, 1, SHERD_BACKWARD);
    (void)rig_step(&r);
    (void)rig_train(&r, 2);
    fingerprint = rig_fingerprint(&r);
    rig_close(&r);
    CHECK(fingerprint != 0);
}

static void odd_and_empty_sizes_train(void)
{
    on_every_stage(1, train_odd_sizes);
    on_every_stage(3, train_odd_sizes);
}

static uint64_t train_persistent(sherd_world *world, const rig_options *options)
{
    rig_options with = *options;
    uint64_t    got;
    rig         r;

    with.zero = ", \"stage3_param_persistence_threshold\": 7";
    declare_layers(&r, world, &with);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    got       = close_with_fingerprint(&r, 4 / options->accumulation);
    with.zero = ", \"stage3_param_persistence_threshold\": 1000,"
                "\"stage3_model_persistence_threshold\": 300";
    declare_layers(&r, world, &with);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    CHECK_INT(got, close_with_fingerprint(&r, 4 / options->accumulation));
    return got;
}

static void small_parameters_that_stay_whole_change_nothing(void)
{
    expect_same(train_as_planned, train_persistent, 3);
}

/* ------------------------------------------------------- bound memory ----- */

typedef struct bound {
    void *data[RIG_PARAMS], *grad[RIG_PARAMS];
} bound;

static void bind_all(rig *r, bound *memory)
{
    memset(memory, 0, sizeof(*memory));
    for (int p = 0; p < r->num_params; p++) {
        memory->data[p] = calloc(r->params[p].elems, sherd_dtype_bytes(r->dtype));
        memory->grad[p] = calloc(r->params[p].elems, sherd_dtype_bytes(r->dtype));
        CHECK_OK(sherd_param_bind(r->engine, r->params[p].handle, memory->data[p],
                                  r->params[p].is_frozen ? NULL : memory->grad[p]));
    }
}

static void unbind_all(bound *memory)
{
    for (int p = 0; p < RIG_PARAMS; p++) {
        free(memory->data[p]);
        free(memory->grad[p]);
    }
}

static uint64_t train_bound(sherd_world *world, const rig_options *options)
{
    uint64_t got;
    bound    memory;
    rig      r;

    declare_layers(&r, world, options);
    bind_all(&r, &memory);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    rig_acquire(&r, 2, SHERD_BACKWARD);
    CHECK(sherd_param_data(r.engine, r.params[4].handle) == memory.data[4]);
    CHECK(sherd_param_grad(r.engine, r.params[4].handle) == memory.grad[4]);
    rig_release(&r, 2, SHERD_BACKWARD);
    got = close_with_fingerprint(&r, 4 / options->accumulation);
    unbind_all(&memory);
    return got;
}

static void bound_memory_changes_nothing(void)
{
    expect_same(train_as_planned, train_bound, 2);
}

/* Never filled: it starts from what the memory holds. */
static uint64_t train_bound_from_memory(sherd_world *world, const rig_options *options)
{
    uint64_t got;
    bound    memory;
    rig      r;

    declare_layers(&r, world, options);
    bind_all(&r, &memory);
    CHECK_OK(sherd_engine_seal(r.engine));
    for (int p = 0; p < r.num_params; p++) {
        float values[512];

        CHECK_OK(rig_fill((void *)(uintptr_t)p, 0, r.params[p].elems, values));
        for (size_t i = 0; i < r.params[p].elems; i++) {
            if (r.dtype == SHERD_F32) {
                ((float *)memory.data[p])[i] = values[i];
            } else {
                ((uint16_t *)memory.data[p])[i] = sherdi_cast_f32_bf16(values[i]);
            }
        }
    }
    (void)rig_train(&r, 4);
    got = close_with_fingerprint(&r, 4 / options->accumulation);
    unbind_all(&memory);
    return got;
}

/* The master of a filled bf16 parameter has more bits than the memory holds, so the twin is filled
 * with rounded values. */
static sherd_status fill_rounded(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)rig_fill(ctx, first_elem, count_elems, out);
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = sherdi_cast_bf16_f32(sherdi_cast_f32_bf16(out[i]));
    }
    return SHERD_OK;
}

static uint64_t train_rounded(sherd_world *world, const rig_options *options)
{
    rig r;

    declare_layers(&r, world, options);
    CHECK_OK(sherd_engine_seal(r.engine));
    for (int p = 0; p < r.num_params; p++) {
        CHECK_OK(sherd_param_fill(r.engine, r.params[p].handle,
                                  r.dtype == SHERD_F32 ? rig_fill : fill_rounded,
                                  (void *)(uintptr_t)p));
    }
    (void)rig_train(&r, 4);
    return close_with_fingerprint(&r, 4 / options->accumulation);
}

static void bound_memory_never_filled_starts_from_what_it_holds(void)
{
    expect_same(train_rounded, train_bound_from_memory, 2);
}

static void bind_in_part(sherd_world *world, void *raw)
{
    float data[7];
    float grad[7];
    rig   r;

    declare_layers(&r, world, raw);
    CHECK_OK(sherd_param_bind(r.engine, r.params[1].handle, data, grad));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("unit zero");
    CHECK_ERROR_SAYS("bind all of a unit or none");
    rig_close(&r);
}

static void binding_a_part_of_a_unit_is_refused(void)
{
    rig_options options = {.stage = 2};

    test_world(2, bind_in_part, &options);
}

static void bind_at_stage_3(sherd_world *world, void *raw)
{
    float data[7];
    float grad[7];
    rig   r;

    declare_layers(&r, world, raw);
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_param_bind(r.engine, r.params[1].handle, data, grad));
    CHECK_ERROR_SAYS("stage 3");
    rig_close(&r);
}

static void binding_at_stage_3_is_refused(void)
{
    rig_options options = {.stage = 3};

    test_world(1, bind_at_stage_3, &options);
}

/* ------------------------------------------------- gradients and padding -- */

/* Whatever lay there before: zero at the first acquire of every micro-batch, kept until then. */
static void find_gradients_zero(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    options.accumulation = 2;
    declare_tied(&r, world, &options);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    rig_seal(&r);
    for (int k = 0; k < 5; k++) {
        for (int u = 2; u >= 0; u--) {
            const float *grad;

            rig_acquire(&r, u, SHERD_BACKWARD);
            grad = sherd_param_grad(r.engine, r.params[u].handle);
            for (size_t i = 0; i < r.params[u].elems; i++) {
                CHECK(grad[i] == (u == 0 && i == 5 ? 8.0f : 0.0f)); /* the head's part is kept */
            }
            if (u == 2) {
                rig_poke(&r, 0, 5, 8);
            }
            rig_touch(&r, u, 1);
            rig_release(&r, u, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    rig_close(&r);
}

static void gradients_are_zero_at_the_first_acquire(void)
{
    on_every_stage(2, find_gradients_zero);
}

/* A gradient of ones: the norm counts elements, so padding would show. */
static void count_by_norm(sherd_world *world, void *raw)
{
    static const size_t ELEMS[] = {1, 65, 127, 200};
    sherd_step_report   report;
    size_t              total = 0;
    rig                 r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "first");
    (void)rig_unit(&r, "second");
    for (size_t i = 0; i < 4; i++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "p%zu", i);
        (void)rig_param(&r, (int)(i / 2), name, ELEMS[i]);
        total += ELEMS[i];
    }
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        for (int u = 1; u >= 0; u--) {
            rig_acquire(&r, u, SHERD_BACKWARD);
            for (int p = 2 * u; p < 2 * u + 2; p++) {
                for (size_t i = 0; i < ELEMS[p]; i++) {
                    rig_poke(&r, p, i, 1);
                }
            }
            rig_release(&r, u, SHERD_BACKWARD);
        }
        report = rig_step(&r);
        CHECK_CLOSE(sqrt((double)total), report.grad_norm, 1e-15);
    }
    rig_close(&r);
}

static void padding_is_in_no_norm(void)
{
    on_every_stage(1, count_by_norm);
    on_every_stage(3, count_by_norm);
}

/* ------------------------------------------------------------- filling ---- */

typedef struct seen {
    unsigned char element[4096];
    size_t        count;
} seen;

static sherd_status fill_and_note(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    seen *s = ctx;

    CHECK(count_elems > 0 && first_elem + count_elems <= sizeof(s->element));
    memset(s->element + first_elem, 1, count_elems);
    s->count += count_elems;
    return rig_fill(NULL, first_elem, count_elems, out);
}

typedef struct fill_job {
    rig_options options;
    seen        by_rank[3];
} fill_job;

static void fill_noting(sherd_world *world, void *raw)
{
    fill_job *job = raw;
    rig       r;

    rig_open(&r, world, &job->options);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", 4000);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(sherd_param_fill(r.engine, r.params[0].handle, fill_and_note,
                              &job->by_rank[sherd_world_rank(world)]));
    (void)rig_train(&r, 1);
    rig_close(&r);
}

/* Every rank is asked for the first values of 4000, for the last and for two stretches between. */
static int is_sampled(size_t i)
{
    return i % 1328 < 16;
}

static void fill_is_called_for_what_a_rank_holds(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        fill_job job = {.options = {.stage = stage}};
        size_t   calls[4000];

        test_world(3, fill_noting, &job);
        for (size_t i = 0; i < 4000; i++) {
            calls[i] = (size_t)job.by_rank[0].element[i] + job.by_rank[1].element[i] +
                       job.by_rank[2].element[i];
            CHECK(calls[i] == 3 || (stage == 3 && calls[i] == 1 && !is_sampled(i)));
        }
        /* 63 chunks by three: 21 each; and 16 values in four places */
        CHECK_INT(stage == 3 ? 1344 + 64 : 4000, job.by_rank[0].count);
        CHECK_INT(stage == 3 ? 4000 - 2 * 1344 + 64 : 4000, job.by_rank[2].count);
    }
}

/* -------------------------------------------------- engines and worlds ---- */

/* Two engines of one world, in turn. */
static uint64_t train_two_engines(sherd_world *world, const rig_options *options)
{
    uint64_t got;
    rig      a;
    rig      b;

    declare_layers(&a, world, options);
    declare_layers(&b, world, options);
    rig_seal(&b);
    rig_seal(&a);
    for (int k = 0; k < 4; k++) {
        for (int u = 0; u < 4; u++) {
            rig_forward(&a, u, SHERD_FORWARD);
            rig_forward(&b, u, SHERD_FORWARD);
        }
        for (int u = 3; u >= 0; u--) {
            rig_backward(&b, u);
            rig_backward(&a, u);
        }
        (void)rig_step(&a);
        (void)rig_step(&b);
    }
    got = close_with_fingerprint(&b, 4 / options->accumulation);
    CHECK_INT(got, close_with_fingerprint(&a, 4 / options->accumulation));
    return got;
}

static void two_engines_of_one_world_do_not_disturb_each_other(void)
{
    expect_same(train_as_planned, train_two_engines, 3);
}

typedef struct early_job {
    sherd_world *worlds[2];
    rig_options  options;
} early_job;

static void train_without_own_world(int rank, void *raw)
{
    early_job *job = raw;
    rig        r;

    declare_layers(&r, job->worlds[rank], &job->options);
    sherd_world_destroy(job->worlds[rank]); /* the engine's reference is left */
    rig_seal(&r);
    CHECK_INT(1, rig_train(&r, 2).was_updated);
    rig_close(&r);
}

static void engine_outlives_the_callers_reference_to_its_world(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        early_job job = {.options = {.stage = stage}};

        CHECK_OK(sherd_world_threads(2, job.worlds));
        test_threads(2, train_without_own_world, &job);
    }
}

/* Destroyed with a unit held, a micro-batch open and transfers under way. */
static void stop_anywhere(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    options.accumulation = 2;
    options.zero         = ", \"overlap_comm\": true";
    for (int point = 0; point < 5; point++) {
        declare_layers(&r, world, &options);
        if (point > 0) {
            rig_seal(&r);
        }
        if (point > 1) {
            rig_forward(&r, 0, SHERD_FORWARD); /* gathers ahead */
        }
        if (point > 2) {
            rig_backward(&r, 3); /* reduces */
            rig_acquire(&r, 2, SHERD_BACKWARD);
        }
        if (point > 3) {
            rig_release(&r, 2, SHERD_BACKWARD);
            CHECK_OK(sherd_step_close_window(r.engine));
            CHECK_OK(sherd_step_prepare(r.engine, NULL));
        }
        rig_close(&r);
    }
    CHECK_OK(sherd_world_barrier(world));
}

/* Bound memory leaves the engine hardly any buffer of the world's, whose end would wait by itself. */
static void stop_bound(sherd_world *world, void *raw)
{
    static const rig_options OPTIONS = {
        .stage = 2, .dtype = SHERD_BF16, .zero = ", \"overlap_comm\": true"};
    bound memory;
    rig   r;

    (void)raw;
    rig_open(&r, world, &OPTIONS);
    (void)rig_unit(&r, "large");
    (void)rig_param(&r, 0, "large.w", 3000000);
    bind_all(&r, &memory);
    rig_seal(&r);
    rig_acquire(&r, 0, SHERD_BACKWARD);
    rig_release(&r, 0, SHERD_BACKWARD);
    rig_close(&r);
    unbind_all(&memory);
}

static void engine_can_be_destroyed_at_any_point(void)
{
    on_every_stage(3, stop_anywhere);
    test_world(2, stop_bound, NULL);
}

static const test_case CASES[] = {
    CASE(tied_by_reading_equals_acquired_twice),
    CASE(tied_nested_equals_tied_in_turn),
    CASE(recomputation_before_backward_changes_nothing),
    CASE(recomputation_inside_backward_changes_nothing),
    CASE(eval_anywhere_changes_nothing),
    CASE(orders_off_the_plan_change_nothing),
    CASE(passes_listed_in_part_change_nothing),
    CASE(single_acquires_always_find_room),
    CASE(reader_that_no_pass_lists_finds_room),
    CASE(short_window_is_the_mean_of_what_it_saw),
    CASE(windows_are_counted),
    CASE(prepare_and_apply_equal_step),
    CASE(discarded_windows_leave_nothing),
    CASE(apply_takes_norm_coefficient_and_rates),
    CASE(overflow_flag_skips_the_update),
    CASE(inf_or_nan_on_one_rank_skips_on_all),
    CASE(bf16_overflow_check_can_be_switched_off),
    CASE(fp16_scale_halves_doubles_and_ends_at_the_floor),
    CASE(report_gives_the_rate_of_the_schedule),
    CASE(frozen_parameters_never_change),
    CASE(model_without_trainable_parameters_steps),
    CASE(unused_unit_decays_and_no_more),
    CASE(unit_used_once_in_a_window_brings_its_share),
    CASE(unit_that_is_no_longer_used_has_no_gradient),
    CASE(odd_and_empty_sizes_train),
    CASE(small_parameters_that_stay_whole_change_nothing),
    CASE(bound_memory_changes_nothing),
    CASE(bound_memory_never_filled_starts_from_what_it_holds),
    CASE(binding_a_part_of_a_unit_is_refused),
    CASE(binding_at_stage_3_is_refused),
    CASE(gradients_are_zero_at_the_first_acquire),
    CASE(padding_is_in_no_norm),
    CASE(fill_is_called_for_what_a_rank_holds),
    CASE(two_engines_of_one_world_do_not_disturb_each_other),
    CASE(engine_outlives_the_callers_reference_to_its_world),
    CASE(engine_can_be_destroyed_at_any_point),
};

RUN_MAIN(CASES)
