/* What a trainer may do between seal and destroy, on every stage. What the interface promises of
 * windows and overflows must hold. */
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --------------------------------------------- windows of micro-batches --- */

static uint64_t train_short_windows(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 3; k++) {
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_close_window(r.engine));
        CHECK_INT(1, rig_step(&r).was_updated);
    }
    return ways_close(&r, 3);
}

static uint64_t train_single_windows(sherd_world *world, const rig_options *options)
{
    rig_options one = *options;
    rig         r;

    if (one.top == NULL) {
        one.accumulation = 1;
    }
    ways_declare_layers(&r, world, &one);
    rig_seal(&r);
    for (int k = 0; k < 3; k++) {
        if (one.accumulation > 1) { /* closed before the micro-batch */
            rig_forward(&r, 2, SHERD_EVAL);
            CHECK_OK(sherd_step_close_window(r.engine));
        }
        (void)rig_train(&r, 1);
    }
    return ways_close(&r, 3);
}

/* Two micro-batches of a window of three; the end comes with the second one, or alone after it. */
static uint64_t train_ends(sherd_world *world, const rig_options *options, int is_alone)
{
    rig_options       three  = *options;
    sherd_step_report report = {0};
    rig               r;

    three.accumulation = 3;
    ways_declare_layers(&r, world, &three);
    rig_seal(&r);
    for (int window = 0; window < 3; window++) {
        rig_micro_batch(&r);
        CHECK_INT(0, rig_step(&r).is_boundary);
        rig_micro_batch(&r);
        if (is_alone) {
            CHECK_INT(0, rig_step(&r).is_boundary);
        }
        CHECK_OK(sherd_step_close_window(r.engine));
        if (is_alone) {
            sherd_step_report_init(&report);
            CHECK_OK(sherd_step(r.engine, &report));
        } else {
            report = rig_step(&r);
        }
        CHECK_INT(1, report.was_updated);
        CHECK_INT(2 * (window + 1), report.micro_step);
    }
    return ways_close(&r, 3);
}

static uint64_t train_ends_within(sherd_world *world, const rig_options *options)
{
    return train_ends(world, options, 0);
}

static uint64_t train_ends_alone(sherd_world *world, const rig_options *options)
{
    return train_ends(world, options, 1);
}

/* A window that is closed after one micro-batch is a window of one. (The deterministic mode counts
 * in other units if the global batch is another, so there both ways have the same accumulation.) */
static void short_window_is_the_mean_of_what_it_saw(void)
{
    ways_expect_same(train_single_windows, train_short_windows, 3);
}

static void a_window_is_ended_behind_its_last_micro_batch(void)
{
    ways_expect_same(train_ends_within, train_ends_alone, 3);
}

/* A closed window forgives no micro-batch that has begun and lacks its backward. */
static void end_without_backward(sherd_world *world, void *raw)
{
    rig_options three = *(const rig_options *)raw;
    rig         r;

    three.accumulation = 3;
    ways_declare_layers(&r, world, &three);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_step_close_window(r.engine));
    rig_acquire(&r, 0, SHERD_FORWARD);
    rig_release(&r, 0, SHERD_FORWARD);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("1 of the 2 micro-batches of this window had no backward pass; the window was "
                     "dropped");
    rig_close(&r);
}

static void a_forward_alone_does_not_end_a_window(void)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        ways_on_every_stage(ranks, end_without_backward);
    }
}

static void count_windows(sherd_world *world, void *raw)
{
    rig_options       options = *(const rig_options *)raw;
    sherd_step_report report;
    rig               r;

    options.accumulation = 3;
    ways_declare_layers(&r, world, &options);
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
    CHECK_OK(sherd_step_wait(r.engine, &report)); /* reports the last boundary, not the last call */
    CHECK_INT(1, report.is_boundary);
    CHECK_INT(6, report.micro_step);
    CHECK_INT(2, report.step);
    CHECK(report.grad_norm > 0);
    CHECK_INT(rig_fingerprint(&r), report.fingerprint);
    CHECK_CLOSE(report.grad_norm * report.grad_norm, report.grad_sumsq, 1e-12);
    CHECK_OK(sherd_step_close_window(r.engine));
    CHECK_INT(1, rig_train(&r, 1).is_boundary); /* micro-batches seven and eight */
    rig_close(&r);
}

