/* sherd_step_discard after an exception. Wherever a rank stopped, and whichever units it holds,
 * afterwards nothing of the window remains. Ranks that stopped elsewhere, or did not stop, get an
 * error that says so. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define UNITS 3

/* Returns how many events apart the stops are; an emulated device is slow. */
static int stop_step(void)
{
    return getenv("SHERD_BACKEND") != NULL ? 3 : 1;
}

typedef struct event {
    int        is_release;
    int        unit;
    sherd_pass pass;
} event;

/* A micro-batch in which two units are held together in each pass, followed by an evaluation before
 * its step. */
static const event EVENTS[] = {
    {0, 0, SHERD_FORWARD},  {0, 1, SHERD_FORWARD},  {1, 0, SHERD_FORWARD},  {1, 1, SHERD_FORWARD},
    {0, 2, SHERD_FORWARD},  {1, 2, SHERD_FORWARD},  {0, 2, SHERD_BACKWARD}, {1, 2, SHERD_BACKWARD},
    {0, 1, SHERD_BACKWARD}, {0, 0, SHERD_BACKWARD}, {1, 1, SHERD_BACKWARD}, {1, 0, SHERD_BACKWARD},
    {0, 0, SHERD_EVAL},     {0, 1, SHERD_EVAL},     {1, 0, SHERD_EVAL},     {1, 1, SHERD_EVAL},
};

#define NUM_EVENTS ((int)(sizeof(EVENTS) / sizeof(EVENTS[0])))
#define NO_STOP    INT_MAX

typedef struct stop_job {
    rig_options options;
    /* by rank: events that it makes before it drops the window; NO_STOP: it goes on */
    int      stops[3];
    int      is_told_late; /* the others are not notified, and continue until a call fails */
    int      never;        /* there is no such window at all */
    uint64_t fingerprint;
} stop_job;

static void stop_open(rig *r, sherd_world *world, const rig_options *options)
{
    static const char *const NAMES[UNITS] = {"a", "b", "c"};

    rig_open(r, world, options);
    for (int u = 0; u < UNITS; u++) {
        (void)rig_unit(r, NAMES[u]);
        (void)rig_param(r, u, NAMES[u], 700 + 641 * (size_t)u);
    }
    CHECK_OK(sherd_pass_add_held(r->engine, SHERD_FORWARD, r->units[0], 1));
    CHECK_OK(sherd_pass_add(r->engine, SHERD_FORWARD, r->units[1]));
    CHECK_OK(sherd_pass_add(r->engine, SHERD_FORWARD, r->units[2]));
    CHECK_OK(sherd_pass_add(r->engine, SHERD_BACKWARD, r->units[2]));
    CHECK_OK(sherd_pass_add_held(r->engine, SHERD_BACKWARD, r->units[1], 1));
    CHECK_OK(sherd_pass_add(r->engine, SHERD_BACKWARD, r->units[0]));
    rig_seal(r);
}

static sherd_status event_make(rig *r, const event *e)
{
    sherd_status status;

    if (e->is_release) {
        return sherd_unit_release(r->engine, r->units[e->unit], e->pass);
    }
    status = sherd_unit_acquire(r->engine, r->units[e->unit], e->pass);
    if (status == SHERD_OK && e->pass == SHERD_BACKWARD) {
        rig_poke(r, e->unit, 3, INFINITY); /* if any of it remains, the next norm shows it */
    }
    return status;
}

/* Makes events until this rank stops. A rank that was not notified gets an error from a call. */
static void window_begin(rig *r, const stop_job *job)
{
    int          stop   = job->stops[sherd_world_rank(r->world)];
    sherd_status status = SHERD_OK;

    for (int i = 0; i < stop && status == SHERD_OK; i++) {
        status = i % (NUM_EVENTS + 1) < NUM_EVENTS ? event_make(r, &EVENTS[i % (NUM_EVENTS + 1)])
                                                   : sherd_step(r->engine, NULL);
    }
    CHECK(stop < NO_STOP || status != SHERD_OK);
    if (status != SHERD_OK) {
        CHECK(job->is_told_late);
        CHECK_STATUS(SHERD_E_STATE, status);
        CHECK_ERROR_SAYS("dropped the window");
        CHECK_ERROR_SAYS("sherd_step_discard");
    }
}

