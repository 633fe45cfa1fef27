/* A rank is lost, and the move after it fails: each allocation of a survivor, and each request to a
 * drive, fails in turn. All survivors then have the engine as before, and the next try has the bits
 * of a training that nobody has disturbed. */
#include "base/mem.h"
#include "engine/run/engine_impl.h"
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GLOBAL 12 /* micro-batches of a step */
#define TRIES  2000
#define STEPS  3

#define TOP(keys) ", \"deterministic\": true, \"sherd\": {" keys "}"

/* ---------------------------------------------------------------------- a rank -- */

/* An engine with what TEST_STAGE, TEST_ZERO and TEST_TOP say. */
static void engine_open(rig *r, sherd_world *world)
{
    rig_options options = {.stage       = ranks_variable("TEST_STAGE"),
                           .dtype       = SHERD_BF16,
                           .clip        = 1,
                           .train_batch = GLOBAL,
                           .zero        = getenv("TEST_ZERO"),
                           .top         = getenv("TEST_TOP")};

    rig_open(r, world, &options);
    rig_three(r, 2000);
    rig_seal(r);
}

static uint64_t step_make(rig *r, int step)
{
    int size = sherd_world_size(r->world);

    r->micro = (int64_t)step * GLOBAL / size;
    return rig_train(r, GLOBAL / size).fingerprint;
}

/* What fails in a try: TEST_FAULT is 0 for memory, else a fault_kind of the drive. */
static void fault_set(int nth)
{
    int kind = ranks_variable("TEST_FAULT");

    if (kind == FAULT_NONE) {
        (void)sherdi_mem_fail_nth((size_t)nth);
    } else {
        fault_arm(nth > 0 ? (fault_kind)kind : FAULT_NONE, FAULT_ANY, nth, 1);
    }
}

/* Moves until it succeeds, with the fault at a later place in each try; returns how often it has
 * failed. */
static int moves_try(rig *r, sherd_world *next)
{
    int          nth    = ranks_variable("TEST_FIRST");
    int          faulty = sherd_world_rank(next) == ranks_variable("TEST_FAULTY");
    int          failed = -1;
    sherd_status status;

    do {
        fault_set(faulty ? nth : 0);
        status = sherd_engine_move(r->engine, next);
        fault_set(0);
        CHECK(status == SHERD_OK ||
              status == (ranks_variable("TEST_FAULT") == FAULT_NONE ? SHERD_E_NOMEM : SHERD_E_IO));
        nth += ranks_variable("TEST_STRIDE");
        failed++;
    } while (status != SHERD_OK && failed < TRIES);
    CHECK_OK(status);
    return failed;
}

static void survivor(void)
{
    const char  *want = getenv("TEST_WANT");
    sherd_world *world;
    sherd_world *next = NULL;
    rig          r;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    engine_open(&r, world);
    for (int step = 0; step < STEPS - 1; step++) {
        (void)step_make(&r, step);
    }
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 1) {
        (void)raise(SIGKILL);
    }
    while (sherd_world_barrier(world) == SHERD_OK) {
    }
    CHECK_OK(sherd_world_shrink(world, &next));
    if (moves_try(&r, next) >= ranks_variable("TEST_LEAST")) {
        ranks_note_leave("failed");
    }
    sherd_world_destroy(world);
    r.world = next;
    CHECK(want != NULL && step_make(&r, STEPS - 1) == strtoull(want, NULL, 16));
    rig_close(&r);
    sherd_world_destroy(next);
}

/* ------------------------------------------------------------------- the cases -- */

typedef struct loss {
    int         stage, ranks;
    const char *zero, *top;
} loss;

static void text_set(const char *name, const char *value)
{
    CHECK(value == NULL ? unsetenv(name) == 0 : setenv(name, value, 1) == 0);
}

static void number_set(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", value);
    text_set(name, text);
}

