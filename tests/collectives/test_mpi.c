/* Worlds over MPI on one host, in a program that does not link MPI: the suite, how the others learn
 * of a failure, and which libraries are refused. */
#include "collectives/transport.h"
#include "collectives/world.h"
#include "tests/collectives/failures.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/split_suite.h"
#include "tests/collectives/world_suite.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

#define SPLIT_FAILURE(name, part, killed)                                                          \
    static void mpi_split_##name(void)                                                             \
    {                                                                                              \
        ranks_need_mpirun();                                                                       \
        ranks_run_mpi(4, #part, killed);                                                           \
    }
SPLIT_FAILURES(SPLIT_FAILURE)
#define FAILURE_CASE(name, part, killed)       CASE(mpi_##name),
#define SPLIT_FAILURE_CASE(name, part, killed) CASE(mpi_split_##name),

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

/* A child of its own tries, since a program that has left its host's name stays outside. */
static int may_rename_host(void)
{
    int   status = 1;
    pid_t child  = fork();

    if (child == 0) {
        _exit(unshare(CLONE_NEWUTS) != 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void mpi_failure_is_told_before_the_goodbye(void)
{
    ranks_need_mpirun();
    if (!may_rename_host()) {
        test_skip("this process may not give itself another host's name (root may)");
    }
    ranks_run_mpi(3, "part_aborts_in_memory", -1);
}

static void mpi_world_can_be_made_again(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(3, "part_created_twice", -1);
}

/* -------------------------------------------------------- the library -- */

/* What mpirun would say, and no world comes of it; both words are in the sentence. */
static void library_is_refused(const char *path, const char *word, const char *other)
{
    sherd_world *world = NULL;

    CHECK_INT(0, setenv("OMPI_COMM_WORLD_SIZE", "1", 1));
    CHECK_INT(0, setenv("OMPI_COMM_WORLD_RANK", "0", 1));
    CHECK_INT(0, setenv("SHERD_MPI_LIBRARY", path, 1));
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_world_from_env(NULL, &world));
    CHECK(world == NULL);
    CHECK_ERROR_SAYS(word);
    CHECK_ERROR_SAYS(other);
    ranks_clear_environment();
}

static void mpi_library_that_is_not_there_is_named(void)
{
    library_is_refused("/nowhere/libmpi.so.40", "/nowhere/libmpi.so.40", "SHERD_MPI_LIBRARY");
}

/* other_mpi.c: a library that says `version` of itself and has nothing else. */
static const char *other_library(const char *version)
{
    const char *path = getenv("SHERD_FAKE_MPI_LIBRARY");

    if (path == NULL) {
        test_skip("SHERD_FAKE_MPI_LIBRARY, which meson test sets, is not set");
    }
    CHECK_INT(0, setenv("SHERD_FAKE_MPI", version, 1));
    return path;
}

static void mpi_library_of_another_kind_is_refused(void)
{
    library_is_refused(other_library("MPICH Version: 4.0.2\nMPICH Release date: never"),
                       "MPICH Version: 4.0.2", "Open MPI 3 to 5");
    library_is_refused(other_library("Open MPI v2.1.6, package: none"), "Open MPI v2.1.6",
                       "3 to 5");
    library_is_refused(other_library("Open MPI v17.0.0"), "Open MPI v17.0.0", "3 to 5");
}

static void mpi_library_in_part_is_refused(void)
{
    library_is_refused(other_library("Open MPI v4.1.4, package: none"), "has no MPI_", "Cancel");
}

/* None of those is in the way of the right one. */
static void mpi_library_is_found_after_a_wrong_one(void)
{
    mpi_library_of_another_kind_is_refused();
    CHECK(strncmp(sherdi_transport_library("mpi"), "Open MPI v", 10) == 0);
}

static const test_case CASES[] = {
    FAILURES_ANYWHERE(FAILURE_CASE) SPLIT_FAILURES(SPLIT_FAILURE_CASE) CASE(mpi_suite_holds_at_1),
    CASE(mpi_suite_holds_at_2),
    CASE(mpi_suite_holds_at_3),
    CASE(mpi_suite_holds_at_4),
    CASE(mpi_suite_holds_at_7),
    CASE(mpi_suite_holds_at_8),
    CASE(mpi_rank_killed_while_its_child_lives_is_named),
    CASE(mpi_rank_that_exits_without_destroy_is_named),
    CASE(mpi_rank_that_leaves_early_is_named),
    CASE(mpi_failure_is_told_before_the_goodbye),
    CASE(mpi_world_can_be_made_again),
    CASE(mpi_library_that_is_not_there_is_named),
    CASE(mpi_library_of_another_kind_is_refused),
    CASE(mpi_library_in_part_is_refused),
    CASE(mpi_library_is_found_after_a_wrong_one),
};

static const rank_part PARTS[] = {
    FAILURES_ANYWHERE(FAILURE_PART) SPLIT_FAILURES(FAILURE_PART) PART(part_suite),
    PART(part_killed_with_a_child),
    PART(part_first_killed_with_a_child),
    PART(part_exits_without_destroy),
    PART(part_first_leaves_early),
    PART(part_aborts_in_memory),
    PART(part_link_goes_down),
    PART(part_link_comes_back),
    PART(part_created_twice),
};

RANKS_MAIN(CASES, PARTS)
