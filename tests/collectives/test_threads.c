/* Worlds of threads and of one rank: the suite at every size, and what threads fail with. */
#include "tests/collectives/world_suite.h"
#include "tests/lib/check.h"

static void suite_at(int world_size)
{
    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        test_world(world_size, WORLD_SUITE[i].run, NULL);
    }
}

#define SUITE_AT(size)                                                                             \
    static void threads_suite_holds_at_##size(void)                                                \
    {                                                                                              \
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

static const test_case CASES[] = {
    CASE(self_suite_holds),         CASE(threads_suite_holds_at_1), CASE(threads_suite_holds_at_2),
    CASE(threads_suite_holds_at_3), CASE(threads_suite_holds_at_4), CASE(threads_suite_holds_at_7),
    CASE(threads_suite_holds_at_8),
};

RUN_MAIN(CASES)