/* Windows of 1, 3 and 2 micro-batches. is_open: only close_window ends them, and the usual length
 * is `usual`; else they may have 3, and are closed early. */
static uint64_t train_lengths(sherd_world *world, const rig_options *options, int is_open,
                              int usual)
{
    static const int LENGTHS[] = {1, 3, 2};
    rig_options      own       = *options;
    char             top[256];
    rig              r;

    own.accumulation = usual;
    if (is_open) {
        (void)snprintf(top, sizeof(top), "%s, \"sherd\": {\"open_windows\": true}",
                       own.top == NULL ? "" : own.top);
        own.top = top;
    }
    ways_declare_layers(&r, world, &own);
    rig_seal(&r);
    for (size_t window = 0; window < 3; window++) {
        for (int k = 1; k <= LENGTHS[window]; k++) {
            int is_last = k == LENGTHS[window];

            rig_micro_batch(&r);
            if (is_last && (is_open || k < usual)) {
                CHECK_OK(sherd_step_close_window(r.engine));
            }
            CHECK_INT(is_last, rig_step(&r).was_updated);
        }
    }
    return ways_close(&r, 3);
}

static uint64_t train_closed_lengths(sherd_world *world, const rig_options *options)
{
    return train_lengths(world, options, 0, 3);
}

/* The deterministic mode counts in units that the greatest length decides, so it is given that. */
static uint64_t train_open_lengths(sherd_world *world, const rig_options *options)
{
    return train_lengths(world, options, 1, options->top == NULL ? 1 : 3);
}

static void an_open_window_has_any_length(void)
{
    ways_expect_same(train_closed_lengths, train_open_lengths, 3);
}

/* With integers there is room for so many; what is refused changes nothing, and the window goes
 * on. */
static void fill_deterministic_window(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    options.accumulation = 2;
    options.top          = ", \"deterministic\": true, \"sherd\": {\"open_windows\": true}";
    ways_declare_layers(&r, world, &options);
    rig_seal(&r);
    for (int k = 0; k < 2; k++) {
        CHECK_INT(0, rig_train(&r, 1).is_boundary);
    }
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
    CHECK_ERROR_SAYS("gradient_accumulation_steps is 2, the most that");
    rig_forward(&r, 0, SHERD_EVAL);
    CHECK_OK(sherd_step_close_window(r.engine));
    CHECK_OK(sherd_step(r.engine, NULL));
    CHECK_INT(0, rig_train(&r, 1).is_boundary);
    rig_close(&r);
}

static void a_deterministic_window_takes_no_more_than_its_key_says(void)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        ways_on_every_stage(ranks, fill_deterministic_window);
    }
}

static void windows_are_counted(void)
{
    ways_on_every_stage(2, count_windows);
}

/* ---------------------------------------------------- prepare and apply --- */

static uint64_t train_in_two_calls(sherd_world *world, const rig_options *options)
{
    sherd_step_params params;
    sherd_step_report report;
    rig               r;

    sherd_step_params_init(&params);
    sherd_step_report_init(&report);
    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++, r.micro++) {
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_prepare(r.engine, &report));
        CHECK_INT(0, report.was_updated);
        if (report.is_boundary) {
            /* the value is the engine's own in either case */
            params.grad_norm = k < 2 ? NAN : report.grad_norm;
            CHECK_OK(sherd_step_apply(r.engine, k % 3 == 0 ? NULL : &params));
        }
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void prepare_and_apply_equal_step(void)
{
    ways_expect_same(ways_train_as_planned, train_in_two_calls, 3);
}

/* A queued step is reported before the next update, at any time and once or twice, or never. */
static void queued_tell(rig *r, int64_t step)
{
    sherd_step_report report;

    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r->engine, &report));
    CHECK_INT(step, report.step);
    CHECK_INT(rig_fingerprint(r), report.fingerprint);
    CHECK_OK(sherd_step_wait(r->engine, &report));
    CHECK_INT(rig_fingerprint(r), report.fingerprint);
}

