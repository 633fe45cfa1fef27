/* Failures during a queued update, or before the ranks meet: a rank that drops its window where the
 * others wait for it, a rank whose drive fails in its gradients, and a failure that is asked for
 * more than once. All ranks hear it by name, and nothing is lost. */
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define ELEMS 3000

typedef struct failure_run {
    rig_options options;
    const char *more;       /* keys of offload_optimizer */
    int         nth, count; /* the request that fails, and how many were seen */
    int         variant;
    int         left;         /* times that rank 0 failed in its step before the ranks met */
    int         heard[RANKS]; /* times that another rank heard why */
    uint64_t    want[4];      /* fingerprints by step */
    uint64_t    written[RANKS];
} failure_run;

static void run_open(rig *r, sherd_world *world, const failure_run *run)
{
    char        zero[1024];
    rig_options options = run->options;

    (void)snprintf(zero, sizeof(zero),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                   "\"durable\": false, \"buffer_size\": 4096%s}",
                   test_scratch(), run->more);
    options.dtype = SHERD_BF16;
    options.clip  = 1;
    options.zero  = zero;
    rig_open(r, world, &options);
    rig_three(r, ELEMS);
    rig_seal(r);
}

static int micros_of(const failure_run *run)
{
    return run->options.accumulation == 0 ? 1 : run->options.accumulation;
}

static void reference_train(sherd_world *world, void *raw)
{
    failure_run      *run = raw;
    sherd_step_report report;
    rig               r;

    sherd_step_report_init(&report);
    run_open(&r, world, run);
    for (int step = 1; step <= 3; step++) {
        (void)rig_train(&r, micros_of(run) - 1);
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_queue(r.engine));
        CHECK_OK(sherd_step_wait(r.engine, &report));
        r.micro++;
        if (step == 1) {
            run->written[sherd_world_rank(world)] = report.nvme_written_bytes;
        }
        if (sherd_world_rank(world) == 0) {
            run->want[step] = report.fingerprint;
        }
    }
    rig_close(&r);
}

static void armed(sherd_world *world, int nth, int count)
{
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        fault_arm(nth > 0 ? FAULT_EIO : FAULT_NONE, FAULT_ANY, nth, count);
    }
    CHECK_OK(sherd_world_barrier(world));
}

/* ------------------------------------------------------------ an exception -- */

/* The call in which the other ranks wait for the rank that drops its window. */
static sherd_status meeting_call(rig *r, int variant)
{
    uint64_t fingerprint;

    switch (variant) {
    case 0:
        return sherd_step_wait(r->engine, NULL);
    case 1:
        rig_micro_batch(r);
        return sherd_step(r->engine, NULL);
    case 2:
        rig_micro_batch(r);
        return sherd_step_queue(r->engine);
    case 3:
        return sherd_engine_set_step(r->engine, 7, 7);
    default:
        return sherd_engine_fingerprint(r->engine, &fingerprint);
    }
}

#define MEETING_CALLS 5

/* Rank 0 has an exception in the forward pass during the update. */
static void exception_train(sherd_world *world, void *raw)
{
    failure_run      *run  = raw;
    int               rank = sherd_world_rank(world);
    sherd_step_report report;
    rig               r;

    sherd_step_report_init(&report);
    run_open(&r, world, run);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_queue(r.engine));
    r.micro++;
    if (rank == 0) {
        rig_acquire(&r, 0, SHERD_FORWARD);
    } else {
        CHECK_STATUS(SHERD_E_STATE, meeting_call(&r, run->variant));
        CHECK_ERROR_SAYS("rank 0 has dropped the window");
    }
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK(rank > 0 || r.engine->run.progress.is_queued); /* it has not waited for the update */
    CHECK_OK(sherd_step_wait(r.engine, &report));        /* nobody has lost the update */
    CHECK_INT(run->want[1], report.fingerprint);
    CHECK_INT(1, report.stored_step);
    CHECK_INT(run->written[rank], report.nvme_written_bytes);
    CHECK_INT(run->want[2], rig_train(&r, 1).fingerprint);
    rig_close(&r);
}

