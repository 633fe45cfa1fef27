/* Worlds over MPI on one host: the suite, and how the others learn of a failure. */
#include "sherd_mpi.h"
#include "tests/collectives/failures.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/world_suite.h"

#include <string.h>

#define SUITE_AT(size)                                                                             \
    static void mpi_suite_holds_at_##size(void)                                                    \
    {                                                                                              \
        if (!SUITE_IS_SAMPLED(size, 8)) {                                                          \
            test_need_long();                                                                      \
        }                                                                                          \
        ranks_need_mpirun();                                                                       \
        ranks_run_mpi(size, "part_suite", -1);                                                     \
    }

SUITE_AT(1)
SUITE_AT(2)
SUITE_AT(3)
SUITE_AT(4)
SUITE_AT(7)
SUITE_AT(8)

#define FAILURE(name, part, killed)                                                                \
    static void mpi_##name(void)                                                                   \
    {                                                                                              \
        ranks_need_mpirun();                                                                       \
        ranks_run_mpi(3, #part, killed);                                                           \
    }
FAILURES_ANYWHERE(FAILURE)
#define FAILURE_CASE(name, part, killed) CASE(mpi_##name),

static void mpi_rank_killed_while_its_child_lives_is_named(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_killed_with_a_child", 2);
    ranks_run_mpi(3, "part_first_killed_with_a_child", 0);
}

static void mpi_rank_that_exits_without_destroy_is_named(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_exits_without_destroy", 2);
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

/* The program's own MPI and a part of its ranks: the even ones, and the odd ones. */
static void part_over_a_communicator(void)
{
    sherd_world_params params;
    sherd_world       *world = NULL;
    MPI_Comm           half;
    int                provided;
    int                rank;
    int                size;
    double             sum = 1;

    CHECK_STATUS(SHERD_E_STATE, sherd_world_from_mpi(MPI_COMM_WORLD, NULL, &world));
    CHECK_INT(MPI_SUCCESS, MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided));
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    (void)MPI_Comm_size(half, &size);
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_world_from_mpi_handle(&half, 3, NULL, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_mpi(MPI_COMM_NULL, NULL, &world));
    sherd_world_params_init(&params);
    params.transport = "threads";
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_mpi(half, &params, &world));
    CHECK_OK(sherd_world_from_mpi(half, NULL, &world));
    CHECK_INT(rank / 2, sherd_world_rank(world));
    CHECK_INT(size, sherd_world_size(world));
    CHECK(strcmp(sherd_world_transport(world), "mpi") == 0);
    CHECK_OK(sherd_world_sum_f64(world, &sum, 1));
    CHECK(sum == size);
    sherd_world_destroy(world);
    params.transport = "shm";
    CHECK_OK(sherd_world_from_mpi(half, &params, &world));
    CHECK(strcmp(sherd_world_transport(world), "shm") == 0);
    CHECK_OK(sherd_world_barrier(world));
    sherd_world_destroy(world);
    (void)MPI_Comm_free(&half); /* still the caller's */
    (void)MPI_Finalize();
}

static void mpi_world_stands_on_any_communicator(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(5, "part_over_a_communicator", -1);
}

static const test_case CASES[] = {
    FAILURES_ANYWHERE(FAILURE_CASE) CASE(mpi_suite_holds_at_1),
    CASE(mpi_suite_holds_at_2),
    CASE(mpi_suite_holds_at_3),
    CASE(mpi_suite_holds_at_4),
    CASE(mpi_suite_holds_at_7),
    CASE(mpi_suite_holds_at_8),
    CASE(mpi_rank_killed_while_its_child_lives_is_named),
    CASE(mpi_rank_that_exits_without_destroy_is_named),
    CASE(mpi_rank_that_leaves_early_is_named),
    CASE(mpi_world_can_be_made_again),
    CASE(mpi_world_stands_on_any_communicator),
};

static const rank_part PARTS[] = {
    FAILURES_ANYWHERE(FAILURE_PART) PART(part_suite),
    PART(part_killed_with_a_child),
    PART(part_first_killed_with_a_child),
    PART(part_exits_without_destroy),
    PART(part_first_leaves_early),
    PART(part_created_twice),
    PART(part_over_a_communicator),
};

RANKS_MAIN(CASES, PARTS)
