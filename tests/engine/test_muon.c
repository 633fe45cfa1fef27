/* Muon together with an optimizer of vectors. The engine gives the bits of the same training on
 * whole matrices, at every stage and place and on every number of ranks. Also tested are what is
 * planned for it and moved, and what is refused. */
#include "base/checked.h"
#include "engine/run/engine_impl.h"
#include "engine/report.h"
#include "kernels/orthogonal.h"
#include "sherd_tools.h"
#include "tests/engine/elements.h"
#include "tests/engine/places.h"
#include "tests/engine/plain.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS  3
#define PARAMS 8

/* Wide, tall and square matrices, some of one row or one column. The last parameter is frozen and
 * no matrix. */
static const struct {
    int    unit, is_vector;
    size_t rows, cols;
} MODEL[PARAMS] = {{0, 0, 40, 90}, {0, 1, 300, 1}, {0, 0, 33, 7}, {1, 0, 65, 1},
                   {1, 0, 1, 130}, {2, 0, 24, 24}, {2, 1, 64, 1}, {2, 0, 100, 1}};

static int is_frozen(int param)
{
    return param == PARAMS - 1;
}

static size_t elems_of(int param)
{
    return MODEL[param].rows * MODEL[param].cols;
}

/* Keys of optimizer.params, and what they mean. */
typedef struct variant {
    const char *params;
    plain_muon  means;
} variant;

static const variant VARIANTS[] = {
    {NULL, {0.95, 1, 5, 0}},
    {", \"momentum\": 0.8, \"nesterov\": false, \"ns_steps\": 2, \"adjust_lr_fn\": "
     "\"match_rms_adamw\"",
     {0.8, 0, 2, 1}},
    {", \"momentum\": 0, \"ns_steps\": 1", {0, 1, 1, 0}},
};
#define NUM_VARIANTS (sizeof(VARIANTS) / sizeof(VARIANTS[0]))

static const place PLACES[] = {
    {"", 0, 0},
    {", \"sub_group_size\": 256", 0, 0},
    {PLACE_OF_STATE("256", ", \"device\": \"cpu\", \"buffer_size\": 4096"), 1, 0},
    {PLACE_OF_STATE("256", ", \"device\": \"nvme\", \"buffer_size\": 4096, \"buffer_count\": 2"), 1,
     1},
    {PLACE_OF_STATE("256",
                    ", \"device\": \"nvme\", \"gradients\": \"nvme\", \"buffer_size\": 4096"),
     2, 1},
    {PLACE_OF_STATE("256", ", \"device\": \"nvme\", \"ratio\": 0.4, \"buffer_size\": 4096"), 1, 1},
};
#define NUM_PLACES (sizeof(PLACES) / sizeof(PLACES[0]))

/* --------------------------------------------------------------- the engine -- */

static void model_declare(rig *r)
{
    sherd_group_params group;
    sherd_group        vectors;
    char               name[8];

    sherd_group_params_init(&group);
    group.name      = "vectors";
    group.optimizer = "AdamW";
    CHECK_OK(sherd_group_add(r->engine, &group, &vectors));
    for (int u = 0; u < 3; u++) {
        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(r, name);
    }
    for (int p = 0; p < PARAMS; p++) {
        sherd_param_params params;

        sherd_param_params_init(&params);
        params.group    = MODEL[p].is_vector ? vectors : SHERD_GROUP_DEFAULT;
        params.frozen   = is_frozen(p);
        params.ndim     = MODEL[p].is_vector || is_frozen(p) ? 1 : 2;
        params.shape[0] = MODEL[p].rows;
        params.shape[1] = params.ndim == 2 ? MODEL[p].cols : 0;
        (void)snprintf(name, sizeof(name), "p%d", p);
        (void)rig_param_as(r, MODEL[p].unit, name, elems_of(p), &params);
    }
}

/* ------------------------------------------------------------ without one -- */

/* Returns the gradient of a rank's micro-batch. */
static float gradient(int step, int rank, int param, size_t i)
{
    uint64_t state = (((uint64_t)step * 16 + (uint64_t)rank) * PARAMS + (uint64_t)param) << 32 | i;

    return test_random_float(&state);
}

