/* Windows that are dropped: whatever of them is still under way (reductions on the world's thread)
 * leaves nothing in the windows after them. Large gradients, so that the drop comes before the
 * reduction runs. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* An emulated device is slow, and comes late by itself. */
static int is_on_device(void)
{
    return getenv("SHERD_BACKEND") != NULL;
}

typedef struct drop_job {
    rig_options options;
    float       poison; /* what the dropped window has in it; 0: there is no such window */
    uint64_t    fingerprint;
} drop_job;

static void big_open(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    (void)rig_unit(r, "first");
    (void)rig_unit(r, "second");
    (void)rig_param(r, 0, "first.w", is_on_device() ? 3000 : 300000);
    (void)rig_param(r, 1, "second.w", is_on_device() ? 1000 : 100000);
    rig_seal(r);
}

/* A backward pass with that value all over; its last reduction has been asked for and not waited
 * for. */
static void poisoned_backward(rig *r, float poison)
{
    for (int u = 1; u >= 0; u--) {
        rig_acquire(r, u, SHERD_BACKWARD);
        for (size_t i = 0; i < 100; i++) {
            rig_poke(r, u, i * (r->params[u].elems / 100), poison);
        }
        rig_release(r, u, SHERD_BACKWARD);
    }
}

static uint64_t clean_steps(rig *r)
{
    uint64_t fingerprint = 0;

    for (int i = 0; i < 2; i++) {
        sherd_step_report report = rig_train(r, 1);

        CHECK_INT(1, report.was_updated);
        CHECK_INT(0, report.has_overflow);
        fingerprint = report.fingerprint;
    }
    return fingerprint;
}

static void drop_by_discard(sherd_world *world, void *raw)
{
    drop_job *job = raw;
    uint64_t  fingerprint;
    rig       r;

    big_open(&r, world, &job->options);
    if (job->poison != 0) {
        poisoned_backward(&r, job->poison);
        CHECK_OK(sherd_step_discard(r.engine));
    }
    fingerprint = clean_steps(&r);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = fingerprint;
    }
    rig_close(&r);
}

static void expect_the_same_without_the_window(const rig_options *options,
                                               void (*body)(sherd_world *, void *))
{
    drop_job clean    = {.options = *options};
    drop_job infinite = {.options = *options, .poison = INFINITY};
    drop_job large = {.options = *options, .poison = 1e6f}; /* beyond the range of the integers */

    test_world(3, body, &clean);
    test_world(3, body, &infinite);
    test_world(3, body, &large);
    CHECK_INT(clean.fingerprint, infinite.fingerprint);
    CHECK_INT(clean.fingerprint, large.fingerprint);
}

static void discarded_window_leaves_nothing_in_the_next(void)
{
    static const char *const TOPS[] = {", \"deterministic\": true", ""};

    for (int stage = is_on_device() ? 3 : 0; stage <= 3; stage++) {
        for (int t = 0; t < (is_on_device() ? 1 : 2); t++) {
            rig_options options = {
                .stage = stage, .zero = ", \"overlap_comm\": true", .top = TOPS[t]};

            expect_the_same_without_the_window(&options, drop_by_discard);
        }
    }
}

/* A step, then half a window with the poison in it, then back to before the step. */
static void drop_by_undo(sherd_world *world, void *raw)
{
    drop_job *job = raw;
    uint64_t  fingerprint;
    rig       r;

    big_open(&r, world, &job->options);
    if (job->poison != 0) {
        CHECK_INT(1, rig_train(&r, 1).was_updated);
        poisoned_backward(&r, job->poison);
        CHECK_OK(sherd_step_undo(r.engine));
        r.micro = 0;
    }
    fingerprint = clean_steps(&r);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = fingerprint;
    }
    rig_close(&r);
}

static void undone_window_leaves_nothing_in_the_next(void)
{
    char        zero[1024];
    rig_options options = {.stage = 3, .top = ", \"deterministic\": true", .zero = zero};

#ifndef SHERDI_HAVE_XXHASH
    test_skip("no libxxhash in this build");
#endif
    (void)snprintf(zero, sizeof(zero),
                   ", \"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\", \"durable\": false}",
                   test_scratch());
    expect_the_same_without_the_window(&options, drop_by_undo);
}

/* Nothing of what it reads is written meanwhile: thread sanitizer looks. */
static void look_in_mid_window(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    uint64_t           before;
    rig                r;

    big_open(&r, world, options);
    before = rig_fingerprint(&r);
    for (int i = 0; i < 3; i++) {
        rig_micro_batch(&r);
        CHECK_INT(before, rig_fingerprint(&r));
        (void)rig_step(&r);
    }
    CHECK_INT(before, rig_fingerprint(&r));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void fingerprint_in_mid_window_is_that_of_the_last_update(void)
{
    for (int stage = is_on_device() ? 3 : 0; stage <= 3; stage++) {
        rig_options options = {.stage        = stage,
                               .accumulation = 4,
                               .zero         = ", \"overlap_comm\": true",
                               .top          = ", \"deterministic\": true"};

        test_world(3, look_in_mid_window, &options);
    }
}

static const test_case CASES[] = {
    CASE(discarded_window_leaves_nothing_in_the_next),
    CASE(undone_window_leaves_nothing_in_the_next),
    CASE(fingerprint_in_mid_window_is_that_of_the_last_update),
};

RUN_MAIN(CASES)
