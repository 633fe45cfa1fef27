/* Worlds of threads and of one rank: the suite at every size, and what threads fail with. */
#include "collectives/ending.h"
#include "collectives/tickets.h"
#include "tests/collectives/split_suite.h"
#include "tests/collectives/world_suite.h"
#include "tests/lib/check.h"

#include <poll.h>
#include <pthread.h>

static void suite_at(int world_size)
{
    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        test_world(world_size, WORLD_SUITE[i].run, NULL);
    }
}

#define SUITE_AT(size)                                                                             \
    static void threads_suite_holds_at_##size(void)                                                \
    {                                                                                              \
        if (!SUITE_IS_SAMPLED(size, 7)) {                                                          \
            test_need_long();                                                                      \
        }                                                                                          \
        suite_at(size);                                                                            \
    }

SUITE_AT(1)
SUITE_AT(2)
SUITE_AT(3)
SUITE_AT(4)
SUITE_AT(7)
SUITE_AT(8)

static void self_suite_holds(void)
{
    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        sherd_world *world = NULL;

        CHECK_OK(sherd_world_self(&world));
        WORLD_SUITE[i].run(world, NULL);
        sherd_world_destroy(world);
    }
}

/* ------------------------------------------------------------- failures -- */

/* At once: the time limit of the world would end the test, not the barrier. */
static void barrier_fails_saying(sherd_world *world, const char *words)
{
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
    CHECK_ERROR_SAYS(words);
    CHECK_STATUS(SHERD_E_PEER_LOST, sherdi_world_status(world));
    CHECK_ERROR_SAYS(words);
}

static void abort_body(sherd_world *world, void *ctx)
{
    (void)ctx;
    if (sherd_world_rank(world) == 1) {
        sherd_world_abort(world, "no more data");
    }
    barrier_fails_saying(world, "rank 1 gave up: no more data");
}

static void threads_abort_reaches_all_with_its_reason(void)
{
    test_world(4, abort_body, NULL);
}

static void abort_queued_body(sherd_world *world, void *ctx)
{
    unsigned char send[2000] = {0};
    sherdi_ticket last       = 0;
    sherd_status  status     = SHERD_OK;

    (void)ctx;
    CHECK_OK(sherdi_world_overlap(world));
    if (sherd_world_rank(world) == 1) {
        sherd_world_abort(world, "no more data");
        return;
    }
    for (int i = 0; i < 3 * WORLD_QUEUE_CALLS && status == SHERD_OK; i++) {
        static _Thread_local unsigned char all[3 * sizeof(send)];
        sherdi_all_gather_args args = {.send = send, .recv = all, .slice_bytes = sizeof(send)};

        status = sherdi_world_all_gather(world, &args, &last);
    }
    if (status == SHERD_OK) {
        status = sherdi_world_wait(world, last);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, status);
    CHECK_ERROR_SAYS("rank 1 gave up");
}

static void threads_abort_ends_calls_that_are_queued(void)
{
    test_world(3, abort_queued_body, NULL);
}

static void leave_body(sherd_world *world, void *ctx)
{
    (void)ctx;
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) != 2) { /* rank 2 returns, and its world is destroyed */
        barrier_fails_saying(world, "rank 2 ended its part");
    }
}

static void threads_rank_that_leaves_early_is_named(void)
{
    test_world(3, leave_body, NULL);
}

typedef struct late {
    sherd_world      *worlds[3];
    pthread_barrier_t begun; /* a thread that is not there yet would be late too */
} late;

static void late_body(int rank, void *ctx)
{
    late        *all   = ctx;
    sherd_world *world = all->worlds[rank];

    (void)pthread_barrier_wait(&all->begun);
    if (sherd_world_rank(world) == 2) {
        /* Alive, elsewhere, until it is notified that the others have given up. */
        while (sherdi_world_status(world) == SHERD_OK) {
            (void)poll(NULL, 0, 5);
        }
    }
    barrier_fails_saying(world, "(the time limit) for rank 2");
}

static void threads_rank_that_does_not_come_is_named(void)
{
    late               all;
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.timeout_ns = INT64_C(400000000);
    CHECK_OK(sherd_world_threads_with(3, &params, all.worlds));
    CHECK_INT(0, pthread_barrier_init(&all.begun, NULL, 3));
    test_threads(3, late_body, &all);
    (void)pthread_barrier_destroy(&all.begun);
    for (int rank = 0; rank < 3; rank++) {
        sherd_world_destroy(all.worlds[rank]);
    }
    params.transport = "shm";
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_threads_with(3, &params, all.worlds));
}

static void disagree_body(sherd_world *world, void *ctx)
{
    char data[16] = {0};

    (void)ctx;
    if (sherd_world_rank(world) == 0) {
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_broadcast(world, data, 16, 0));
    } else {
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_broadcast(world, data, 8, 0));
    }
    CHECK_ERROR_SAYS("disagree");
    CHECK_ERROR_SAYS("broadcast of 16 bytes");
    CHECK_ERROR_SAYS("broadcast of 8 bytes");
}