static uint64_t train_queued(sherd_world *world, const rig_options *options)
{
    uint64_t fingerprint;
    rig      r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++, r.micro++) {
        rig_micro_batch(&r);
        if (k == 2 * options->accumulation) { /* after the backward of the next micro-batch */
            queued_tell(&r, k / options->accumulation);
        }
        CHECK_OK(sherd_step_queue(r.engine));
        if (k == 0) { /* overwrites what is on its way */
            CHECK_OK(sherd_param_fingerprint(r.engine, r.params[0].handle, &fingerprint));
        }
        if (k == 3) {
            queued_tell(&r, 4 / options->accumulation);
        }
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void queued_steps_equal_those_that_wait(void)
{
    ways_expect_same(ways_train_as_planned, train_queued, 3);
}

/* Discards a window and then does it again, for every window. */
static uint64_t train_with_discards(sherd_world *world, const rig_options *options)
{
    uint64_t before;
    rig      r;

    ways_declare_layers(&r, world, options);
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
    ways_expect_same(ways_train_as_planned, train_with_discards, 3);
}

/* Computes in double what the first update, from zero moments, makes of an fp32 weight. */
static float first_update(float w, float g, double lr, double decay, double coefficient)
{
    double scaled = (double)g * coefficient;
    double m      = 0.1 * scaled / (1 - 0.9);
    double v      = 0.05 * scaled * scaled / (1 - 0.95);

    return (float)((double)w * (1 - lr * decay) - lr * m / (sqrt(v) + 1e-8));
}

typedef struct apply_case {
    double clip;        /* the configured gradient_clipping */
    double norm;        /* the norm that is passed to apply; NaN: none */
    double coefficient; /* the coefficient that is passed; NaN: none */
    double lr[3];       /* the rates given for the groups; NaN: that of the schedule */
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

/* Gradients as small as 1e-8 show the coefficient, because eps is as large as they are. */
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
        CHECK_CLOSE_F32(got, want, 70, 1e-6, 1e-7); /* first_update computes in double */
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

    ways_declare_layers(&r, world, raw);
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
    ways_on_every_stage(2, overflow_from_outside);
}

typedef struct spoil {
    rig_options options;
    float       value; /* Inf or NaN */
    int         param; /* the parameter, of the last rank */
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

    ways_declare_layers(&r, world, &s->options);
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
    /* the weights and moments are those of a run in which it never happened */
    r.micro = s->options.accumulation;
    clean   = rig_train(&r, s->options.accumulation).fingerprint;
    rig_close(&r);
    if (s->options.dtype != SHERD_F16) { /* for fp16 the new scale changes roundings */
        ways_declare_layers(&r, world, &s->options);
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

/* With the check off the update is made, and the report still says that there was an overflow. */
static void spoil_unchecked(sherd_world *world, void *raw)
{
    sherd_step_report report;
    rig               r;

    ways_declare_layers(&r, world, raw);
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

/* The scale of fp16 begins at 16, with a window of 2, a hysteresis of 1 and a smallest value of
 * 1. */
static void scale_up_and_down(sherd_world *world, void *raw)
{
    double            scale = 16;
    sherd_step_report report;
    rig               r;

    ways_declare_layers(&r, world, raw);
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
    CHECK_INT(1, rig_train(&r, 1).was_updated); /* a clean batch is still trained */
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

    ways_declare_layers(&r, world, raw);
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

/* Whether every rank fills this value of the 4000: it is among the first, the last, or in one of
 * two ranges between. */
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
        /* 63 chunks for three ranks are 21 each, and 16 values in each of four places */
        CHECK_INT(stage == 3 ? 1344 + 64 : 4000, job.by_rank[0].count);
        CHECK_INT(stage == 3 ? 4000 - 2 * 1344 + 64 : 4000, job.by_rank[2].count);
    }
}

/* -------------------------------------------------- engines and worlds ---- */

/* Trains two engines of one world in turn. */
static uint64_t train_two_engines(sherd_world *world, const rig_options *options)
{
    uint64_t got;
    rig      a;
    rig      b;

    ways_declare_layers(&a, world, options);
    ways_declare_layers(&b, world, options);
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
    got = ways_close(&b, 4 / options->accumulation);
    CHECK_INT(got, ways_close(&a, 4 / options->accumulation));
    return got;
}

static void two_engines_of_one_world_do_not_disturb_each_other(void)
{
    ways_expect_same(ways_train_as_planned, train_two_engines, 3);
}

typedef struct early_job {
    sherd_world *worlds[2];
    rig_options  options;
} early_job;

static void train_without_own_world(int rank, void *raw)
{
    early_job *job = raw;
    rig        r;

    ways_declare_layers(&r, job->worlds[rank], &job->options);
    sherd_world_destroy(job->worlds[rank]); /* only the engine's reference remains */
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

/* Destroys an engine with a unit held, a micro-batch open and transfers under way. */
static void stop_anywhere(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    options.accumulation = 2;
    options.zero         = ", \"overlap_comm\": true";
    for (int point = 0; point < 5; point++) {
        ways_declare_layers(&r, world, &options);
        if (point > 0) {
            rig_seal(&r);
        }
        if (point > 1) {
            rig_forward(&r, 0, SHERD_FORWARD); /* starts gathers ahead */
        }
        if (point > 2) {
            rig_backward(&r, 3); /* starts a reduction */
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

/* With bound memory the engine has hardly any buffer of the world's, whose destruction would wait
 * by itself. */
static void stop_bound(sherd_world *world, void *raw)
{
    static const rig_options OPTIONS = {
        .stage = 2, .dtype = SHERD_BF16, .zero = ", \"overlap_comm\": true"};
    ways_bound memory;
    rig        r;

    (void)raw;
    rig_open(&r, world, &OPTIONS);
    (void)rig_unit(&r, "large");
    (void)rig_param(&r, 0, "large.w", 3000000);
    ways_bind(&r, &memory);
    rig_seal(&r);
    rig_acquire(&r, 0, SHERD_BACKWARD);
    rig_release(&r, 0, SHERD_BACKWARD);
    rig_close(&r);
    ways_unbind(&memory);
}

static void engine_can_be_destroyed_at_any_point(void)
{
    ways_on_every_stage(3, stop_anywhere);
    test_world(2, stop_bound, NULL);
}

/* Trains for a step, and returns how long its reductions took. */
static double reductions_s(rig *r)
{
    sherd_step_report report;

    (void)rig_train(r, 1);
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r->engine, &report));
    return report.reduce_s;
}

/* Each engine counts its own transfers, also where another one of its world is made and destroyed
 * meanwhile. */
static void two_count(sherd_world *world, void *ctx)
{
    const rig_options options = {
        .stage = 2, .dtype = SHERD_F32, .top = ", \"wall_clock_breakdown\": true"};
    rig a, b;

    (void)ctx;
    rig_open(&a, world, &options);
    rig_three(&a, 30000);
    rig_seal(&a);
    CHECK(reductions_s(&a) > 0);
    rig_open(&b, world, &options);
    rig_three(&b, 3000);
    rig_seal(&b);
    CHECK(reductions_s(&a) > 0);
    CHECK(reductions_s(&b) > 0);
    rig_close(&b);
    CHECK(reductions_s(&a) > 0);
    rig_close(&a);
}

static void two_engines_count_their_own_transfers(void)
{
    test_world(2, two_count, NULL);
}

static const test_case CASES[] = {
    CASE(short_window_is_the_mean_of_what_it_saw),
    CASE(a_window_is_ended_behind_its_last_micro_batch),
    CASE(a_forward_alone_does_not_end_a_window),
    CASE(windows_are_counted),
    CASE(an_open_window_has_any_length),
    CASE(a_deterministic_window_takes_no_more_than_its_key_says),
    CASE(prepare_and_apply_equal_step),
    CASE(queued_steps_equal_those_that_wait),
    CASE(discarded_windows_leave_nothing),
    CASE(apply_takes_norm_coefficient_and_rates),
    CASE(overflow_flag_skips_the_update),
    CASE(inf_or_nan_on_one_rank_skips_on_all),
    CASE(bf16_overflow_check_can_be_switched_off),
    CASE(fp16_scale_halves_doubles_and_ends_at_the_floor),
    CASE(report_gives_the_rate_of_the_schedule),
    CASE(fill_is_called_for_what_a_rank_holds),
    CASE(two_engines_of_one_world_do_not_disturb_each_other),
    CASE(engine_outlives_the_callers_reference_to_its_world),
    CASE(engine_can_be_destroyed_at_any_point),
    CASE(two_engines_count_their_own_transfers),
};

RUN_MAIN(CASES)
