/* Ranks of a world that has failed make another one: who is there, in which order, whatever happens
 * meanwhile. */
#include "collectives/peers.h"
#include "tests/collectives/ranks.h"

#include "collectives/world_impl.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *dies_later(void *raw)
{
    (void)usleep((useconds_t)ranks_variable("TEST_DELAY"));
    (void)kill(getpid(), SIGKILL);
    return raw;
}

static int is_named(const char *variable, int rank)
{
    const char *list = getenv(variable);

    return list != NULL && strchr(list, '0' + rank) != NULL;
}

static void wait_for_failure(sherd_world *world)
{
    sherd_status status = SHERD_OK;

    while (status == SHERD_OK) {
        status = sherd_world_barrier(world);
    }
    CHECK_INT(SHERD_E_PEER_LOST, status);
}

/* A world in which each rank adds up what all had as their number before. */
static void world_check(sherd_world *world, int before, int size, int place, double sum)
{
    double value = before;

    CHECK_INT(size, sherd_world_size(world));
    CHECK_INT(place, sherd_world_rank(world));
    CHECK_OK(sherd_world_sum_f64(world, &value, 1));
    CHECK(value == sum);
    CHECK_OK(sherd_world_barrier(world));
}

/* Those in TEST_DEAD are killed after TEST_DELAY, those in TEST_LEAVING leave. */
static void survivors_meet(void)
{
    sherd_world *world;
    sherd_world *next = NULL;
    int          rank;
    int          size  = 0;
    int          place = 0;
    double       sum   = 0;
    pthread_t    thread;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    rank = sherd_world_rank(world);
    for (int r = 0; r < sherd_world_size(world); r++) {
        int stays = !is_named("TEST_DEAD", r) && !is_named("TEST_LEAVING", r);

        size += stays;
        place += stays && r < rank;
        sum += stays ? r : 0;
    }
    if (is_named("TEST_DEAD", rank)) {
        CHECK(pthread_create(&thread, NULL, dies_later, NULL) == 0);
    }
    wait_for_failure(world);
    if (is_named("TEST_DEAD", rank)) {
        (void)poll(NULL, 0, -1);
    }
    if (is_named("TEST_LEAVING", rank)) {
        CHECK_OK(sherd_world_leave(world));
        sherd_world_destroy(world);
        return;
    }
    do { /* others may be about to die */
        sherd_world_destroy(next);
        CHECK_OK(sherd_world_shrink(world, &next));
    } while (sherd_world_size(next) > size || sherd_world_barrier(next) != SHERD_OK);
    world_check(next, rank, size, place, sum);
    sherd_world_destroy(world); /* the new world does not need it */
    world_check(next, rank, size, place, sum);
    sherd_world_destroy(next);
}

/* Rank 2 comes later than the others wait. */
static void slow_is_left_behind(void)
{
    sherd_world_params params;
    sherd_world       *world;
    sherd_world       *next = NULL;
    int                rank;

    sherd_world_params_init(&params);
    params.timeout_ns = INT64_C(2000000000);
    CHECK_OK(sherd_world_from_env(&params, &world));
    rank = sherd_world_rank(world);
    if (rank == 1) {
        (void)kill(getpid(), SIGKILL);
    }
    wait_for_failure(world);
    if (rank == 2) {
        ranks_note_wait("they have met");
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_shrink(world, &next));
        CHECK_ERROR_SAYS("gone on without rank 2");
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_shrink(world, &next));
    } else {
        CHECK_OK(sherd_world_shrink(world, &next));
        world_check(next, rank, 2, rank == 0 ? 0 : 1, 3);
        ranks_note_leave("they have met");
    }
    sherd_world_destroy(next);
    sherd_world_destroy(world);
}

/* Rank 2 is busy for less than the limit, and is waited for. */
static void slow_is_waited_for(void)
{
    sherd_world *world;
    sherd_world *next = NULL;
    int          rank;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    rank = sherd_world_rank(world);
    if (rank == 0) {
        (void)kill(getpid(), SIGKILL);
    }
    wait_for_failure(world);
    if (rank == 2) {
        (void)usleep(700000);
    }
    CHECK_OK(sherd_world_shrink(world, &next));
    world_check(next, rank, 2, rank - 1, 3);
    sherd_world_destroy(next);
    sherd_world_destroy(world);
}

