/* Worlds from a communicator of the trainer's own, in a program that links MPI: its library is the
 * one that is used. */
#include "collectives/transport.h"
#include "collectives/world.h"
#include "sherd_mpi.h"
#include "tests/collectives/ranks.h"

#include <stdlib.h>
#include <string.h>

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

/* The program's own library wins, whatever is named. */
static void part_has_its_own_library(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int  len                                         = 0;

    (void)MPI_Get_library_version(version, &len);
    version[strcspn(version, ",")] = '\0';
    CHECK_INT(0, setenv("SHERD_MPI_LIBRARY", "/nowhere/libmpi.so.40", 1));
    CHECK(strncmp(sherdi_transport_library("mpi"), version, strlen(version)) == 0);
    part_over_a_communicator();
}

static void mpi_of_the_program_is_used(void)
{
    ranks_need_mpirun();
    ranks_run_mpi(2, "part_has_its_own_library", -1);
}

static const test_case CASES[] = {
    CASE(mpi_world_stands_on_any_communicator),
    CASE(mpi_of_the_program_is_used),
};

static const rank_part PARTS[] = {
    PART(part_over_a_communicator),
    PART(part_has_its_own_library),
};

RANKS_MAIN(CASES, PARTS)