/* Sets TEST_WANT to the fingerprint of the last step of a training that nobody disturbs. */
static void want_set(void)
{
    char         text[32];
    uint64_t     fingerprint = 0;
    sherd_world *world;
    rig          r;

    text_set("TEST_TOP", ", \"deterministic\": true");
    CHECK_OK(sherd_world_self(&world));
    engine_open(&r, world);
    for (int step = 0; step < STEPS; step++) {
        fingerprint = step_make(&r, step);
    }
    rig_close(&r);
    sherd_world_destroy(world);
    (void)snprintf(text, sizeof(text), "%016" PRIx64, fingerprint);
    text_set("TEST_WANT", text);
}

/* Loses rank 1, while an allocation or a request of one survivor fails: the `first` one, and in each
 * further try one that is `stride` later. Returns whether `least` tries have failed. */
static int faults_run(const loss *l, fault_kind fault, int faulty, int first, int stride, int least)
{
    number_set("TEST_STAGE", l->stage);
    text_set("TEST_ZERO", l->zero);
    number_set("TEST_FAULT", (int)fault);
    number_set("TEST_FAULTY", faulty);
    number_set("TEST_FIRST", first);
    number_set("TEST_STRIDE", stride);
    number_set("TEST_LEAST", least);
    want_set();
    text_set("TEST_TOP", l->top);
    ranks_run_part(l->ranks, "survivor", 1);
    return ranks_note_is_there("failed");
}

/* Each allocation of each survivor. */
static void memory_run(const loss *l)
{
    for (int faulty = 0; faulty < l->ranks - 1; faulty++) {
        CHECK(faults_run(l, FAULT_NONE, faulty, 1, 1, 20));
    }
}

static void no_memory_leaves_the_survivors_as_they_were(void)
{
    static const loss LOSSES[] = {
        {2, 3, NULL, TOP("\"redundancy\": \"host\"")},
        {3, 3, NULL, TOP("\"redundancy\": \"peer\"")},
        {3, 4, NULL, TOP("\"shard_size\": 2, \"elastic\": [1, 4]")},
    };

    for (size_t i = 0; i < sizeof(LOSSES) / sizeof(LOSSES[0]); i++) {
        memory_run(&LOSSES[i]);
    }
}

/* Also where the ranks compute on a device. */
static void no_memory_leaves_the_state_of_the_host_as_it_was(void)
{
    static const loss l = {3, 3, ", \"offload_optimizer\": {\"device\": \"cpu\"}",
                           TOP("\"redundancy\": \"host\"")};

    memory_run(&l);
}

static void drive_keys(char out[300])
{
    (void)snprintf(out, 300,
                   ", \"sub_group_size\": 1280, \"offload_optimizer\": {\"device\": \"nvme\", "
                   "\"nvme_path\": \"%s\"}",
                   test_scratch());
}

static void no_memory_leaves_the_generations_as_they_were(void)
{
    char zero[300];
    loss l = {2, 3, zero, TOP("\"elastic\": [1, 3]")};

    drive_keys(zero);
    memory_run(&l);
}

/* Some requests are of reads ahead, which no move needs. */
static void drive_that_fails_leaves_the_generations_as_they_were(void)
{
    char zero[300];
    loss l      = {2, 3, zero, TOP("\"elastic\": [1, 3]")};
    int  failed = 0;

    if (!fault_can_inject()) {
        test_skip("this kernel's io_uring completes no entry with a requested result");
    }
    drive_keys(zero);
    for (int nth = 1; nth <= 32; nth += test_is_long() ? 1 : 3) {
        failed += faults_run(&l, FAULT_EIO, nth % 2, nth, 100000, 1);
    }
    CHECK(failed > 4);
}

static const test_case CASES[] = {CASE(no_memory_leaves_the_survivors_as_they_were),
                                  CASE(no_memory_leaves_the_state_of_the_host_as_it_was),
                                  CASE(no_memory_leaves_the_generations_as_they_were),
                                  CASE(drive_that_fails_leaves_the_generations_as_they_were)};
static const rank_part PARTS[] = {PART(survivor)};

RANKS_MAIN(CASES, PARTS)