/* One loss after the other, down to one rank. */
static void worlds_shrink_to_one(void)
{
    sherd_world *world;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    while (sherd_world_size(world) > 1) {
        sherd_world *next = NULL;
        int          rank = sherd_world_rank(world);
        int          size = sherd_world_size(world);

        CHECK_OK(sherd_world_barrier(world));
        if (rank == size / 2) {
            (void)kill(getpid(), SIGKILL);
        }
        wait_for_failure(world);
        CHECK_OK(sherd_world_shrink(world, &next));
        CHECK_INT(size - 1, sherd_world_size(next));
        CHECK_INT(rank - (rank > size / 2), sherd_world_rank(next));
        sherd_world_destroy(world);
        world = next;
    }
    CHECK_OK(sherd_world_barrier(world));
    sherd_world_destroy(world);
}

/* Rank 2 dies while it waits in a meeting, and rank 0 leaves the meeting for that. Rank 1 has looked
 * for failures before it: it comes when the others have gone, as the last one. */
static void late_comer_fails_as_the_others(void)
{
    sherd_world *world;
    int          rank;
    pthread_t    thread;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    CHECK_OK(sherd_world_barrier(world));
    rank = sherd_world_rank(world);
    if (rank == 1) {
        ranks_note_wait("rank 0 has left the meeting");
    }
    if (rank == 2) {
        CHECK(pthread_create(&thread, NULL, dies_later, NULL) == 0);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, sherdi_peers_meet(world->peers));
    ranks_note_leave("rank 0 has left the meeting");
    sherd_world_destroy(world);
}

static const rank_part PARTS[] = {PART(survivors_meet), PART(slow_is_left_behind),
                                  PART(slow_is_waited_for), PART(worlds_shrink_to_one),
                                  PART(late_comer_fails_as_the_others)};

/* Ranks in `dead` must be killed. */
static void part_run(const char *part, int size, const char *dead, const char *leaving, int delay)
{
    rank_start starts[8];
    char       texts[8][4][64];
    char       address[300];

    (void)snprintf(address, sizeof(address), "SHERD_RENDEZVOUS=%s", ranks_address());
    for (int r = 0; r < size; r++) {
        (void)snprintf(texts[r][0], 64, "SHERD_RANK=%d", r);
        (void)snprintf(texts[r][1], 64, "TEST_DEAD=%s", dead);
        (void)snprintf(texts[r][2], 64, "TEST_LEAVING=%s", leaving);
        (void)snprintf(texts[r][3], 64, "TEST_DELAY=%d", delay);
        starts[r] =
            (rank_start){.part        = part,
                         .environment = {texts[r][0], "SHERD_SECRET=test", address, texts[r][1],
                                         texts[r][2], texts[r][3]},
                         .ends = strchr(dead, '0' + r) != NULL ? RANK_IS_KILLED : RANK_PASSES};
        starts[r].environment[6] = size == 4   ? "SHERD_WORLD_SIZE=4"
                                   : size == 5 ? "SHERD_WORLD_SIZE=5"
                                   : size == 3 ? "SHERD_WORLD_SIZE=3"
                                               : "SHERD_WORLD_SIZE=7";
    }
    ranks_run(starts, size);
}

static void those_that_live_make_a_world(void)
{
    part_run("survivors_meet", 4, "0", "", 2000);
    part_run("survivors_meet", 4, "3", "1", 2000);
    part_run("survivors_meet", 5, "13", "", 1000);
    part_run("survivors_meet", 7, "0246", "", 1000);
    part_run("survivors_meet", 3, "12", "", 1000);
}

static void deaths_at_any_moment_leave_a_world(void)
{
    uint64_t state = 7;

    for (int n = 0; n < (test_is_long() ? 60 : 6); n++) {
        part_run("survivors_meet", 5, n % 2 ? "02" : "41", n % 3 ? "" : "3",
                 (int)(test_random(&state) % 9000));
    }
}

static void who_is_slow_is_waited_for_up_to_the_limit(void)
{
    part_run("slow_is_waited_for", 3, "0", "", 0);
    part_run("slow_is_left_behind", 4, "1", "", 0);
}

static void one_after_the_other_is_lost(void)
{
    part_run("worlds_shrink_to_one", 5, "2134", "", 0);
}

static void meeting_is_complete_for_all_or_for_none(void)
{
    part_run("late_comer_fails_as_the_others", 3, "2", "", 100000);
}

static const test_case CASES[] = {
    CASE(meeting_is_complete_for_all_or_for_none), CASE(those_that_live_make_a_world),
    CASE(deaths_at_any_moment_leave_a_world), CASE(who_is_slow_is_waited_for_up_to_the_limit),
    CASE(one_after_the_other_is_lost)};

RANKS_MAIN(CASES, PARTS)
