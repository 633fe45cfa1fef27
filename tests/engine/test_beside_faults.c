/* A drive that fails in a queued update. The next acquire, or the call in which the ranks meet,
 * says so on every rank; an undo leads to the step before, and the same step is made again with the
 * same bits. */
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 3
#define ELEMS      3000

typedef struct fault_run {
    /* further keys of zero_optimization, with %s for the folder; "": parameters rest in memory */
    const char  *params;
    fault_kind   kind;
    int          nth, count; /* requests seen */
    uint64_t     want[4];
    sherd_status status[MOST_RANKS];
    int          in_acquire[MOST_RANKS]; /* the failure was seen by an acquire */
} fault_run;

static void run_open(rig *r, sherd_world *world, const fault_run *run)
{
    char        zero[1024];
    char        params[400];
    rig_options options = {.stage = 3, .dtype = SHERD_BF16, .clip = 1};

    (void)snprintf(params, sizeof(params), run->params, test_scratch());
    (void)snprintf(zero, sizeof(zero),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                   "\"durable\": false, \"buffer_size\": 4096}%s",
                   test_scratch(), params);
    options.zero = zero;
    rig_open(r, world, &options);
    rig_three(r, ELEMS);
    rig_seal(r);
}

static void reference_train(sherd_world *world, void *raw)
{
    fault_run *run = raw;
    rig        r;

    run_open(&r, world, run);
    for (int step = 1; step <= 3; step++) {
        uint64_t fingerprint = rig_train(&r, 1).fingerprint;

        if (sherd_world_rank(world) == 0) {
            run->want[step] = fingerprint;
        }
    }
    rig_close(&r);
}

static void armed(sherd_world *world, const fault_run *run, int is_on)
{
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        fault_arm(is_on ? run->kind : FAULT_NONE, FAULT_ANY, is_on ? run->nth : 0, is_on);
    }
    CHECK_OK(sherd_world_barrier(world));
}

/* The forward pass during the update: up to an acquire that fails. */
static sherd_status forward_try(rig *r)
{
    for (int u = 0; u < r->num_units; u++) {
        sherd_status status = sherd_unit_acquire(r->engine, r->units[u], SHERD_FORWARD);

        if (status != SHERD_OK) {
            return status;
        }
        CHECK_OK(sherd_unit_release(r->engine, r->units[u], SHERD_FORWARD));
    }
    return SHERD_OK;
}

static void fault_train(sherd_world *world, void *raw)
{
    fault_run        *run  = raw;
    int               rank = sherd_world_rank(world);
    sherd_step_report report;
    rig               r;

    sherd_step_report_init(&report);
    run_open(&r, world, run);
    CHECK_INT(run->want[1], rig_train(&r, 1).fingerprint);
    rig_micro_batch(&r);
    /* reads ahead are on their way by now; their failures are those of the step */
    armed(world, run, 1);
    CHECK_OK(sherd_step_queue(r.engine));
    run->in_acquire[rank] = forward_try(&r) != SHERD_OK;
    if (!run->in_acquire[rank]) {
        CHECK_OK(sherd_engine_traffic(
            r.engine, &(sherd_traffic_report){.struct_size = sizeof(sherd_traffic_report)}));
    }
    run->status[rank] = sherd_step_discard(r.engine); /* what forward has begun; the update stays */
    CHECK_OK(run->status[rank]);
    run->status[rank] = sherd_step_wait(r.engine, &report);
    if (rank == 0) {
        run->count = fault_seen();
    }
    armed(world, run, 0);
    if (run->status[rank] != SHERD_OK) {
        CHECK_INT(SHERD_E_IO, run->status[rank]);
        CHECK(strlen(sherd_last_error()) > 20);
        CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
        CHECK_OK(sherd_step_undo(r.engine));
        CHECK_INT(run->want[1], rig_fingerprint(&r));
        rig_micro_batch(&r);
        CHECK_OK(sherd_step(r.engine, &report));
    } else {
        CHECK_OK(sherd_step_discard(r.engine)); /* reads ahead of parameters may have failed */
    }
    CHECK_INT(run->want[2], report.fingerprint);
    r.micro++;
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_queue(r.engine));
    CHECK_OK(sherd_step_wait(r.engine, &report));
    CHECK_INT(run->want[3], report.fingerprint);
    CHECK_INT(3, report.stored_step);
    r.micro++;
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_queue(r.engine));
    r.micro++;
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, &report)); /* the one before is on the drive */
    CHECK_INT(4, report.stored_step);
    CHECK_OK(sherd_step_discard(r.engine));
    rig_close(&r);
}

/* Lets every stride-th request fail, from `first` on. */
static void requests_fail(fault_run *run, int ranks, int first, int stride, int *failed, int *seen)
{
    for (int nth = first, count = run->count; nth <= count; nth += stride) {
        run->kind = FAULT_EIO;
        run->nth  = nth;
        test_world(ranks, fault_train, run);
        for (int r = 0; r < ranks; r++) {
            CHECK_INT(run->status[0], run->status[r]); /* all or none */
            *seen += run->in_acquire[r];
        }
        *failed += run->status[0] != SHERD_OK;
    }
}

static void every_request_fails(int ranks, const char *params)
{
    fault_run run    = {.params = params};
    int       failed = 0;
    int       seen   = 0; /* by an acquire */
    int       stride = test_is_long() ? 1 : ranks;

    (void)setenv("SHERD_IO", "threads", 1);
    test_world(ranks, reference_train, &run);
    test_world(ranks, fault_train, &run);
    CHECK(run.count > 5);
    requests_fail(&run, ranks, 1, stride, &failed, &seen);
    /* Whether an acquire comes before the failure depends on the threads: the other requests too,
     * until one did. */
    for (int first = 2; first <= stride && seen == 0; first++) {
        requests_fail(&run, ranks, first, stride, &failed, &seen);
    }
    CHECK(failed > 0 && seen > 0);
    (void)unsetenv("SHERD_IO");
}

static void a_drive_that_fails_beside_the_forward_is_told_and_undone(void)
{
    every_request_fails(1, "");
    every_request_fails(1, ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                           "\"buffer_size\": 2048, \"max_in_cpu\": 0}");
}

static void a_rank_whose_drive_fails_fails_all(void)
{
    every_request_fails(3, "");
}

static const test_case CASES[] = {
    CASE(a_drive_that_fails_beside_the_forward_is_told_and_undone),
    CASE(a_rank_whose_drive_fails_fails_all),
};

RUN_MAIN(CASES)