static void window_is_not_there(rig *r)
{
    for (int u = 0; u < UNITS; u++) {
        CHECK(sherd_param_data(r->engine, r->params[u].handle) == NULL);
        for (int pass = SHERD_FORWARD; pass <= SHERD_EVAL; pass++) {
            CHECK_STATUS(SHERD_E_STATE,
                         sherd_unit_release(r->engine, r->units[u], (sherd_pass)pass));
        }
    }
}

static int64_t micro_step(const rig *r)
{
    sherd_engine_info info;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    return info.micro_step;
}

static void stop_run(sherd_world *world, void *raw)
{
    stop_job *job = raw;
    uint64_t  fingerprint;
    rig       r;

    stop_open(&r, world, &job->options);
    (void)rig_train(&r, job->options.accumulation);
    if (!job->never) {
        window_begin(&r, job);
        CHECK_OK(sherd_step_discard(r.engine));
        window_is_not_there(&r);
        CHECK_INT(job->options.accumulation, micro_step(&r));
    }
    fingerprint = rig_train(&r, 2 * job->options.accumulation).fingerprint;
    CHECK(fingerprint != 0);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = fingerprint;
    }
    rig_close(&r);
}

/* ---------------------------------------------------------- the same place -- */

static const char *offload(const char *device, char *keys, size_t len_bytes)
{
    (void)snprintf(keys, len_bytes,
                   ", \"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}", device,
                   test_scratch());
    return keys;
}

/* Layouts whose collectives meet at different calls. */
static const rig_options *layout(int i, int *ranks_out)
{
    static char        host[1024], drive[1024];
    static rig_options layouts[] = {
        {.stage = 0, .accumulation = 1},
        {.stage = 1, .accumulation = 2, .zero = ", \"overlap_comm\": false"},
        {.stage = 2, .accumulation = 1, .zero = ", \"overlap_comm\": true"},
        {.stage = 2, .accumulation = 2, .top = ", \"deterministic\": true"},
        {.stage = 3, .accumulation = 1, .zero = ", \"overlap_comm\": false"},
        {.stage = 3, .accumulation = 2, .zero = ", \"overlap_comm\": true", .dtype = SHERD_BF16},
        {.stage = 3, .accumulation = 1},
        {.stage = 3, .accumulation = 1},
    };

    if (i >= (int)(sizeof(layouts) / sizeof(layouts[0]))) {
        return NULL;
    }
    *ranks_out      = i % 3 + 1;
    layouts[6].zero = offload("cpu", host, sizeof(host));
    layouts[7].zero = offload("nvme", drive, sizeof(drive));
#ifndef SHERDI_HAVE_XXHASH
    if (i == 7) {
        return NULL;
    }
#endif
    return &layouts[i];
}

static uint64_t fingerprint_without(const rig_options *options, int ranks)
{
    stop_job job = {.options = *options, .never = 1};

    test_world(ranks, stop_run, &job);
    return job.fingerprint;
}

static void discard_anywhere_leaves_nothing_of_the_window(void)
{
    const rig_options *options;
    int                ranks;

    for (int i = 0; (options = layout(i, &ranks)) != NULL; i++) {
        uint64_t want = fingerprint_without(options, ranks);

        for (int stop = 0; stop <= NUM_EVENTS; stop += stop_step()) {
            stop_job job = {.options = *options, .stops = {stop, stop, stop}};

            test_world(ranks, stop_run, &job);
            CHECK_INT(want, job.fingerprint);
        }
    }
}

/* --------------------------------------------------------- different places -- */

/* Rank 0 stops, and the others do not know it. */
static void ranks_that_go_on_are_told_and_train_on(void)
{
    const rig_options *options;
    int                ranks;

    for (int i = 0; (options = layout(i, &ranks)) != NULL; i++) {
        uint64_t want = fingerprint_without(options, 3);

        for (int stop = 0; stop <= NUM_EVENTS; stop += stop_step()) {
            stop_job job = {
                .options = *options, .stops = {stop, NO_STOP, NO_STOP}, .is_told_late = 1};

            test_world(3, stop_run, &job);
            CHECK_INT(want, job.fingerprint);
        }
    }
}