static void a_window_that_one_rank_drops_leaves_the_update(void)
{
    failure_run run = {.options = {.stage = 1}, .more = ""};

    for (int ranks = 2; ranks <= RANKS; ranks++) {
        test_world(ranks, reference_train, &run);
        for (run.variant = 0; run.variant < MEETING_CALLS; run.variant++) {
            test_world(ranks, exception_train, &run);
        }
    }
}

/* ------------------------------------------------------- before the ranks meet -- */

/* Makes a micro-batch and its step. A trainer that looks at the outcome of the step alone goes on
 * after a release that fails. */
static sherd_status micro_batch_try(rig *r)
{
    for (int u = 0; u < 2 * r->num_units; u++) {
        int        is_forward = u < r->num_units;
        int        unit       = is_forward ? u : 2 * r->num_units - 1 - u;
        sherd_pass pass       = is_forward ? SHERD_FORWARD : SHERD_BACKWARD;

        CHECK_OK(sherd_unit_acquire(r->engine, r->units[unit], pass));
        if (!is_forward) {
            rig_touch(r, unit, 1);
        }
        if (sherd_unit_release(r->engine, r->units[unit], pass) != SHERD_OK) {
            CHECK(!is_forward);
        }
    }
    return sherd_step(r->engine, NULL);
}

/* Returns whether the window has to be made again. */
static int window_fails(rig *r, failure_run *run, int rank)
{
    sherd_status status = SHERD_OK;
    int          micros;

    for (micros = 0; micros < micros_of(run) && status == SHERD_OK; micros++, r->micro++) {
        status = micro_batch_try(r);
    }
    if (status == SHERD_OK) {
        return 0;
    }
    r->micro -= micros;
    CHECK(strlen(sherd_last_error()) > 20);
    if (rank == 0 && r->engine->window.is_left && micros == micros_of(run)) {
        run->left++;
    }
    if (rank > 0 && strstr(sherd_last_error(), "rank 0 has failed while") != NULL) {
        CHECK_INT(SHERD_E_STATE, status);
        CHECK_ERROR_SAYS("all ranks must call sherd_step_discard");
        CHECK_ERROR_SAYS("Input/output error");
        run->heard[rank]++;
    }
    return 1;
}

/* Rank 0's drive fails in one request of the second window. */
static void left_train(sherd_world *world, void *raw)
{
    failure_run *run  = raw;
    int          rank = sherd_world_rank(world);
    rig          r;

    run_open(&r, world, run);
    CHECK_INT(run->want[1], rig_train(&r, micros_of(run)).fingerprint);
    armed(world, run->nth, 1);
    while (window_fails(&r, run, rank)) {
        if (sherd_step_discard(r.engine) != SHERD_OK) { /* on every rank the update had begun */
            CHECK_OK(sherd_step_undo(r.engine));
        }
    }
    if (rank == 0) {
        run->count = fault_seen();
    }
    armed(world, 0, 0);
    CHECK_INT(run->want[2], rig_fingerprint(&r));
    CHECK_INT(run->want[3], rig_train(&r, micros_of(run)).fingerprint);
    rig_close(&r);
}

static void every_request_of_gradients_fails(int ranks, int accumulation, int uses)
{
    failure_run run = {.options = {.stage = 2, .accumulation = accumulation, .backward_uses = uses},
                       .more    = ", \"gradients\": \"nvme\", \"buffer_count\": 2"};

    test_world(ranks, reference_train, &run);
    test_world(ranks, left_train, &run);
    CHECK(run.count > 10);
    for (int nth = 1, count = run.count; nth <= count; nth += test_is_long() ? 1 : 2) {
        run.nth = nth;
        test_world(ranks, left_train, &run);
    }
    for (int r = 1; r < ranks; r++) { /* who waited for rank 0 in the step has heard why */
        CHECK(run.heard[r] >= run.left);
    }
    (void)printf("  %d requests, %d failures before the ranks met\n", run.count, run.left);
}

static void a_rank_that_fails_before_the_ranks_meet_says_why(void)
{
    (void)setenv("SHERD_IO", "threads", 1);
    every_request_of_gradients_fails(2, 0, 0);
    every_request_of_gradients_fails(3, 2, SHERD_USES_ANY);
    every_request_of_gradients_fails(3, 0, SHERD_USES_ANY);
    (void)unsetenv("SHERD_IO");
}

/* ------------------------------------------------------------- asked for again -- */

