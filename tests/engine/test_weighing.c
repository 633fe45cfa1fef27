/* Weights of micro-batches, and ranks without data. tests/campaign draws both and compares the bits
 * with its twin; here are the promises between layouts, and the errors. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

#define MICROS 12 /* of a window, over all ranks */
#define MOST   1000

/* The weights of a window, by the number of the micro-batch; 0: its rank has no data. */
static const uint64_t WEIGHTS[MICROS] = {1000, 0, 17, 999, 1, 0, 640, 333, 0, 1000, 512, 3};

typedef struct weigh_job {
    rig_options options;
    int         has_weights; /* weights are given; else those with data count alike */
    uint64_t    weight;      /* of all micro-batches; 0: WEIGHTS */
    uint64_t    fingerprint;
    double      norm;
} weigh_job;

static void model_open(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    rig_three(r, 700);
    rig_seal(r);
}

static void micro_batch(rig *r, const weigh_job *job)
{
    int64_t  n = r->micro * sherd_world_size(r->world) + sherd_world_rank(r->world);
    uint64_t w = job->weight != 0 ? job->weight : WEIGHTS[n % MICROS];

    if (w == 0) {
        CHECK_OK(sherd_micro_batch_skip(r->engine));
        return;
    }
    if (job->has_weights) {
        CHECK_OK(sherd_micro_batch_weight(r->engine, w));
    }
    rig_micro_batch(r);
}

static void weigh_body(sherd_world *world, void *raw)
{
    weigh_job        *job = raw;
    sherd_step_report report;
    rig               r;

    model_open(&r, world, &job->options);
    for (int k = 0; k < 2 * MICROS / sherd_world_size(world); k++) {
        micro_batch(&r, job);
        report = rig_step(&r);
    }
    CHECK_INT(1, report.was_updated);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = report.fingerprint;
        job->norm        = report.grad_norm;
    }
    rig_close(&r);
}

static void expect_one_fingerprint(int has_weights, const char *sherd_keys)
{
    static const int RANKS[] = {1, 2, 3, 4, 6};
    char             top[256];
    weigh_job        first = {0};

    for (size_t i = 0; i < sizeof(RANKS) / sizeof(RANKS[0]); i++) {
        for (int stage = 0; stage <= 3; stage++) {
            for (int shards = 1; shards <= (stage > 0 && RANKS[i] % 2 == 0 ? 2 : 1); shards++) {
                weigh_job job = {.options     = {.stage        = stage,
                                                 .accumulation = MICROS / RANKS[i],
                                                 .clip         = 0.5,
                                                 .top          = top},
                                 .has_weights = has_weights};

#ifndef SHERDI_MODULE_REPLICAS
                if (shards > 1) {
                    continue;
                }
#endif
                (void)snprintf(top, sizeof(top),
                               ", \"deterministic\": true, \"sherd\": {\"shard_size\": %d%s}",
                               shards == 1 ? 0 : RANKS[i] / 2, sherd_keys);
                test_world(RANKS[i], weigh_body, &job);
                if (first.fingerprint == 0) {
                    first = job;
                }
                CHECK_INT(first.fingerprint, job.fingerprint);
                CHECK(first.norm == job.norm);
            }
        }
    }
}

static void weights_have_one_fingerprint_in_all_layouts(void)
{
    expect_one_fingerprint(1, ", \"most_weight\": 1000");
}

static void ranks_without_data_have_one_fingerprint_in_all_layouts(void)
{
    expect_one_fingerprint(0, "");
}

/* Whether gradients are multiplied in the reduction, or while they are added up. */
static void the_full_weight_gives_the_bits_without_weights(void)
{
    static const char *const KEYS[] = {"", ", \"deterministic\": true",
                                       ", \"communication_data_type\": \"fp32\""};
    char                     top[256];

    for (int stage = 0; stage <= 3; stage++) {
        for (int i = 0; i < 6; i++) {
            rig_options options  = {.stage        = stage,
                                    .accumulation = i % 2 == 0 ? 1 : 4,
                                    .dtype        = SHERD_BF16,
                                    .top          = KEYS[i / 2]};
            weigh_job   plain    = {.options = options, .weight = MOST};
            weigh_job   weighted = {.options = options, .has_weights = 1, .weight = MOST};

            (void)snprintf(top, sizeof(top), "%s, \"sherd\": {\"most_weight\": %d}", KEYS[i / 2],
                           MOST);
            weighted.options.top = top;
            test_world(3, weigh_body, &plain);
            test_world(3, weigh_body, &weighted);
            CHECK_INT(plain.fingerprint, weighted.fingerprint);
            CHECK(plain.norm == weighted.norm);
            weighted.weight = 250; /* a power of two: the mean is the same, and so are its bits */
            (void)snprintf(top, sizeof(top), "%s, \"sherd\": {\"most_weight\": %d}", KEYS[i / 2],
                           MOST);
            test_world(3, weigh_body, &weighted);
            if (i / 2 != 1) { /* integers lose the bits below their range */
                CHECK_INT(plain.fingerprint, weighted.fingerprint);
            }
        }
    }
}

