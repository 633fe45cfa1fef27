/* The suite of worlds over NCCL itself, on real devices: as many ranks as there are, since NCCL wants one of its own
 * for each. What nccl.c does around the library is tested with a stand-in (tests/collectives/test_nccl.c). */
#include "tests/collectives/ranks.h"
#include "tests/collectives/world_suite.h"

#include <string.h>

static sherd_world_params over_nccl(void)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.transport = "nccl";
    params.backend   = "cuda";
    return params;
}

static void part_suite_over_nccl(void)
{
    const sherd_world_params params = over_nccl();
    sherd_world             *world  = NULL;

    CHECK_OK(sherd_world_from_env(&params, &world));
    CHECK(strcmp(sherd_world_transport(world), "nccl") == 0);
    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        WORLD_SUITE[i].run(world, NULL);
    }
    sherd_world_destroy(world);
}

/* How many ranks can be; skips where NCCL is not in this build, or its library not on this machine. */
static int ranks_possible(void)
{
    const sherd_world_params params = over_nccl();
    sherd_world             *world  = NULL;
    sherd_status             status;
    int                      devices = sherd_device_count("cuda");

    if (devices == 0) {
        test_skip("%s", sherd_last_error());
    }
    status = sherd_world_create(0, 1, NULL, &params, &world);
    if (status == SHERD_E_NOTSUP) {
        test_skip("%s", sherd_last_error());
    }
    CHECK_OK(status);
    sherd_world_destroy(world);
    return devices < 8 ? devices : 8;
}

static void nccl_suite_holds_alone(void)
{
    (void)ranks_possible();
    ranks_run_part(1, "part_suite_over_nccl", -1);
}

static void nccl_suite_holds_with_a_rank_on_each_device(void)
{
    int ranks = ranks_possible();

    if (ranks == 1) {
        test_skip("there is one device, and NCCL wants one of its own for each rank");
    }
    ranks_run_part(ranks, "part_suite_over_nccl", -1);
}

static const test_case CASES[] = {
    CASE(nccl_suite_holds_alone),
    CASE(nccl_suite_holds_with_a_rank_on_each_device),
};

static const rank_part PARTS[] = {
    PART(part_suite_over_nccl),
};

RANKS_MAIN(CASES, PARTS)