static uint64_t plain_train(int world_size, sherd_dtype dtype, const variant *how)
{
    plain_param params[PARAMS];
    plain_rule  rule = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .muon = how->means};
    uint64_t    fingerprint;

    for (int p = 0; p < PARAMS; p++) {
        plain_param_init(&params[p], elems_of(p));
        params[p].cols      = MODEL[p].cols;
        params[p].dtype     = dtype;
        params[p].is_frozen = is_frozen(p);
        params[p].lr        = 0.01;
        params[p].decay     = 0.1;
        CHECK_OK(rig_fill((void *)(uintptr_t)p, 0, elems_of(p), params[p].master));
        for (size_t i = 0; i < elems_of(p); i++) {
            params[p].weight[i] = plain_round(params[p].master[i], dtype);
        }
    }
    for (int step = 0; step < STEPS; step++) {
        for (int p = 0; p < PARAMS - 1; p++) {
            for (size_t i = 0; i < elems_of(p); i++) {
                float g[8];

                for (int r = 0; r < world_size; r++) {
                    g[r] = plain_round(gradient(step, r, p, i), dtype);
                }
                params[p].grad[i] = plain_mean(g, world_size, dtype);
            }
            rule.kind = MODEL[p].is_vector ? PLAIN_ADAMW : PLAIN_MUON;
            plain_update(&params[p], &rule, 1, step + 1);
        }
    }
    fingerprint = plain_fingerprint(params, PARAMS);
    for (int p = 0; p < PARAMS; p++) {
        plain_param_fini(&params[p]);
    }
    return fingerprint;
}

/* ------------------------------------------------------------------ cases -- */

static void backward(rig *r, int step, int unit)
{
    rig_acquire(r, unit, SHERD_BACKWARD);
    for (int p = 0; p < PARAMS - 1; p++) {
        size_t bytes = elems_of(p) * sherd_dtype_bytes(r->dtype);
        void  *grad =
            MODEL[p].unit == unit ? sherd_param_grad(r->engine, r->params[p].handle) : NULL;
        void *made = grad == NULL ? NULL : malloc(bytes);

        for (size_t i = 0; grad != NULL && i < elems_of(p); i++) {
            store(made, i, r->dtype, gradient(step, sherd_world_rank(r->world), p, i));
        }
        if (grad != NULL) {
            CHECK_OK(sherd_copy(r->engine, grad, made, bytes));
        }
        free(made);
    }
    rig_release(r, unit, SHERD_BACKWARD);
}

/* Trains the steps from `from` up to, but not including, `to`. */
static sherd_step_report train(rig *r, int from, int to)
{
    sherd_step_report report = {0};

    for (int step = from; step < to; step++) {
        for (int u = 0; u < 3; u++) {
            rig_forward(r, u, SHERD_FORWARD);
        }
        for (int u = 2; u >= 0; u--) {
            backward(r, step, u);
        }
        report = rig_step(r);
    }
    return report;
}

/* Checks that a state is read and written once in a step, and that a segment of matrices has an
 * extent of its own. */
static void extents_check(const rig *r, const sherd_step_report *report)
{
    const sherdi_plan *plan = r->engine->plan;
    uint64_t           all  = 0;

    for (size_t e = 0; e < plan->rings[SHERDI_RING_STATE].num_extents; e++) {
        all += plan->rings[SHERDI_RING_STATE].extents[e].len_bytes;
    }
    for (size_t a = 0; a < plan->layout.num_blocks; a++) {
        for (size_t b = 0; b < plan->layout.num_blocks; b++) {
            const sherdi_block *one = &plan->layout.blocks[a], *other = &plan->layout.blocks[b];

            if (one->space == SHERDI_SPACE_STORAGE && other->space == one->space &&
                sherdi_segment_has_matrices(&plan->layout.segments[one->segment])) {
                CHECK_INT(one->segment == other->segment, one->extent == other->extent);
            }
        }
    }
    if (plan->rings[SHERDI_RING_GRADS].num_extents == 0) {
        CHECK_INT(all, report->nvme_read_bytes);
    }
    CHECK_INT(sherdi_plan_moves_of(plan)->micro[SHERDI_MOVES_READ] +
                  sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_READ],
              report->nvme_read_bytes);
    CHECK_INT(sherdi_plan_moves_of(plan)->micro[SHERDI_MOVES_WRITTEN] +
                  sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_WRITTEN],
              report->nvme_written_bytes);
}

