/* sherd_grad_norms: the norm of each parameter's gradient, exact and the same on every layout, and
 * training goes on as if nobody had asked. */
#include "tests/engine/value_rig.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A window, prepared. */
static sherd_step_report window_prepare(rig *r, int accumulation)
{
    sherd_step_report report;

    sherd_step_report_init(&report);
    for (int m = 0; m < accumulation; m++) {
        rig_micro_batch(r);
        CHECK_OK(sherd_step_prepare(r->engine, &report));
        r->micro++;
    }
    CHECK_INT(1, report.is_boundary);
    return report;
}

/* ------------------------------------------------------------ against the step's -- */

static void measure_one(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    rig                r;

    rig_open(&r, world, options);
    (void)rig_param(&r, rig_unit(&r, "only"), "w", 333);
    rig_seal(&r);
    for (int i = 0; i < 2; i++) {
        sherd_step_report report = window_prepare(&r, options->accumulation);
        double            norm   = -1;

        CHECK_OK(sherd_grad_norms(r.engine, &norm, 1));
        CHECK_BYTES_EQUAL(&report.grad_norm, &norm, sizeof(norm));
        CHECK_OK(sherd_step_apply(r.engine, NULL));
    }
    rig_close(&r);
}

static void norm_of_the_only_parameter_is_the_norm(void)
{
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        for (int stage = 0; stage <= 3; stage++) {
            for (size_t kind = 0; kind < WAYS_NUM_KINDS; kind++) {
                rig_options options = WAYS_KINDS[kind];

                options.stage = stage;
                test_world(ranks, measure_one, &options);
            }
        }
    }
}

static uint64_t train_measured(sherd_world *world, const rig_options *options)
{
    double norms[RIG_PARAMS];
    double again[RIG_PARAMS];
    rig    r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int i = 0; i < 4 / options->accumulation; i++) {
        sherd_step_report report = window_prepare(&r, options->accumulation);
        double            sum    = 0;

        CHECK_OK(sherd_grad_norms(r.engine, norms, (size_t)r.num_params));
        CHECK_OK(sherd_grad_norms(r.engine, again, (size_t)r.num_params));
        CHECK_BYTES_EQUAL(norms, again, (size_t)r.num_params * sizeof(*norms));
        for (int p = 0; p < r.num_params; p++) {
            sum += norms[p] * norms[p];
            CHECK((norms[p] == 0) == r.params[p].is_frozen);
        }
        CHECK_CLOSE(report.grad_norm, sqrt(sum), 1e-14);
        CHECK_OK(sherd_step_apply(r.engine, NULL));
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void training_goes_on_as_if_nobody_had_asked(void)
{
    ways_expect_same(ways_train_as_planned, train_measured, 3);
}

/* ----------------------------------------------------------- on every layout -- */

typedef struct measured {
    rig_options options;
    double      norms[RIG_PARAMS];
} measured;

static void measure_values(sherd_world *world, void *raw)
{
    measured *m = raw;
    double    norms[RIG_PARAMS];
    rig       r;

    value_rig_declare(&r, world, &m->options);
    rig_seal(&r);
    (void)window_prepare(&r, m->options.accumulation);
    CHECK_OK(sherd_grad_norms(r.engine, norms, (size_t)r.num_params));
    for (int p = 0; p < r.num_params; p++) {
        float  values[VALUE_RIG_ELEMS];
        double sum = 0;

        if (r.params[p].is_frozen) {
            continue;
        }
        CHECK_OK(sherd_param_read(r.engine, r.params[p].handle, SHERD_GRAD, 0, r.params[p].elems,
                                  values));
        for (size_t i = 0; i < r.params[p].elems; i++) {
            sum += (double)values[i] * values[i];
        }
        CHECK_CLOSE(sqrt(sum), norms[p], 1e-6);
    }
    CHECK_OK(sherd_step_discard(r.engine));
    if (sherd_world_rank(world) == 0) {
        memcpy(m->norms, norms, sizeof(norms));
    }
    rig_close(&r);
}

/* With the same ranks the same gradient, at every stage and tier; of several micro-batches in the
 * deterministic mode. */
static void expect_alike(measured *first, int ranks, const rig_options *options)
{
    measured m = {.options = *options};

    test_world(ranks, measure_values, &m);
    if (first->options.accumulation == 0) {
        *first = m;
    }
    CHECK_BYTES_EQUAL(first->norms, m.norms, 10 * sizeof(double));
}

static void norms_are_the_same_bits_on_every_layout(void)
{
    for (int deterministic = 0; deterministic <= 1; deterministic++) {
        measured first = {.options = {0}};

        for (int stage = 0; stage <= 3; stage++) {
            for (size_t t = 0; t < value_rig_tiers(); t++) {
                const value_rig_tier *tier = &VALUE_RIG_TIERS[t];
                char                  keys[1024];
                rig_options           options = {.stage        = stage,
                                                 .accumulation = 1 + deterministic,
                                                 .dtype        = SHERD_BF16,
                                                 .zero         = value_rig_keys(tier, keys),
                                                 .top = deterministic ? ", \"deterministic\": true" : NULL};

                if ((tier->optimizer != NULL && stage == 0) ||
                    (tier->params != NULL && stage < 3)) {
                    continue;
                }
                expect_alike(&first, 2 + deterministic, &options);
            }
        }
    }
}

/* More parameters than are added up at once; each has a norm that is known. */
static void measure_many(sherd_world *world, void *raw)
{
    static const size_t COUNT = 150;
    sherd_param         params[150];
    double              norms[150];
    rig                 r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "first");
    (void)rig_unit(&r, "second");
    for (size_t p = 0; p < COUNT; p++) {
        sherd_param_params of;
        char               name[16];

        sherd_param_params_init(&of);
        (void)snprintf(name, sizeof(name), "p%zu", p);
        of.name     = name;
        of.ndim     = 1;
        of.shape[0] = 1 + p * 7 % 300;
        CHECK_OK(sherd_param_add(r.engine, r.units[p % 2], &of, &params[p]));
    }
    CHECK_OK(sherd_engine_seal(r.engine));
    for (size_t p = 0; p < COUNT; p++) {
        CHECK_OK(sherd_param_fill(r.engine, params[p], rig_fill, NULL));
    }
    for (int u = 1; u >= 0; u--) {
        rig_acquire(&r, u, SHERD_BACKWARD);
        for (size_t p = (size_t)u; p < COUNT; p += 2) {
            float *grad = sherd_param_grad(r.engine, params[p]);
            float  g    = (float)(p + 1);

            CHECK_OK(sherd_copy(r.engine, grad + p * 7 % 300, &g, sizeof(g)));
        }
        rig_release(&r, u, SHERD_BACKWARD);
    }
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    CHECK_OK(sherd_grad_norms(r.engine, norms, COUNT));
    for (size_t p = 0; p < COUNT; p++) {
        CHECK_CLOSE((double)(p + 1), norms[p], 0);
    }
    CHECK_OK(sherd_step_apply(r.engine, NULL));
    rig_close(&r);
}

