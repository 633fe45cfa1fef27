/* A drive that fails while activations go or come: some call of the window says so on the rank that
 * it concerns, the window is dropped, and the same window is made again with the same bits. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <stdio.h>

#define UNITS 6
#define ELEMS 3000

typedef struct fault_run {
    fault_kind kind;
    fault_only only;
    int        nth;
    int        is_hit;      /* results: a request went wrong, */
    int        was_said;    /* a call failed, */
    uint64_t   fingerprint; /* ... and then this was made */
} fault_run;

static sherd_status use(rig *r, int unit, sherd_pass pass)
{
    float        values[ELEMS];
    void        *memory;
    sherd_status status, released;

    rig_acquire(r, unit, pass);
    status = pass == SHERD_FORWARD ? sherd_activation_put(r->engine, r->units[unit], &memory)
                                   : sherd_activation_get(r->engine, r->units[unit], &memory);
    for (int i = 0; i < ELEMS; i++) {
        values[i] = (float)(r->micro * 100000 + unit * 10000 + i);
    }
    if (status == SHERD_OK && pass == SHERD_FORWARD) {
        CHECK_OK(sherd_copy(r->engine, memory, values, sizeof(values)));
    } else if (status == SHERD_OK) {
        float got[ELEMS];

        CHECK_OK(sherd_copy(r->engine, got, memory, sizeof(got)));
        CHECK_BYTES_EQUAL(values, got, sizeof(got));
    }
    if (pass == SHERD_BACKWARD) {
        rig_touch(r, unit, 1);
    }
    released = sherd_unit_release(r->engine, r->units[unit], pass);
    return status == SHERD_OK ? released : status;
}

/* A window, up to a call that fails. */
static sherd_status window_try(rig *r, sherd_step_report *report)
{
    for (int i = 0; i < 2 * UNITS; i++) {
        sherd_status status =
            use(r, i < UNITS ? i : 2 * UNITS - 1 - i, i < UNITS ? SHERD_FORWARD : SHERD_BACKWARD);

        if (status != SHERD_OK) {
            return status;
        }
    }
    return sherd_step(r->engine, report);
}

static void steps_run(sherd_world *world, void *raw)
{
    fault_run              *run = raw;
    char                    top[400], name[16];
    rig_options             options = {.stage = 2};
    sherd_activation_params params;
    sherd_step_report       report;
    sherd_status            status;
    rig                     r;

    (void)snprintf(top, sizeof(top),
                   ", \"sherd\": {\"activations\": {\"device\": \"nvme\", \"nvme_path\": "
                   "\"%s\", \"buffer_count\": 1}}",
                   test_scratch());
    options.top = top;
    rig_open(&r, world, &options);
    sherd_activation_params_init(&params);
    sherd_step_report_init(&report);
    params.len_bytes = ELEMS * sizeof(float);
    for (int u = 0; u < UNITS; u++) {
        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(&r, name);
        (void)snprintf(name, sizeof(name), "p%d", u);
        (void)rig_param(&r, u, name, 500);
        CHECK_OK(sherd_activation_add(r.engine, r.units[u], &params));
    }
    rig_seal(&r);
    CHECK_OK(window_try(&r, &report));
    r.micro++;
    fault_arm(run->kind, run->only, run->nth, 1);
    status        = window_try(&r, &report);
    run->is_hit   = fault_hits() > 0;
    run->was_said = status != SHERD_OK;
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    if (status != SHERD_OK) {
        CHECK_STATUS(SHERD_E_IO, status);
        CHECK_ERROR_SAYS("activations");
        CHECK_OK(sherd_step_discard(r.engine));
        CHECK_OK(window_try(&r, &report));
    }
    run->fingerprint = report.fingerprint;
    rig_close(&r);
}

static void every_request_fails_once(void)
{
    static const fault_kind KINDS[] = {FAULT_EIO, FAULT_ENOSPC, FAULT_EAGAIN, FAULT_SHORT};
    fault_run               plain   = {.kind = FAULT_NONE};

    if (!fault_can_inject()) {
        test_skip("this kernel cannot end a request of io_uring with an error");
    }
    test_world(1, steps_run, &plain);
    for (size_t k = 0; k < sizeof(KINDS) / sizeof(KINDS[0]); k++) {
        int is_hit = 1, hits = 0, said = 0;

        for (int nth = 1; is_hit; nth++) {
            fault_run run = {.kind = KINDS[k], .nth = nth};

            test_world(1, steps_run, &run);
            CHECK_INT(plain.fingerprint, run.fingerprint);
            is_hit = run.is_hit;
            hits += run.is_hit;
            said += run.was_said;
        }
        CHECK(hits >= 2 * (UNITS - 1)); /* one in each request: written, and read */
        if (KINDS[k] == FAULT_EIO || KINDS[k] == FAULT_ENOSPC) {
            CHECK_INT(hits, said);
        } else {
            CHECK_INT(0, said); /* the request is made again */
        }
    }
}

static const test_case CASES[] = {
    CASE(every_request_fails_once),
};

RUN_MAIN(CASES)
