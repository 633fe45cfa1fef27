/* Worlds over MPI on one host: the suite, and how the others learn of a failure. */
#include "tests/collectives/failures.h"
#include "tests/collectives/ranks.h"

#define SUITE_AT(size)                                                                             \
    static void mpi_suite_holds_at_##size(void)                                                    \
    {                                                                                              \
        ranks_need_mpirun();                                                                       \
        ranks_run_mpi(size, "part_suite", -1);                                                     \
    }

SUITE_AT(1)
SUITE_AT(2)
SUITE_AT(3)
SUITE_AT(4)
SUITE_AT(7)
SUITE_AT(8)

static void mpi_rank_killed_in_barrier_is_named(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_killed_in_barrier", 2);
}

static void mpi_first_rank_killed_is_named(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_killed_first", 0);
}

static void mpi_rank_killed_while_calls_are_queued_is_named(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_killed_in_queue", 2);
}

static void mpi_rank_that_exits_without_destroy_is_named(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_exits_without_destroy", 2);
}

static void mpi_abort_reaches_all_with_its_reason(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_aborts", -1);
}

static void mpi_rank_that_leaves_early_is_named(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_first_leaves_early", -1);
}

static void mpi_world_can_be_made_again(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_created_twice", -1);
}

static const test_case CASES[] = {
    CASE(mpi_suite_holds_at_1),
    CASE(mpi_suite_holds_at_2),
    CASE(mpi_suite_holds_at_3),
    CASE(mpi_suite_holds_at_4),
    CASE(mpi_suite_holds_at_7),
    CASE(mpi_suite_holds_at_8),
    CASE(mpi_rank_killed_in_barrier_is_named),
    CASE(mpi_first_rank_killed_is_named),
    CASE(mpi_rank_killed_while_calls_are_queued_is_named),
    CASE(mpi_rank_that_exits_without_destroy_is_named),
    CASE(mpi_abort_reaches_all_with_its_reason),
    CASE(mpi_rank_that_leaves_early_is_named),
    CASE(mpi_world_can_be_made_again),
};

static const rank_part PARTS[] = {
    PART(part_suite),
    PART(part_killed_in_barrier),
    PART(part_killed_first),
    PART(part_killed_in_queue),
    PART(part_exits_without_destroy),
    PART(part_aborts),
    PART(part_first_leaves_early),
    PART(part_created_twice),
};

RANKS_MAIN(CASES, PARTS)
