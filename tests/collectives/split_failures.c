/* Parts of split_suite.h: ranks of four that die. */
#include "tests/collectives/split_suite.h"

#include "tests/lib/check.h"

#include <signal.h>
#include <string.h>

static sherd_world *world_open(void)
{
    sherd_world *world = NULL;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    CHECK_INT(4, sherd_world_size(world));
    return world;
}

static sherd_world *world_split(sherd_world *world, int color)
{
    sherd_world *child = NULL;

    CHECK_OK(sherd_world_split(world, color, 0, &child));
    return child;
}

/* Waits until a call fails; nothing else ends it but the time limit of the test. */
static void barriers_fail_saying(sherd_world *world, const char *words)
{
    sherd_status status = SHERD_OK;

    while (status == SHERD_OK) {
        status = sherd_world_barrier(world);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, status);
    CHECK_ERROR_SAYS(words);
}

void part_split_killed(void)
{
    sherd_world *world = world_open();
    sherd_world *child = world_split(world, sherd_world_rank(world) % 2);

    if (sherd_world_rank(world) == 3) {
        (void)raise(SIGKILL);
    }
    barriers_fail_saying(child, "is lost: its process");
    barriers_fail_saying(world, "rank 3 is lost");
    sherd_world_destroy(child);
    sherd_world_destroy(world);
}

/* Evens and odds, of which rank 3 dies; rank 1 sends its result to the evens in a third group. */
void part_split_killed_apart(void)
{
    sherd_world *world = world_open();
    int          rank  = sherd_world_rank(world);
    sherd_world *child = world_split(world, rank % 2);
    sherd_world *three = world_split(world, rank < 3 ? 0 : SHERD_SPLIT_NONE);
    double       sum   = rank;

    sherd_world_destroy(world);
    CHECK_OK(sherd_world_barrier(child));
    if (rank == 3) {
        (void)raise(SIGKILL);
    }
    if (rank == 1) {
        barriers_fail_saying(child, "rank 1 is lost: its process");
    }
    CHECK_OK(sherd_world_barrier(three));
    if (rank != 1) {
        CHECK_OK(sherd_world_sum_f64(child, &sum, 1));
        CHECK(sum == 2);
    }
    CHECK_OK(sherd_world_barrier(three));
    sherd_world_destroy(three);
    sherd_world_destroy(child);
}

void part_split_killed_within(void)
{
    sherd_world *world = world_open();
    sherd_world *child = NULL;

    if (sherd_world_rank(world) == 3) {
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST,
                 sherd_world_split(world, sherd_world_rank(world) % 2, 0, &child));
    CHECK_ERROR_SAYS("rank 3 is lost");
    CHECK(child == NULL);
    sherd_world_destroy(world);
}

void part_split_aborts(void)
{
    sherd_world *world = world_open();

    split_abort_reaches_the_groups(world, NULL);
    sherd_world_destroy(world);
}
