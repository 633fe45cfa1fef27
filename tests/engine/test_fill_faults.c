/* Drives that break while first values go to them: a fill that failed is made good by the same
 * call, or the training does not begin. */
#include "tests/engine/drive_rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <stdio.h>
#include <stdlib.h>

/* A call of sherd_param_fill: the values of another parameter are wrong ones, which a later call
 * replaces. */
typedef struct fill_call {
    int param, values;
} fill_call;

static const fill_call IN_ORDER[]    = {{0, 0}, {1, 1}, {2, 2}};
static const fill_call IN_DISORDER[] = {{1, 7}, {0, 0}, {2, 2}, {0, 0}, {1, 1}};

typedef struct fault_run {
    const fill_call *calls;
    size_t           num_calls;
    const char      *more; /* keys of offload_optimizer */
    int              nth;
    int              count;  /* requests that were seen */
    sherd_status     status; /* of the first acquire */
} fault_run;

/* A fault while first values are written: the same call again makes it good, or the training does
 * not begin; what comes back is what was written. */
static void fault_fill(sherd_world *world, void *ctx)
{
    fault_run *run = ctx;
    rig        r;

    drive_open(&r, world, run->more);
    CHECK_INT(3, r.num_params);
    CHECK_OK(sherd_engine_seal(r.engine));
    fault_arm(run->nth > 0 ? FAULT_EIO : FAULT_NONE, FAULT_ANY, run->nth, 1);
    for (size_t i = 0; i < run->num_calls; i++) {
        void        *which  = (void *)(uintptr_t)run->calls[i].values;
        sherd_param  handle = r.params[run->calls[i].param].handle;
        sherd_status status = sherd_param_fill(r.engine, handle, rig_fill, which);

        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_IO, status);
            CHECK_OK(sherd_param_fill(r.engine, handle, rig_fill, which));
        }
    }
    run->status = sherd_unit_acquire(r.engine, r.units[0], SHERD_EVAL);
    if (run->status == SHERD_E_IO) { /* what could not be written at the end */
        run->status = sherd_unit_acquire(r.engine, r.units[0], SHERD_EVAL);
    }
    run->count = fault_seen();
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    if (run->status == SHERD_OK) {
        rig_release(&r, 0, SHERD_EVAL);
        CHECK_INT(drive_reference[0], rig_fingerprint(&r));
        CHECK_INT(drive_reference[1], rig_train(&r, 1).fingerprint);
    }
    rig_close(&r);
}

static void eio_at_every_request_of_a_fill_in_disorder_is_an_error_and_no_number(void)
{
    int step = test_is_long() ? 1 : 2, whole = 0;

    (void)setenv("SHERD_IO", "threads", 1);
    test_world(1, drive_reference_train, NULL);
    for (int slots = 1; slots <= 3; slots++) {
        char      more[64];
        fault_run run = {.calls = IN_DISORDER, .num_calls = 5, .more = more};

        (void)snprintf(more, sizeof(more), ", \"pipeline_read\": %s, \"buffer_count\": %d",
                       slots == 2 ? "false" : "true", slots);
        test_world(1, fault_fill, &run);
        CHECK_INT(SHERD_OK, run.status);
        CHECK(run.count > 10);
        for (int nth = 1 + slots % step, count = run.count; nth <= count; nth += step) {
            run.nth = nth;
            test_world(1, fault_fill, &run);
            whole += run.status == SHERD_OK;
        }
    }
    CHECK(whole > 0); /* reads, and what is written of the parameters alone */
    (void)unsetenv("SHERD_IO");
}

static void eio_at_every_request_of_the_fill_is_an_error_and_no_number(void)
{
    fault_run run = {.calls     = IN_ORDER,
                     .num_calls = 3,
                     .more      = ", \"buffer_count\": 1, \"pipeline_read\": false"};

    (void)setenv("SHERD_IO", "threads", 1);
    test_world(1, drive_reference_train, NULL);
    test_world(1, fault_fill, &run);
    CHECK_INT(SHERD_OK, run.status);
    CHECK(run.count > 10);
    for (int nth = 1, count = run.count; nth <= count; nth++) {
        run.nth = nth;
        test_world(1, fault_fill, &run);
        fault_late(2000); /* when the concurrent write is over, and the slot is needed */
        test_world(1, fault_fill, &run);
        fault_late(0);
    }
    (void)unsetenv("SHERD_IO");
}

static const test_case CASES[] = {
    CASE(eio_at_every_request_of_the_fill_is_an_error_and_no_number),
    CASE(eio_at_every_request_of_a_fill_in_disorder_is_an_error_and_no_number),
};

RUN_MAIN(CASES)
