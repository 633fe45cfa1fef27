/* The suite of worlds over NCCL itself, on real devices, and how the others learn of a failure:
 * with a rank on each device where there are several, and with several ranks on one where NCCL is
 * 2.30 or newer. A world of one rank does not call NCCL: that is no test of it. What is around the
 * library is tested with a stand-in, too (tests/collectives/test_nccl.c). */
#include "collectives/nccl.h"
#include "collectives/world.h"
#include "tests/collectives/failures.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/world_suite.h"

#include <stdlib.h>
#include <string.h>

#define SHARES_FROM_VERSION 23000
#define MOST_RANKS          8

static void part_suite_over_nccl(void)
{
    sherd_world_params params;
    sherd_world       *world = NULL;

    sherd_world_params_init(&params);
    params.transport = "nccl";
    CHECK_OK(sherd_world_from_env(&params, &world));
    CHECK(strcmp(sherd_world_transport(world), "nccl") == 0);
    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        WORLD_SUITE[i].run(world, NULL);
    }
    sherd_world_destroy(world);
}

/* Its variables for several ranks on a device: few blocks for each, so that all of them run at
 * once, and no multicast. */
static void sharing_set(int is_on)
{
    static const char *const NAMES[][2] = {
        {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_MAX_CTAS", "4"}, {"NCCL_NVLS_ENABLE", "0"}};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        CHECK(is_on ? setenv(NAMES[i][0], NAMES[i][1], 0) == 0 : unsetenv(NAMES[i][0]) == 0);
    }
}

/* Skips where so many ranks can be no world over NCCL. */
static void ranks_need(int ranks)
{
    char why[256];
    int  devices = sherd_device_count("cuda");
    int  version = sherdi_nccl_version(why, sizeof(why));

    if (devices == 0 || version == 0) {
        test_skip("%s", devices == 0 ? sherd_last_error() : why);
    }
    sharing_set(ranks > devices);
    if (ranks > devices && version < SHARES_FROM_VERSION) {
        test_skip("%d rank%s for %d device%s, and NCCL is %s: several ranks on one need 2.30",
                  ranks, ranks == 1 ? "" : "s", devices, devices == 1 ? "" : "s",
                  sherdi_nccl_text());
    }
}

#define SUITE_AT(size)                                                                             \
    static void nccl_suite_holds_at_##size(void)                                                   \
    {                                                                                              \
        ranks_need(size);                                                                          \
        ranks_run_part(size, "part_suite_over_nccl", -1);                                          \
    }

SUITE_AT(2)
SUITE_AT(3)
SUITE_AT(4)

static void nccl_suite_holds_with_a_rank_on_each_device(void)
{
    int devices = sherd_device_count("cuda");

    if (devices < 5) {
        test_skip("there are no more than 4 devices");
    }
    ranks_need(devices < MOST_RANKS ? devices : MOST_RANKS);
    ranks_run_part(devices < MOST_RANKS ? devices : MOST_RANKS, "part_suite_over_nccl", -1);
}

#define FAILURE(name, part, killed)                                                                \
    static void nccl_##name(void)                                                                  \
    {                                                                                              \
        ranks_need(3);                                                                             \
        ranks_run_part(3, #part, killed);                                                          \
    }
FAILURES_ANYWHERE(FAILURE)
FAILURES_ALONE(FAILURE)
#define FAILURE_CASE(name, part, killed) CASE(nccl_##name),

/* The failures first: they are short, and the suites may be cut off. */
static const test_case CASES[] = {
    FAILURES_ANYWHERE(FAILURE_CASE) FAILURES_ALONE(FAILURE_CASE) CASE(nccl_suite_holds_at_2),
    CASE(nccl_suite_holds_at_4),
    CASE(nccl_suite_holds_at_3),
    CASE(nccl_suite_holds_with_a_rank_on_each_device),
};

static const rank_part PARTS[] = {
    FAILURES_ANYWHERE(FAILURE_PART) FAILURES_ALONE(FAILURE_PART) PART(part_suite_over_nccl),
};

RANKS_MAIN(CASES, PARTS)