/* Checks that products are planned for the matrices of which this rank updates a part. */
static void flops_check(const rig *r)
{
    const sherdi_plan *plan  = r->engine->plan;
    int                steps = r->engine->settings.muon.steps;
    double             flops = 0;

    for (size_t p = 0; p < PARAMS - 1; p++) {
        const sherdi_segment *segment = sherdi_param_segment(plan, p);
        size_t                begin   = plan->layout.params[p].offset_elems;
        size_t                first   = segment->own_first;
        size_t                owned   = segment->own_elems;

        if (!MODEL[p].is_vector && begin < first + owned && first < begin + elems_of((int)p)) {
            flops += sherdi_orthogonal_flops(MODEL[p].rows, MODEL[p].cols, steps);
        }
    }
    CHECK_INT((uint64_t)flops, sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_FLOPS]);
}

/* Checks that the steps moved what was planned. */
static void traffic_check(const rig *r, const sherd_traffic_report *before)
{
    sherd_traffic_report t;

    sherd_traffic_report_init(&t);
    CHECK_OK(sherd_engine_traffic(r->engine, &t));
    CHECK_INT((STEPS - 1) * (t.wire_micro_planned + t.wire_step_planned),
              t.wire_counted - before->wire_counted);
    CHECK_INT((STEPS - 1) * (t.up_micro_planned + t.up_step_planned),
              t.up_counted - before->up_counted);
    CHECK_INT((STEPS - 1) * (t.down_micro_planned + t.down_step_planned),
              t.down_counted - before->down_counted);
}

typedef struct wanted {
    rig_options options;
    uint64_t    fingerprint;
} wanted;

static void rank_train(sherd_world *world, void *ctx)
{
    const wanted        *what = ctx;
    sherd_memory_report  memory;
    sherd_traffic_report before;
    sherd_step_report    report;
    rig                  r;

    rig_open(&r, world, &what->options);
    model_declare(&r);
    CHECK_OK(sherd_engine_check_plans(r.engine));
    rig_seal(&r);
    (void)train(&r, 0, 1); /* the first step ends the fill */
    sherd_traffic_report_init(&before);
    CHECK_OK(sherd_engine_traffic(r.engine, &before));
    report = train(&r, 1, STEPS);
    extents_check(&r, &report);
    flops_check(&r);
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT(memory.total_planned, memory.total_held);
    traffic_check(&r, &before);
    CHECK_INT(what->fingerprint, rig_fingerprint(&r));
    rig_close(&r);
}

static void places_train(int ranks, size_t v)
{
    const uint64_t fingerprints[] = {[SHERD_F32]  = plain_train(ranks, SHERD_F32, &VARIANTS[v]),
                                     [SHERD_BF16] = plain_train(ranks, SHERD_BF16, &VARIANTS[v])};
    char           keys[PLACE_KEYS_BYTES];

    for (size_t i = 0; i < NUM_PLACES; i++) {
        wanted what = {
            .options = {.zero = keys, .optimizer = "Muon", .params = VARIANTS[v].params}};

        place_keys(&PLACES[i], keys);
        what.options.stage = place_first_stage(&PLACES[i]);
        for (; what.options.stage <= 3; what.options.stage++) {
            what.options.dtype =
                ((size_t)ranks + i + (size_t)what.options.stage) % 2 == 0 ? SHERD_BF16 : SHERD_F32;
            what.fingerprint = fingerprints[what.options.dtype];
            test_world(ranks, rank_train, &what);
        }
    }
}

static int is_on_device(void)
{
    return getenv("SHERD_BACKEND") != NULL;
}

/* An emulated device takes long, and few runs show what is particular to it. */
static void matrices_equal_unsharded(void)
{
    static const int RANKS[] = {3, 1, 7, 2, 4, 8};
    size_t           count   = test_is_long() ? 6 : is_on_device() ? 1 : 3;

    for (size_t n = 0; n < count; n++) {
        places_train(RANKS[n], 0);
    }
}

static void variants_equal_unsharded(void)
{
    if (is_on_device() && getenv("SHERD_EMULATOR_EAGER") != NULL && !test_is_long()) {
        return; /* the run of the emulator with delays trains them */
    }
    for (size_t v = 1; v < NUM_VARIANTS; v++) {
        places_train(v == 1 ? 3 : 2, v);
    }
}