static void asked_train(sherd_world *world, void *raw)
{
    failure_run      *run = raw;
    sherd_step_report report;
    rig               r;

    sherd_step_report_init(&report);
    run_open(&r, world, run);
    CHECK_INT(run->want[1], rig_train(&r, 1).fingerprint);
    rig_micro_batch(&r);
    armed(world, 1, 0);
    CHECK_OK(sherd_step_queue(r.engine));
    CHECK_STATUS(SHERD_E_IO, sherd_step_wait(r.engine, &report));
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(SHERD_E_STATE, sherd_step_wait(r.engine, &report));
        CHECK_ERROR_SAYS("call sherd_step_undo");
        CHECK_ERROR_SAYS("the cause was:");
        CHECK_INT(0, report.step); /* it is not written */
    }
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_discard(r.engine));
    armed(world, 0, 0);
    CHECK_OK(sherd_step_undo(r.engine));
    CHECK_INT(run->want[1], rig_fingerprint(&r));
    CHECK_INT(run->want[2], rig_train(&r, 1).fingerprint);
    CHECK_OK(sherd_step_wait(r.engine, &report));
    CHECK_INT(run->want[2], report.fingerprint);
    rig_close(&r);
}

static void a_failure_is_returned_until_it_is_undone(void)
{
    failure_run run = {.options = {.stage = 3}, .more = ""};

    (void)setenv("SHERD_IO", "threads", 1);
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        test_world(ranks, reference_train, &run);
        test_world(ranks, asked_train, &run);
    }
    (void)unsetenv("SHERD_IO");
}

/* -------------------------------------------------- a read that nobody needs -- */

#define PARAMS_ON_NVME                                                                             \
    "}, \"stage3_prefetch_bucket_size\": 0, \"offload_param\": {\"device\": \"nvme\", "            \
    "\"nvme_path\": \"%s\", \"buffer_size\": 2048, \"max_in_cpu\": 0, \"buffer_count\": 1"

/* The drive of one rank fails in what an evaluation has read ahead of parameters, which the update
 * then changes. variant: 0 waits for the update. */
static void unneeded_train(sherd_world *world, void *raw)
{
    failure_run      *run = raw;
    sherd_step_report report;
    rig               r;

    sherd_step_report_init(&report);
    run_open(&r, world, run);
    CHECK_INT(run->want[1], rig_train(&r, 1).fingerprint);
    rig_micro_batch(&r);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        fault_arm(run->nth > 0 ? FAULT_EIO : FAULT_NONE, FAULT_READS, run->nth, 1);
    }
    CHECK_OK(sherd_world_barrier(world));
    while (sherd_unit_acquire(r.engine, r.units[0], SHERD_EVAL) != SHERD_OK) {
        CHECK_ERROR_SAYS("reading parameters"); /* that one was needed */
    }
    rig_release(&r, 0, SHERD_EVAL);
    while (run->nth > 0 && fault_hits() == 0) {
        (void)sched_yield();
    }
    CHECK_OK(run->variant == 0 ? sherd_step(r.engine, NULL) : sherd_step_queue(r.engine));
    CHECK_OK(sherd_step_wait(r.engine, &report));
    CHECK_INT(run->want[2], report.fingerprint);
    r.micro++;
    CHECK_INT(run->want[3], rig_train(&r, 1).fingerprint);
    rig_close(&r);
}

static void a_read_ahead_that_nobody_needs_fails_no_step(void)
{
    failure_run run = {.options = {.stage = 3}, .more = ""};
    char        more[512];

    (void)setenv("SHERD_IO", "threads", 1);
    (void)snprintf(more, sizeof(more), PARAMS_ON_NVME, test_scratch());
    run.more = more;
    for (int ranks = 1; ranks <= 2; ranks++) {
        test_world(ranks, reference_train, &run);
        for (int i = 0; i < 6; i++) { /* the first reads are those of the acquires */
            run.nth     = ranks + i / 2;
            run.variant = i % 2;
            test_world(ranks, unneeded_train, &run);
        }
    }
    (void)unsetenv("SHERD_IO");
}

/* ------------------------------------------------- destroyed after a failure -- */

