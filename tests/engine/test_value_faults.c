/* A drive that breaks while values are written or read, at every request: a write is there whole or
 * not at all, on the drive and in what passes read, and training goes on from what is there. */
#include "tests/engine/value_rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 100
#define COUNT 7000

typedef struct fault_run {
    fault_kind     kind;
    int            nth;
    int            is_read;
    int            seen;   /* out: requests of the call */
    sherd_status   status; /* ... how it went */
    uint64_t       trained;
    value_rig_tier tier;
} fault_run;

static float old_values[VALUE_RIG_ELEMS], new_values[VALUE_RIG_ELEMS], got[VALUE_RIG_ELEMS];

static sherd_status call_make(rig *r, int is_read)
{
    sherd_param p = r->params[0].handle;

    return is_read
               ? sherd_param_read(r->engine, p, SHERD_MASTER, FIRST, COUNT, got)
               : sherd_param_write(r->engine, p, SHERD_MASTER, FIRST, COUNT, new_values + FIRST);
}

static void expect_values(rig *r, const float *want)
{
    float passed[VALUE_RIG_ELEMS];

    CHECK_OK(
        sherd_param_read(r->engine, r->params[0].handle, SHERD_MASTER, 0, VALUE_RIG_ELEMS, got));
    CHECK_BYTES_EQUAL(want, got, sizeof(got));
    rig_values(r, 0, passed);
    CHECK_OK(
        sherd_param_read(r->engine, r->params[0].handle, SHERD_COMPUTE, 0, VALUE_RIG_ELEMS, got));
    CHECK_BYTES_EQUAL(passed, got, sizeof(got));
}

/* As if it had not been called; then it is made again. */
static void call_again(rig *r, const fault_run *run, uint64_t fingerprint)
{
    CHECK_STATUS(SHERD_E_IO, run->status);
    expect_values(r, old_values);
    CHECK_INT(fingerprint, rig_fingerprint(r));
    CHECK_OK(call_make(r, run->is_read));
}

static void fault_train(sherd_world *world, void *raw)
{
    fault_run  *run = raw;
    char        keys[1024];
    rig_options options = {
        .stage = 3, .dtype = SHERD_BF16, .zero = value_rig_keys(&run->tier, keys)};
    uint64_t fingerprint;
    rig      r;

    value_rig_declare(&r, world, &options);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    fingerprint = rig_fingerprint(&r);
    CHECK_OK(sherd_param_read(r.engine, r.params[0].handle, SHERD_MASTER, 0, VALUE_RIG_ELEMS,
                              old_values));
    memcpy(new_values, old_values, sizeof(new_values));
    for (int i = FIRST; i < FIRST + COUNT; i++) {
        new_values[i] = (float)i / 1024;
    }
    fault_arm(run->kind, FAULT_ANY, run->nth, 1);
    run->status = call_make(&r, run->is_read);
    run->seen   = fault_seen();
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    if (run->status != SHERD_OK) {
        call_again(&r, run, fingerprint);
    }
    expect_values(&r, run->is_read ? old_values : new_values);
    (void)rig_train(&r, 2);
    run->trained = rig_fingerprint(&r);
    rig_close(&r);
}

static void every_request_fails_once(const char *params, int buffers, int is_read)
{
    fault_run clean  = {.is_read = is_read,
                        .tier    = {"nvme", params, buffers, ", \"durable\": false"}};
    int       failed = 0;

    if (value_rig_tiers() < VALUE_RIG_TIERS_ALL) {
        test_skip("state on a drive needs libxxhash");
    }
    CHECK(setenv("SHERD_IO", "threads", 1) == 0);
    test_world(1, fault_train, &clean);
    CHECK_OK(clean.status);
    CHECK(clean.seen > 2);
    for (int nth = 1; nth <= clean.seen; nth++) {
        fault_run run = clean;

        run.kind = FAULT_EIO;
        run.nth  = nth;
        test_world(1, fault_train, &run);
        failed += run.status != SHERD_OK;
        CHECK_INT(clean.trained, run.trained);
    }
    CHECK(failed > 2);
    (void)unsetenv("SHERD_IO");
}

static void write_that_fails_leaves_the_old_values(void)
{
    every_request_fails_once(NULL, 2, 0);
}

static void write_that_fails_leaves_the_old_parameters_on_the_drive_too(void)
{
    every_request_fails_once("nvme", 1, 0);
}

static void read_that_fails_is_made_again(void)
{
    every_request_fails_once("nvme", 2, 1);
}

/* Norms of gradients that rest on the drive, of a step that goes on then. */
static void fault_measure(sherd_world *world, void *raw)
{
    fault_run  *run = raw;
    char        keys[1024];
    rig_options options = {
        .stage = 3, .dtype = SHERD_BF16, .zero = value_rig_keys(&run->tier, keys)};
    double want[RIG_PARAMS];
    double norms[RIG_PARAMS];
    rig    r;

    value_rig_declare(&r, world, &options);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    CHECK_OK(sherd_grad_norms(r.engine, want, (size_t)r.num_params));
    fault_arm(run->kind, FAULT_READS, run->nth, 1);
    run->status = sherd_grad_norms(r.engine, norms, (size_t)r.num_params);
    run->seen   = fault_seen();
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    if (run->status != SHERD_OK) {
        CHECK_STATUS(SHERD_E_IO, run->status);
        CHECK_OK(sherd_grad_norms(r.engine, norms, (size_t)r.num_params));
    }
    CHECK_BYTES_EQUAL(want, norms, (size_t)r.num_params * sizeof(*want));
    CHECK_OK(sherd_step_apply(r.engine, NULL));
    run->trained = rig_fingerprint(&r);
    rig_close(&r);
}

static void norms_that_cannot_be_read_are_asked_for_again(void)
{
    fault_run clean = {.tier = {"nvme", NULL, 2, ", \"durable\": false, \"gradients\": \"nvme\""}};

    if (value_rig_tiers() < VALUE_RIG_TIERS_ALL) {
        test_skip("state on a drive needs libxxhash");
    }
    CHECK(setenv("SHERD_IO", "threads", 1) == 0);
    test_world(1, fault_measure, &clean);
    CHECK_OK(clean.status);
    CHECK(clean.seen > 2);
    for (int nth = 1; nth <= clean.seen; nth++) {
        fault_run run = clean;

        run.kind = FAULT_EIO;
        run.nth  = nth;
        test_world(1, fault_measure, &run);
        CHECK_STATUS(SHERD_E_IO, run.status);
        CHECK_INT(clean.trained, run.trained);
    }
    (void)unsetenv("SHERD_IO");
}

static const test_case CASES[] = {
    CASE(write_that_fails_leaves_the_old_values),
    CASE(write_that_fails_leaves_the_old_parameters_on_the_drive_too),
    CASE(read_that_fails_is_made_again),
    CASE(norms_that_cannot_be_read_are_asked_for_again),
};

RUN_MAIN(CASES)