/* The time of the products is predicted apart from that of the bytes which the update moves. */
static void rank_predict(sherd_world *world, void *ctx)
{
    sherd_traffic_report traffic;
    sherd_prediction     without, with;
    sherd_rates          rates;
    rig                  r;

    rig_open(&r, world, ctx);
    model_declare(&r);
    sherd_rates_init(&rates);
    sherd_prediction_init(&without);
    sherd_prediction_init(&with);
    sherd_traffic_report_init(&traffic);
    CHECK_OK(sherd_engine_traffic(r.engine, &traffic));
    CHECK(traffic.update_flops_planned > 0);
    CHECK_OK(sherd_engine_predict(r.engine, &rates, &without));
    CHECK(without.step_s == 0);
    rates.products = 1e6;
    CHECK_OK(sherd_engine_predict(r.engine, &rates, &with));
    CHECK(fabs(with.boundary_s - (double)traffic.update_flops_planned / 1e6) <=
          1e-9 * with.boundary_s);
    CHECK(with.step_s == with.boundary_s);
    rig_close(&r);
}

static void products_take_their_time(void)
{
    rig_options options = {.optimizer = "Muon"};

    for (options.stage = 0; options.stage <= 3; options.stage++) {
        test_world(3, rank_predict, &options);
    }
}

/* ---------------------------------------------------------- one training -- */

typedef struct layout {
    rig_options options;
    uint64_t    fingerprint; /* result */
} layout;

/* Trains with as many micro-batches in a window as a world of six ranks with one each. */
static void rank_train_fixed(sherd_world *world, void *ctx)
{
    layout own = *(layout *)ctx; /* a copy, because the ranks are threads and share ctx */
    rig    r;

    own.options.accumulation = 6 / sherd_world_size(world);
    own.options.top          = ", \"deterministic\": true";
    rig_open(&r, world, &own.options);
    model_declare(&r);
    rig_seal(&r);
    (void)rig_train(&r, 2 * own.options.accumulation);
    own.fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        ((layout *)ctx)->fingerprint = own.fingerprint;
    }
    rig_close(&r);
}

static void deterministic_is_one_training(void)
{
    char   keys[PLACE_KEYS_BYTES] = "";
    layout what = {.options = {.stage = 3, .dtype = SHERD_BF16, .optimizer = "Muon", .zero = keys}};
    uint64_t want;

    test_world(2, rank_train_fixed, &what);
    want = what.fingerprint;
    for (size_t i = 0; i < NUM_PLACES && place_is_built(&PLACES[i]); i++) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            what.options.stage = place_some_stage(&PLACES[i], i, ranks);
            place_keys(&PLACES[i], keys);
            test_world(ranks, rank_train_fixed, &what);
            CHECK_INT(want, what.fingerprint);
        }
    }
}

/* ------------------------------------------------------------------ refusals -- */

static void rank_refused(sherd_world *world, void *ctx)
{
    static const size_t SHAPES[][4] = {{1, 7}, {3, 2, 3, 4}, {4, 2, 2, 2}};
    rig_options         options     = {.stage = 2, .optimizer = "Muon"};

    (void)ctx;
    for (size_t i = 0; i < 3; i++) {
        sherd_param_params params;
        char               says[128];
        size_t             elems = 1;
        rig                r;

        rig_open(&r, world, &options);
        (void)rig_unit(&r, "head");
        sherd_param_params_init(&params);
        params.ndim = (int)SHAPES[i][0];
        for (int d = 0; d < params.ndim; d++) {
            params.shape[d] = d < 3 ? SHAPES[i][d + 1] : 2;
            elems *= params.shape[d];
        }
        (void)rig_param_as(&r, 0, "bias", elems, &params);
        (void)snprintf(says, sizeof(says),
                       "parameter bias of unit head is no matrix (dimensions: %d), and Muon",
                       params.ndim);
        CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
        CHECK_ERROR_SAYS(says);
        rig_close(&r);
    }
}

static void what_is_no_matrix_is_refused(void)
{
    test_world(2, rank_refused, NULL);
}

static const test_case CASES[] = {
    CASE(matrices_equal_unsharded),     CASE(variants_equal_unsharded),
    CASE(products_take_their_time),     CASE(deterministic_is_one_training),
    CASE(what_is_no_matrix_is_refused),
};

RUN_MAIN(CASES)