/* What the trainer calls between an update that fails and the end of its engine. */
static sherd_status last_call(rig *r, int variant)
{
    uint64_t     fingerprint;
    float        values[4];
    sherd_status status = SHERD_OK;

    switch (variant) {
    case 0:
        return SHERD_OK;
    case 1:
        return sherd_step_discard(r->engine);
    case 2:
    case 3:
        for (int u = 0; u < r->num_units && status == SHERD_OK; u++) {
            sherd_pass pass = variant == 2 ? SHERD_FORWARD : SHERD_EVAL;

            status = sherd_unit_acquire(r->engine, r->units[u], pass);
            if (status == SHERD_OK) {
                CHECK_OK(sherd_unit_release(r->engine, r->units[u], pass));
            }
        }
        return status;
    case 4:
        return sherd_engine_fingerprint(r->engine, &fingerprint);
    case 5:
        return sherd_param_read(r->engine, r->params[0].handle, "master", 0, 4, values);
    case 6:
        return sherd_param_read_local(r->engine, r->params[1].handle, "master", 0, 0, values);
    default:
        return sherd_step_wait(r->engine, NULL);
    }
}

#define LAST_CALLS 8

/* The drive of one rank fails in the update. A rank with the failure gets no parameters any more,
 * and a message with the remedy. */
static void last_train(sherd_world *world, void *raw)
{
    failure_run *run = raw;
    sherd_status status;
    rig          r;

    run_open(&r, world, run);
    CHECK_INT(run->want[1], rig_train(&r, 1).fingerprint);
    rig_micro_batch(&r);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        fault_arm(FAULT_EIO, FAULT_WRITES, 1, 1);
    }
    CHECK_OK(sherd_world_barrier(world));
    CHECK_OK(sherd_step_queue(r.engine));
    status = last_call(&r, run->variant);
    if (run->variant > 1 &&
        run->variant != 6) { /* else a rank that has heard may leave before the other has */
        CHECK_OK(sherd_world_barrier(world));
    }
    CHECK(run->variant < 4 || run->variant == 6 || status != SHERD_OK); /* these meet */
    if (status != SHERD_OK) {
        CHECK_INT(SHERD_E_IO, status);
        CHECK_ERROR_SAYS("call sherd_step_undo");
        CHECK(strstr(sherd_last_error(), "Input/output error") != NULL ||
              strstr(sherd_last_error(), "failed in the update") != NULL);
        for (int u = 0; u < r.num_units; u++) {
            CHECK(sherd_unit_acquire(r.engine, r.units[u], SHERD_EVAL) != SHERD_OK);
            CHECK_ERROR_SAYS("call sherd_step_undo");
        }
    }
    rig_close(&r);
}

static void failure_hear(void *ctx, sherd_log_level level, const char *text)
{
    int *heard = ctx;

    *heard += level == SHERD_LOG_ERROR && strstr(text, "the last update has failed") != NULL &&
              strstr(text, "Input/output error") != NULL;
}

static void a_run_whose_last_update_failed_stays(void)
{
    failure_run run = {.options = {.stage = 1}, .more = ""};

    (void)setenv("SHERD_IO", "threads", 1);
    for (int ranks = 1; ranks <= 2; ranks++) {
        test_world(ranks, reference_train, &run);
        CHECK_INT(0, test_files(test_scratch(), "sherd-"));
        for (run.variant = 0; run.variant < LAST_CALLS; run.variant++) {
            int heard = 0;

            sherd_log_set(failure_hear, &heard, SHERD_LOG_ERROR);
            test_world(ranks, last_train, &run);
            sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
            fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
            CHECK_INT(3 * ranks, test_files(test_scratch(), "sherd-"));
            test_files_remove(test_scratch(), "sherd-");
            CHECK(run.variant == 2 || run.variant == 3 || heard == (run.variant < 2));
        }
    }
    (void)unsetenv("SHERD_IO");
}

static const test_case CASES[] = {
    CASE(a_read_ahead_that_nobody_needs_fails_no_step),
    CASE(a_run_whose_last_update_failed_stays),
    CASE(a_window_that_one_rank_drops_leaves_the_update),
    CASE(a_rank_that_fails_before_the_ranks_meet_says_why),
    CASE(a_failure_is_returned_until_it_is_undone),
};

RUN_MAIN(CASES)