static void threads_that_disagree_are_told(void)
{
    test_world(3, disagree_body, NULL);
}

/* Rank 1 ends late what both open again, as a state on a drive that is left and resumed. */
static void ending_body(sherd_world *world, void *ctx)
{
    sherdi_ending ending;

    (void)ctx;
    CHECK_OK(sherdi_world_endings_make(world));
    sherdi_world_ending_open(world, &ending, 7);
    CHECK_OK(sherd_world_barrier(world));
    if (world->rank == 0) {
        CHECK_INT(0, sherdi_world_ending_close(world, &ending, 0, 0));
        sherdi_world_ending_open(world, &ending, 7);
        CHECK_OK(sherd_world_barrier(world));
    } else {
        CHECK_OK(sherd_world_barrier(world));
        CHECK_INT(0, sherdi_world_ending_close(world, &ending, 0, 0));
        sherdi_world_ending_open(world, &ending, 7);
    }
    CHECK_OK(sherd_world_barrier(world));
    CHECK_INT(1, sherdi_world_ending_close(world, &ending, 1, (int64_t)20 * 1000 * 1000 * 1000));
}

static void threads_ending_that_is_over_does_not_refuse_the_next(void)
{
    test_world(2, ending_body, NULL);
}

static void threads_abort_of_the_parent_reaches_its_groups(void)
{
    test_world(4, split_abort_reaches_the_groups, NULL);
}

/* ------------------------------------------------------ the simulated world -- */

static void sim_is_not_split(void)
{
    sherd_world *world = NULL;
    sherd_world *child = NULL;

    CHECK_OK(sherd_world_simulate(1, 4, &world));
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_world_split(world, 0, 0, &child));
    CHECK_ERROR_SAYS("simulate the world of the group");
    CHECK(child == NULL);
    sherd_world_destroy(world);
}

static void sim_moves_nothing_and_counts_all(void)
{
    enum { SIZE = 4096, SLICE = 1000 };

    sherd_world           *world = NULL;
    unsigned char         *big   = NULL;
    uint64_t               sent;
    uint64_t               received;
    double                 value = 0.5;
    int                    all[SIZE];
    int                    mine   = 7;
    sherdi_all_gather_args gather = {.slice_bytes = SLICE};

    CHECK_OK(sherd_world_simulate(4095, SIZE, &world));
    CHECK_INT(4095, sherd_world_rank(world));
    CHECK_INT(SIZE, sherd_world_size(world));
    CHECK((sherdi_world_caps(world) & SHERDI_WORLD_SIMULATES) != 0);
    /* More than any machine has: nothing is touched. */
    CHECK_OK(sherdi_world_alloc(world, (size_t)1 << 38, (void **)&big));
    gather.recv       = big;
    gather.send       = big + (size_t)4095 * SLICE;
    big[4095 * SLICE] = 9;
    CHECK_OK(sherdi_world_all_gather(world, &gather, NULL));
    CHECK_INT(0, big[0]);
    CHECK_INT(9, big[4095 * SLICE]);
    sherd_world_traffic(world, &sent, &received);
    CHECK_INT((uint64_t)(SIZE - 1) * SLICE, sent);
    CHECK_INT((uint64_t)(SIZE - 1) * SLICE, received);
    CHECK_OK(sherd_world_sum_f64(world, &value, 1));
    CHECK(value == 2048);
    CHECK_OK(sherdi_world_exchange(world, &mine, all, sizeof(mine), "data"));
    CHECK_INT(7, all[0]);
    CHECK_INT(7, all[SIZE - 1]);
    CHECK_OK(sherd_world_barrier(world));
    CHECK_OK(sherdi_world_overlap(world));
    sherdi_world_free(world, big);
    sherd_world_destroy(world);
}

static const test_case CASES[] = {
    CASE(self_suite_holds),
    CASE(threads_suite_holds_at_1),
    CASE(threads_suite_holds_at_2),
    CASE(threads_suite_holds_at_3),
    CASE(threads_suite_holds_at_4),
    CASE(threads_suite_holds_at_7),
    CASE(threads_suite_holds_at_8),
    CASE(threads_abort_reaches_all_with_its_reason),
    CASE(threads_abort_ends_calls_that_are_queued),
    CASE(threads_rank_that_leaves_early_is_named),
    CASE(threads_rank_that_does_not_come_is_named),
    CASE(threads_that_disagree_are_told),
    CASE(threads_ending_that_is_over_does_not_refuse_the_next),
    CASE(threads_abort_of_the_parent_reaches_its_groups),
    CASE(sim_moves_nothing_and_counts_all),
    CASE(sim_is_not_split),
};

RUN_MAIN(CASES)
