/* Every place where acquire and release wait or call the other ranks fails once, on all ranks
 * alike: a failed acquire is as if it had not been called, a failed release has released, and the
 * window can be done again to the same bits. The calls are wrapped by the linker (meson.build). */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include "base/status.h"
#include "collectives/follow.h"
#include "collectives/world.h"

#include <stdlib.h>

/* ------------------------------------------------------------- the seam -- */

static _Thread_local struct {
    int          is_counting; /* inside an acquire or a release */
    int          nth;         /* the one that fails; 0: none */
    int          seen;
    sherd_status status;
} fault;

static int fails_here(void)
{
    return fault.is_counting && ++fault.seen == fault.nth;
}

static sherd_status injected(void)
{
    return sherdi_fail(fault.status, "injected into wait %d", fault.nth);
}

sherd_status __wrap_sherdi_world_wait(sherd_world *world, sherdi_ticket ticket);
sherd_status __real_sherdi_world_wait(sherd_world *world, sherdi_ticket ticket);
sherd_status __wrap_sherdi_world_wait(sherd_world *world, sherdi_ticket ticket)
{
    return fails_here() ? injected() : __real_sherdi_world_wait(world, ticket);
}

sherd_status __wrap_sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                        sherdi_ticket ticket);
sherd_status __real_sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                        sherdi_ticket ticket);
sherd_status __wrap_sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                        sherdi_ticket ticket)
{
    return fails_here() ? injected() : __real_sherdi_world_follow(world, lane, ticket);
}

sherd_status __wrap_sherdi_world_all_gather(sherd_world *world, const sherdi_all_gather_args *args,
                                            sherdi_ticket *ticket_out);
sherd_status __real_sherdi_world_all_gather(sherd_world *world, const sherdi_all_gather_args *args,
                                            sherdi_ticket *ticket_out);
sherd_status __wrap_sherdi_world_all_gather(sherd_world *world, const sherdi_all_gather_args *args,
                                            sherdi_ticket *ticket_out)
{
    return fails_here() ? injected() : __real_sherdi_world_all_gather(world, args, ticket_out);
}

sherd_status __wrap_sherdi_world_reduce_scatter(sherd_world                 *world,
                                                const sherdi_reduction_args *args,
                                                sherdi_ticket               *ticket_out);
sherd_status __real_sherdi_world_reduce_scatter(sherd_world                 *world,
                                                const sherdi_reduction_args *args,
                                                sherdi_ticket               *ticket_out);
sherd_status __wrap_sherdi_world_reduce_scatter(sherd_world                 *world,
                                                const sherdi_reduction_args *args,
                                                sherdi_ticket               *ticket_out)
{
    return fails_here() ? injected() : __real_sherdi_world_reduce_scatter(world, args, ticket_out);
}

/* ------------------------------------------------------------ the trainer -- */

typedef struct wait_job {
    rig_options  options;
    int          nth;
    sherd_status status;
    int          retries; /* a failed acquire is made again; else the window is discarded */
    int          seen;    /* waits of a window in which none fails */
    int          failed;  /* windows that were discarded */
    uint64_t     fingerprint;
} wait_job;

static sherd_status counted_acquire(rig *r, int unit, sherd_pass pass)
{
    sherd_status status;

    fault.is_counting = 1;
    status            = sherd_unit_acquire(r->engine, r->units[unit], pass);
    fault.is_counting = 0;
    return status;
}

static sherd_status counted_release(rig *r, int unit, sherd_pass pass)
{
    sherd_status status;

    fault.is_counting = 1;
    status            = sherd_unit_release(r->engine, r->units[unit], pass);
    fault.is_counting = 0;
    return status;
}

/* 1: it holds the unit; 0: the acquire failed, and the unit is as it was. */
static int unit_get(rig *r, const wait_job *job, int unit, sherd_pass pass)
{
    sherd_status status = counted_acquire(r, unit, pass);

    if (status == SHERD_OK) {
        return 1;
    }
    CHECK_STATUS(job->status, status);
    CHECK_ERROR_SAYS("injected");
    CHECK_STATUS(SHERD_E_STATE, counted_release(r, unit, pass));
    CHECK_ERROR_SAYS("is not acquired");
    if (job->retries) {
        rig_acquire(r, unit, pass);
        return 1;
    }
    return 0;
}

/* What a failed call needs of a pass, over one unit; 0: the window cannot go on. Unit 2 reads unit
 * 0's parameter. */