/* ------------------------------------------------------------------ errors -- */

static void expect_failure(sherd_status want, sherd_status got, const char *words)
{
    CHECK_STATUS(want, got);
    if (strstr(sherd_last_error(), words) == NULL) {
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", sherd_last_error(), words);
    }
}

/* A window without any data is dropped, and the next one trains as if it had not been. */
static void nothing_body(sherd_world *world, void *raw)
{
    weigh_job        *job = raw;
    sherd_engine_info info;
    rig               r;

    sherd_engine_info_init(&info);
    model_open(&r, world, &job->options);
    for (int k = 0; k < 2; k++) {
        if (job->has_weights) {
            CHECK_OK(sherd_micro_batch_weight(r.engine, 0));
            rig_micro_batch(&r);
        } else {
            CHECK_OK(sherd_micro_batch_skip(r.engine));
        }
        if (k == 0) {
            CHECK_OK(sherd_step(r.engine, NULL));
        }
    }
    expect_failure(SHERD_E_STATE, sherd_step(r.engine, NULL), "no rank had data");
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(0, info.micro_step);
    CHECK_INT(0, info.step);
    CHECK_INT(1, rig_train(&r, 2).was_updated);
    job->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void a_window_without_data_is_an_error(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        weigh_job skipped  = {.options = {.stage = stage, .accumulation = 2}};
        weigh_job weighted = {.options     = {.stage        = stage,
                                              .accumulation = 2,
                                              .top          = ", \"sherd\": {\"most_weight\": 7}"},
                              .has_weights = 1};

        test_world(1, nothing_body, &skipped);
        test_world(1, nothing_body, &weighted);
        CHECK_INT(skipped.fingerprint, weighted.fingerprint);
        test_world(3, nothing_body, &skipped);
    }
}

static void calls_body(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    rig                r;

    rig_open(&r, world, options);
    rig_three(&r, 700);
    expect_failure(SHERD_E_STATE, sherd_micro_batch_skip(r.engine), "not sealed");
    expect_failure(SHERD_E_STATE, sherd_micro_batch_weight(r.engine, 1), "not sealed");
    rig_seal(&r);
    expect_failure(SHERD_E_INVAL, sherd_micro_batch_weight(r.engine, 8), "sherd.most_weight is 7");
    rig_acquire(&r, 0, SHERD_FORWARD);
    expect_failure(SHERD_E_STATE, sherd_micro_batch_skip(r.engine), "still acquired");
    rig_release(&r, 0, SHERD_FORWARD);
    expect_failure(SHERD_E_STATE, sherd_micro_batch_skip(r.engine), "has begun");
    CHECK_OK(sherd_micro_batch_weight(r.engine, 3));
    rig_acquire(&r, 2, SHERD_BACKWARD);
    expect_failure(SHERD_E_STATE, sherd_micro_batch_weight(r.engine, 3), "backward pass");
    rig_release(&r, 2, SHERD_BACKWARD);
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_OK(sherd_micro_batch_skip(r.engine));
    expect_failure(SHERD_E_STATE, sherd_micro_batch_skip(r.engine), "has begun");
    expect_failure(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD),
                   "no data in this micro-batch");
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_BACKWARD));
    CHECK_OK(sherd_step_discard(r.engine));
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    expect_failure(SHERD_E_STATE, sherd_micro_batch_skip(r.engine), "prepared");
    expect_failure(SHERD_E_STATE, sherd_micro_batch_weight(r.engine, 1), "prepared");
    CHECK_OK(sherd_step_discard(r.engine));
    rig_close(&r);
}