static void many_parameters_have_their_norms(void)
{
    ways_on_every_stage(2, measure_many);
}

/* ------------------------------------------------------------ what is no number -- */

static void measure_infinity(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    double             norms[9];
    rig                r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int u = 3; u > 0; u--) { /* unit 0 stays away */
        rig_acquire(&r, u, SHERD_BACKWARD);
        rig_poke(&r, 2 * u, 9, u == 2 && sherd_world_rank(world) == 0 ? INFINITY : 4.0f);
        rig_release(&r, u, SHERD_BACKWARD);
    }
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    CHECK_OK(sherd_grad_norms(r.engine, norms, 9));
    for (int p = 0; p < 8; p++) {
        double want = p == 2 || p == 6 ? 4 : 0;

        if (p == 4 || options->top != NULL) {
            CHECK(isnan(norms[p]));
        } else {
            CHECK_CLOSE(want, norms[p], 0);
        }
    }
    CHECK_CLOSE(0, norms[8], 0); /* frozen */
    CHECK_OK(sherd_step_discard(r.engine));
    rig_close(&r);
}

static void infinity_shows_where_it_is(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage};

        test_world(2, measure_infinity, &options);
        options.top = ", \"deterministic\": true";
        test_world(2, measure_infinity, &options);
    }
}

static void ask_wrongly(sherd_world *world, void *raw)
{
    double norms[9];
    rig    r;

    ways_declare_layers(&r, world, raw);
    CHECK_STATUS(SHERD_E_STATE, sherd_grad_norms(r.engine, norms, 9));
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_grad_norms(r.engine, norms, 9));
    CHECK_ERROR_SAYS("sherd_step_prepare");
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_grad_norms(r.engine, norms, 8));
    CHECK_ERROR_SAYS("the number of parameters is 9");
    /* what one rank calls wrongly, none does */
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_grad_norms(r.engine, norms, sherd_world_rank(world) == 1 ? 1 : 9));
    CHECK_OK(sherd_grad_norms(r.engine, norms, 9));
    CHECK_OK(sherd_step_apply(r.engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_grad_norms(r.engine, norms, 9));
    rig_close(&r);
}

static void calls_at_the_wrong_time_are_refused(void)
{
    rig_options options = {.stage = 2};

    test_world(2, ask_wrongly, &options);
}

static const test_case CASES[] = {
    CASE(norm_of_the_only_parameter_is_the_norm),
    CASE(training_goes_on_as_if_nobody_had_asked),
    CASE(norms_are_the_same_bits_on_every_layout),
    CASE(many_parameters_have_their_norms),
    CASE(infinity_shows_where_it_is),
    CASE(calls_at_the_wrong_time_are_refused),
};

RUN_MAIN(CASES)