/* All ranks stop, each at another place; a rank that waits for another one gets an error. */
static void ranks_that_stopped_at_different_places_train_on(void)
{
    const rig_options *options;
    int                ranks;
    uint64_t           state = 16;

    for (int i = 0; (options = layout(i, &ranks)) != NULL; i++) {
        uint64_t want = fingerprint_without(options, 3);

        for (int n = 0; n < 12; n += stop_step()) {
            stop_job job = {.options = *options, .is_told_late = 1};

            for (int r = 0; r < 3; r++) {
                job.stops[r] = (int)(test_random(&state) % (NUM_EVENTS + 1));
            }
            test_world(3, stop_run, &job);
            CHECK_INT(want, job.fingerprint);
        }
    }
}

/* ------------------------------------------------------------- other calls -- */

/* Rank 0 drops its window while the others are in calls of the world and of values. */
static void stop_in_other_calls(sherd_world *world, void *raw)
{
    double value = 1;
    float  values[4];
    rig    r;

    stop_open(&r, world, raw);
    (void)rig_train(&r, 1);
    if (sherd_world_rank(world) == 1) {
        CHECK_STATUS(SHERD_E_STATE, sherd_world_sum_f64(world, &value, 1));
        CHECK_ERROR_SAYS("rank 0 has dropped the window");
        CHECK_STATUS(SHERD_E_STATE, sherd_world_barrier(world));
    } else if (sherd_world_rank(world) == 2) {
        CHECK_STATUS(SHERD_E_STATE,
                     sherd_param_read(r.engine, r.params[0].handle, SHERD_MASTER, 0, 4, values));
    }
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_OK(sherd_world_sum_f64(world, &value, 1));
    CHECK_CLOSE(3.0, value, 0);
    CHECK_OK(sherd_param_read(r.engine, r.params[0].handle, SHERD_MASTER, 0, 4, values));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void calls_of_the_world_that_a_rank_leaves_say_so(void)
{
    rig_options options = {.stage = 3, .accumulation = 1};

    test_world(3, stop_in_other_calls, &options);
}

/* Discards before anything was acquired, in the middle of a window, after a prepared step, and
 * twice. */
static void stop_at_any_time(sherd_world *world, void *raw)
{
    sherd_step_report report = {.struct_size = sizeof(report)};
    uint64_t          before;
    rig               r;

    stop_open(&r, world, raw);
    CHECK_OK(sherd_step_discard(r.engine));
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_INT(1, rig_train(&r, 2).was_updated);
    before = rig_fingerprint(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, &report));
    CHECK_INT(1, report.is_boundary);
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_INT(before, rig_fingerprint(&r));
    /* this includes those of the prepared window, which all ranks have made */
    CHECK_INT(4, micro_step(&r));
    CHECK_INT(1, rig_train(&r, 2).was_updated);
    rig_close(&r);
}

static void discard_is_right_at_any_time_after_seal(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .accumulation = 2};

        test_world(2, stop_at_any_time, &options);
    }
}

/* A step drops a window, in which rank 0 saw fewer micro-batches where that is possible; then the
 * trainer drops the next one. */
static void step_drops(sherd_world *world, void *raw)
{
    rig r;

    stop_open(&r, world, raw);
    (void)rig_train(&r, 2);
    if (sherd_world_size(world) > 1 && sherd_world_rank(world) == 0) {
        CHECK_OK(sherd_step_close_window(r.engine));
    } else {
        (void)rig_train(&r, 1);
    }
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("the window was dropped");
    CHECK_INT(2, micro_step(&r));
    CHECK_INT(1, rig_train(&r, 2).was_updated);
    (void)rig_train(&r, 1);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_INT(4, micro_step(&r));
    CHECK_INT(6, rig_train(&r, 2).micro_step);
    rig_close(&r);
}

static void a_window_that_a_step_drops_is_not_counted(void)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        rig_options options = {.stage = ranks == 1 ? 3 : ranks - 2, .accumulation = 2};

        test_world(ranks, step_drops, &options);
    }
}

static const test_case CASES[] = {
    CASE(discard_anywhere_leaves_nothing_of_the_window),
    CASE(ranks_that_go_on_are_told_and_train_on),
    CASE(ranks_that_stopped_at_different_places_train_on),
    CASE(calls_of_the_world_that_a_rank_leaves_say_so),
    CASE(discard_is_right_at_any_time_after_seal),
    CASE(a_window_that_a_step_drops_is_not_counted),
};

RUN_MAIN(CASES)