static void calls_that_are_not_allowed_are_refused(void)
{
    rig_options options = {.stage = 3, .top = ", \"sherd\": {\"most_weight\": 7}"};

    test_world(1, calls_body, &options);
}

static void keyless_body(sherd_world *world, void *raw)
{
    rig r;

    model_open(&r, world, raw);
    expect_failure(SHERD_E_STATE, sherd_micro_batch_weight(r.engine, 1), "set sherd.most_weight");
    rig_close(&r);
}

static void weights_need_their_key(void)
{
    rig_options options = {.stage = 1};

    test_world(1, keyless_body, &options);
}

static void vendor_body(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    rig                r;

    rig_open(&r, world, options);
    rig_three(&r, 700);
    expect_failure(SHERD_E_NOTSUP, sherd_engine_seal(r.engine), "sherd.vendor_reduction");
    rig_close(&r);
}

static void the_vendors_sum_has_no_weights(void)
{
    rig_options options = {.stage = 2,
                           .top = ", \"sherd\": {\"most_weight\": 7, \"vendor_reduction\": true}"};

    test_world(2, vendor_body, &options);
}

/* A weight that was given for a micro-batch that was dropped does not count for the next one. */
static void dropped_body(sherd_world *world, void *raw)
{
    weigh_job *job = raw;
    rig        r;

    model_open(&r, world, &job->options);
    if (job->has_weights) {
        CHECK_OK(sherd_micro_batch_weight(r.engine, 1 + (uint64_t)sherd_world_rank(world)));
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_discard(r.engine));
        CHECK_OK(sherd_micro_batch_skip(r.engine));
        CHECK_OK(sherd_step_discard(r.engine));
    }
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = rig_fingerprint(&r);
    } else {
        (void)rig_fingerprint(&r);
    }
    rig_close(&r);
}

static void a_dropped_window_leaves_no_weight(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        weigh_job plain = {.options = {.stage = stage, .top = ", \"sherd\": {\"most_weight\": 7}"}};
        weigh_job after = {.options = plain.options, .has_weights = 1};

        test_world(3, dropped_body, &plain);
        test_world(3, dropped_body, &after);
        CHECK_INT(plain.fingerprint, after.fingerprint);
    }
}

/* --------------------------------------------------------------- held units -- */

/* Units that are held through others end in another order than they begin. The reductions meet, so a
 * rank without data has to make them in the same order. */
static void held_body(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    rig                r;

    rig_open(&r, world, options);
    rig_three(&r, 700);
    for (int u = 0; u < 3; u++) {
        CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[u]));
    }
    CHECK_OK(sherd_pass_add_held(r.engine, SHERD_BACKWARD, r.units[2], 2));
    CHECK_OK(sherd_pass_add_held(r.engine, SHERD_BACKWARD, r.units[1], 1));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[0]));
    rig_seal(&r);
    for (int k = 0; k < 3; k++) {
        if (sherd_world_rank(world) == 1 + k % 2) {
            CHECK_OK(sherd_micro_batch_skip(r.engine));
        } else {
            for (int u = 0; u < 3; u++) {
                rig_forward(&r, u, SHERD_FORWARD);
            }
            for (int u = 2; u >= 0; u--) {
                rig_acquire(&r, u, SHERD_BACKWARD);
                rig_touch(&r, u, 1);
            }
            for (int u = 0; u < 3; u++) {
                rig_release(&r, u, SHERD_BACKWARD);
            }
        }
        CHECK_INT(1, rig_step(&r).was_updated);
    }
    rig_close(&r);
}

static void held_units_are_played_in_their_order(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage};

        test_world(3, held_body, &options);
    }
}

static const test_case CASES[] = {
    CASE(weights_have_one_fingerprint_in_all_layouts),
    CASE(ranks_without_data_have_one_fingerprint_in_all_layouts),
    CASE(the_full_weight_gives_the_bits_without_weights),
    CASE(a_window_without_data_is_an_error),
    CASE(calls_that_are_not_allowed_are_refused),
    CASE(weights_need_their_key),
    CASE(the_vendors_sum_has_no_weights),
    CASE(a_dropped_window_leaves_no_weight),
    CASE(held_units_are_played_in_their_order),
};

RUN_MAIN(CASES)
