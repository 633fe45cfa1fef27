/* A device that fails: at every allocation of seal, at launches and in kernels of a training. The
 * calls say so, no rank hangs, and nothing is left on the device. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include "emulator.h"

#include <stdio.h>
#include <string.h>

#define LAYOUT                                                                                     \
    ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}"

typedef struct fault {
    rig_options  options;
    long         n;
    sherd_status seen; /* of any rank; SHERD_OK: it went through */
    char         text[512];
} fault;

static void declare(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    for (int u = 0; u < 3; u++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(r, name);
        (void)snprintf(name, sizeof(name), "p%d", u);
        (void)rig_param(r, u, name, 5000);
    }
}

static void keep(fault *what, sherd_status status)
{
    if (status != SHERD_OK && (what->seen == SHERD_OK || what->seen == SHERD_E_PEER_LOST)) {
        what->seen = status;
        (void)snprintf(what->text, sizeof(what->text), "%s", sherd_last_error());
    }
}

/* Rank 0 has the failure. */
static void seal_with_a_failing_allocation(sherd_world *world, void *raw)
{
    fault       *what = raw;
    sherd_status status;
    rig          r;

    declare(&r, world, &what->options);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        emulator_fail_alloc(what->n);
    }
    status = sherd_engine_seal(r.engine);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        emulator_fail_alloc(0);
        what->seen = status;
    }
    CHECK_OK(sherd_world_barrier(world));
    CHECK_STATUS(what->seen, status); /* of all ranks */
    rig_close(&r);
}

static void allocations_fail(rig_options options, int ranks, int least)
{
    fault what = {.options = options};

    for (what.n = 1;; what.n++) {
        test_world(ranks, seal_with_a_failing_allocation, &what);
        CHECK_INT(0, emulator_held_bytes());
        if (what.seen == SHERD_OK) {
            break;
        }
        CHECK_INT(SHERD_E_NOMEM, what.seen);
    }
    CHECK(what.n > least);
}

static void every_allocation_of_seal_may_fail(void)
{
    allocations_fail((rig_options){.stage = 3, .dtype = SHERD_BF16, .zero = LAYOUT}, 1, 8);
}

#define HOST_STATE ", \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}"

/* Memory that the other ranks of the host have is locked, too. */
static void every_allocation_of_what_outlives_a_rank_may_fail(void)
{
    rig_options options = {.stage = 2,
                           .dtype = SHERD_BF16,
                           .zero  = HOST_STATE,
                           .top   = ", \"sherd\": {\"redundancy\": \"host\"}"};

    allocations_fail(options, 2, 8);
    options.top = ", \"deterministic\": true, \"sherd\": {\"redundancy\": \"peer\"}";
    allocations_fail(options, 2, 8);
}

/* Until something fails; the trainer looks at every status, as one should. */
static sherd_status train_on(rig *r, int micro_batches)
{
    for (int i = 0; i < micro_batches; i++) {
        for (int pass = SHERD_FORWARD; pass <= SHERD_BACKWARD; pass++) {
            for (int u = 0; u < r->num_units; u++) {
                int          unit = pass == SHERD_FORWARD ? u : r->num_units - 1 - u;
                sherd_status status =
                    sherd_unit_acquire(r->engine, r->units[unit], (sherd_pass)pass);

                if (status == SHERD_OK) {
                    status = sherd_unit_release(r->engine, r->units[unit], (sherd_pass)pass);
                }
                if (status != SHERD_OK) {
                    return status;
                }
            }
        }
        sherd_status status = sherd_step(r->engine, NULL);

        if (status != SHERD_OK) {
            return status;
        }
    }
    return SHERD_OK;
}

typedef struct kernel_fault {
    fault what;
    void (*arm)(long n);
} kernel_fault;

static void train_with_a_fault(sherd_world *world, void *raw)
{
    kernel_fault *how = raw;
    sherd_status  status;
    rig           r;

    declare(&r, world, &how->what.options);
    rig_seal(&r);
    CHECK_OK(train_on(&r, 1));
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        how->arm(how->what.n);
    }
    status = train_on(&r, 2);
    if (sherd_world_rank(world) == 0) {
        how->arm(0);
    }
    keep(&how->what, status);
    if (status != SHERD_OK) { /* the engine says so from now on */
        CHECK(sherd_step(r.engine, NULL) != SHERD_OK);
    }
    rig_close(&r);
}

static void faults_are_told(void (*arm)(long n), int ranks, long stride)
{
    kernel_fault how  = {.what = {.options = {.stage = 3, .dtype = SHERD_BF16, .zero = LAYOUT}},
                         .arm  = arm};
    int          seen = 0;

    for (how.what.n = 1;; how.what.n += stride) {
        how.what.seen = SHERD_OK;
        test_world(ranks, train_with_a_fault, &how);
        for (int device = 0; device < 2; device++) {
            emulator_heal(device);
        }
        CHECK_INT(0, emulator_held_bytes());
        if (how.what.seen == SHERD_OK) {
            break;
        }
        seen++;
        CHECK(how.what.seen == SHERD_E_DEVICE || how.what.seen == SHERD_E_PEER_LOST);
        if (ranks == 1 && strstr(how.what.text, "cuda") == NULL) {
            test_fail(__FILE__, __LINE__, "n %ld: %s", how.what.n, how.what.text);
        }
    }
    CHECK(seen >= 4);
    (void)printf("  faults: %d\n", seen);
}

/* With more ranks every n-th alone, but for the long list. */
static long stride(void)
{
    return test_is_long() ? 1 : 9;
}

static void every_launch_may_be_refused(void)
{
    faults_are_told(emulator_fail_launch, 1, 1);
}

static void a_refused_launch_ends_all_ranks(void)
{
    faults_are_told(emulator_fail_launch, 2, stride());
}

static void every_kernel_may_fault(void)
{
    faults_are_told(emulator_fail_kernel, 1, 1);
}

static void a_faulting_kernel_ends_all_ranks(void)
{
    faults_are_told(emulator_fail_kernel, 2, stride());
}

static const test_case CASES[] = {
    CASE(every_allocation_of_seal_may_fail),
    CASE(every_allocation_of_what_outlives_a_rank_may_fail),
    CASE(every_launch_may_be_refused),
    CASE(a_refused_launch_ends_all_ranks),
    CASE(every_kernel_may_fault),
    CASE(a_faulting_kernel_ends_all_ranks),
};

RUN_MAIN(CASES)
