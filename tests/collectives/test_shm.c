/* Worlds of processes over shared memory: the suite, and how the others learn of a failure. */
#include "tests/collectives/failures.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/split_suite.h"
#include "tests/collectives/world_suite.h"

#define SUITE_AT(size)                                                                             \
    static void shm_suite_holds_at_##size(void)                                                    \
    {                                                                                              \
        if (!SUITE_IS_SAMPLED(size, 8)) {                                                          \
            test_need_long();                                                                      \
        }                                                                                          \
        ranks_run_part(size, "part_suite", -1);                                                    \
    }

SUITE_AT(1)
SUITE_AT(2)
SUITE_AT(3)
SUITE_AT(4)
SUITE_AT(7)
SUITE_AT(8)

#define FAILURE(name, part, killed)                                                                \
    static void shm_##name(void)                                                                   \
    {                                                                                              \
        ranks_run_part(3, #part, killed);                                                          \
    }
FAILURES_ANYWHERE(FAILURE)
FAILURES_ALONE(FAILURE)

#define SPLIT_FAILURE(name, part, killed)                                                          \
    static void shm_split_##name(void)                                                             \
    {                                                                                              \
        ranks_run_part(4, #part, killed);                                                          \
    }
SPLIT_FAILURES(SPLIT_FAILURE)
#define FAILURE_CASE(name, part, killed)       CASE(shm_##name),
#define SPLIT_FAILURE_CASE(name, part, killed) CASE(shm_split_##name),

static void shm_rank_killed_while_its_child_lives_is_named(void)
{
    ranks_run_part(3, "part_killed_with_a_child", 2);
    ranks_run_part(3, "part_first_killed_with_a_child", 0);
}

static void shm_child_that_destroys_its_copy_changes_nothing(void)
{
    ranks_run_part(2, "part_child_destroys", -1);
}

static void shm_rank_that_leaves_early_is_named(void)
{
    ranks_run_part(3, "part_leaves_early", -1);
    ranks_run_part(3, "part_first_leaves_early", -1);
}

static const test_case CASES[] = {
    FAILURES_ANYWHERE(FAILURE_CASE) FAILURES_ALONE(FAILURE_CASE) SPLIT_FAILURES(SPLIT_FAILURE_CASE)
        CASE(shm_suite_holds_at_1),
    CASE(shm_suite_holds_at_2),
    CASE(shm_suite_holds_at_3),
    CASE(shm_suite_holds_at_4),
    CASE(shm_suite_holds_at_7),
    CASE(shm_suite_holds_at_8),
    CASE(shm_rank_killed_while_its_child_lives_is_named),
    CASE(shm_child_that_destroys_its_copy_changes_nothing),
    CASE(shm_rank_that_leaves_early_is_named),
};

static const rank_part PARTS[] = {
    FAILURES_ANYWHERE(FAILURE_PART) FAILURES_ALONE(FAILURE_PART) SPLIT_FAILURES(FAILURE_PART)
        PART(part_suite),
    PART(part_killed_with_a_child),
    PART(part_first_killed_with_a_child),
    PART(part_child_destroys),
    PART(part_leaves_early),
    PART(part_first_leaves_early),
};

RANKS_MAIN(CASES, PARTS)
