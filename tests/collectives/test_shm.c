/* Worlds of processes over shared memory: the suite, and how the others learn of a failure. */
#include "tests/collectives/failures.h"
#include "tests/collectives/ranks.h"
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

static void shm_rank_killed_in_barrier_is_named(void)
{
    ranks_run_part(3, "part_killed_in_barrier", 2);
}

static void shm_first_rank_killed_is_named(void)
{
    ranks_run_part(3, "part_killed_first", 0);
}

static void shm_rank_killed_while_its_child_lives_is_named(void)
{
    ranks_run_part(3, "part_killed_with_a_child", 2);
    ranks_run_part(3, "part_first_killed_with_a_child", 0);
}

static void shm_child_that_destroys_its_copy_changes_nothing(void)
{
    ranks_run_part(2, "part_child_destroys", -1);
}

static void shm_rank_killed_while_calls_are_queued_is_named(void)
{
    ranks_run_part(3, "part_killed_in_queue", 2);
}

static void shm_rank_killed_in_all_reduce_is_named(void)
{
    ranks_run_part(3, "part_killed_in_all_reduce", 2);
}

static void shm_rank_that_exits_without_destroy_is_named(void)
{
    ranks_run_part(3, "part_exits_without_destroy", -1);
}

static void shm_abort_reaches_all_with_its_reason(void)
{
    ranks_run_part(3, "part_aborts", -1);
}

static void shm_rank_that_leaves_early_is_named(void)
{
    ranks_run_part(3, "part_leaves_early", -1);
    ranks_run_part(3, "part_first_leaves_early", -1);
}

static void shm_rank_that_does_not_come_is_named(void)
{
    ranks_run_part(3, "part_does_not_come", -1);
}

static void shm_ranks_that_disagree_are_told(void)
{
    ranks_run_part(3, "part_disagrees", -1);
}

static void shm_world_can_be_made_again_at_the_same_place(void)
{
    ranks_run_part(3, "part_created_twice", -1);
}

static const test_case CASES[] = {
    CASE(shm_suite_holds_at_1),
    CASE(shm_suite_holds_at_2),
    CASE(shm_suite_holds_at_3),
    CASE(shm_suite_holds_at_4),
    CASE(shm_suite_holds_at_7),
    CASE(shm_suite_holds_at_8),
    CASE(shm_rank_killed_in_barrier_is_named),
    CASE(shm_first_rank_killed_is_named),
    CASE(shm_rank_killed_while_its_child_lives_is_named),
    CASE(shm_child_that_destroys_its_copy_changes_nothing),
    CASE(shm_rank_killed_while_calls_are_queued_is_named),
    CASE(shm_rank_killed_in_all_reduce_is_named),
    CASE(shm_rank_that_exits_without_destroy_is_named),
    CASE(shm_abort_reaches_all_with_its_reason),
    CASE(shm_rank_that_leaves_early_is_named),
    CASE(shm_rank_that_does_not_come_is_named),
    CASE(shm_ranks_that_disagree_are_told),
    CASE(shm_world_can_be_made_again_at_the_same_place),
};

static const rank_part PARTS[] = {
    PART(part_suite),
    PART(part_killed_in_barrier),
    PART(part_killed_first),
    PART(part_killed_with_a_child),
    PART(part_first_killed_with_a_child),
    PART(part_child_destroys),
    PART(part_killed_in_queue),
    PART(part_killed_in_all_reduce),
    PART(part_exits_without_destroy),
    PART(part_aborts),
    PART(part_leaves_early),
    PART(part_first_leaves_early),
    PART(part_does_not_come),
    PART(part_disagrees),
    PART(part_created_twice),
};

RANKS_MAIN(CASES, PARTS)