static int unit_visit(rig *r, const wait_job *job, int unit, sherd_pass pass)
{
    if (!unit_get(r, job, unit, pass)) {
        return 0;
    }
    for (int p = 0; p < r->num_params; p++) {
        if (r->params[p].unit != unit && !(unit == 2 && p == 0)) {
            continue;
        }
        if (pass == SHERD_BACKWARD && !r->params[p].is_frozen) {
            rig_touch(r, p, 1);
        } else {
            (void)rig_read(r, p);
        }
    }
    return counted_release(r, unit, pass) == SHERD_OK;
}

static int window_do(rig *r, const wait_job *job)
{
    for (int u = 0; u < r->num_units; u++) {
        if (!unit_visit(r, job, u, SHERD_FORWARD)) {
            return 0;
        }
    }
    for (int u = r->num_units - 1; u >= 0; u--) {
        int outer = u == 1 ? 3 : -1; /* one of them while another is held */

        if (outer >= 0 && !unit_get(r, job, outer, SHERD_EVAL)) {
            return 0;
        }
        if (!unit_visit(r, job, u, SHERD_BACKWARD)) {
            if (outer >= 0) {
                rig_release(r, outer, SHERD_EVAL);
            }
            return 0;
        }
        if (outer >= 0) {
            rig_release(r, outer, SHERD_EVAL);
        }
    }
    return 1;
}

static void train_with_a_fault(sherd_world *world, void *raw)
{
    wait_job          *job    = raw;
    sherd_param_params frozen = {.frozen = 1, .dtype = -1};
    int                failed = 0;
    sherd_step_report  report;
    rig                r;

    rig_open(&r, world, &job->options);
    (void)rig_unit(&r, "table");
    (void)rig_unit(&r, "middle");
    (void)rig_unit(&r, "head");
    (void)rig_unit(&r, "aside");
    (void)rig_param(&r, 0, "table.w", 3000);
    (void)rig_param(&r, 1, "middle.w", 700);
    (void)rig_param_as(&r, 1, "middle.f", 130, &frozen);
    (void)rig_param(&r, 2, "head.w", 900);
    (void)rig_param(&r, 3, "aside.w", 100);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    for (int u = 0; u < 3; u++) { /* "aside" is in no pass: its memory is disjoint from theirs */
        CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[u]));
    }
    rig_seal(&r);
    for (int step = 0; step < 2; step++) {
        fault.nth    = step == 1 ? job->nth : 0;
        fault.seen   = 0;
        fault.status = job->status;
        while (!window_do(&r, job)) {
            failed++;
            CHECK_OK(sherd_step_discard(r.engine));
        }
        report = rig_step(&r);
        CHECK_INT(1, report.was_updated);
    }
    if (sherd_world_rank(world) == 0) {
        job->seen        = fault.seen;
        job->failed      = failed;
        job->fingerprint = report.fingerprint;
    }
    fault.nth = 0;
    rig_close(&r);
}

static void fail_every_wait(const rig_options *options, sherd_status status)
{
    wait_job clean = {.options = *options};

    test_world(2, train_with_a_fault, &clean);
    CHECK(clean.seen > 10);
    for (int n = 1; n <= clean.seen; n++) {
        for (int retries = 0; retries <= 1; retries++) {
            wait_job job = {.options = *options, .nth = n, .status = status, .retries = retries};

            test_world(2, train_with_a_fault, &job);
            CHECK(job.failed <= 1);
            CHECK_INT(clean.fingerprint, job.fingerprint);
        }
    }
}

static void fail_every_wait_of(int stage, const char *zero)
{
    rig_options options = {.stage = stage, .zero = zero};

    fail_every_wait(&options, SHERD_E_NOMEM);
    fail_every_wait(&options, SHERD_E_AGAIN);
}

static void failed_wait_anywhere_leaves_a_window_that_can_be_done_again(void)
{
    CHECK_INT(0, setenv("SHERD_DEBUG", "0", 1));
    fail_every_wait_of(2, ", \"overlap_comm\": true");
    fail_every_wait_of(3, ", \"overlap_comm\": true");
    fail_every_wait_of(3, ", \"overlap_comm\": false, \"stage3_prefetch_bucket_size\": 0, "
                          "\"stage3_max_live_parameters\": 0");
}

static void failed_wait_anywhere_in_debug_does_too(void)
{
    CHECK_INT(0, setenv("SHERD_DEBUG", "1", 1));
    fail_every_wait_of(3, ", \"overlap_comm\": true");
    CHECK_INT(0, setenv("SHERD_DEBUG", "0", 1));
}

static const test_case CASES[] = {
    CASE(failed_wait_anywhere_leaves_a_window_that_can_be_done_again),
    CASE(failed_wait_anywhere_in_debug_does_too),
};

RUN_MAIN(CASES)
