/* The toy's training with a process for each rank, over shared memory and under mpirun: the same bits as
 * the training that knows of no ranks. */
#include "tests/collectives/ranks.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include "sherd_build.h"

#include <string.h>

static void expect_reference(sherd_world *world, const toy_options *options)
{
    toy_result want = {0};
    toy_result got  = {0};

    toy_reference(sherd_world_size(world), options, &want);
    toy_train(world, options, &got);
    CHECK_INT(want.fingerprint, got.fingerprint);
    CHECK_BYTES_EQUAL(want.grad_norm, got.grad_norm, sizeof(want.grad_norm));
}

/* A global batch of 12 on any of 1 to 4 ranks; the reference is that of one rank. */
static void deterministic_matrix(sherd_world *world)
{
    static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16};

    for (int d = 0; d < 2; d++) {
        toy_options options = {.accumulation = 12,
                               .dtype        = DTYPES[d],
                               .clip         = 1,
                               .top_extra    = ", \"deterministic\": true"};
        toy_result  want    = {0};

        toy_reference(1, &options, &want);
        options.accumulation = 12 / sherd_world_size(world);
        for (options.stage = 0; options.stage <= 3; options.stage++) {
            toy_result got = {0};

            toy_train(world, &options, &got);
            CHECK_INT(want.fingerprint, got.fingerprint);
        }
    }
}

/* What every rank runs. */
static void train_matrix(void)
{
    static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16};
    sherd_world             *world;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    for (int stage = 0; stage <= 3; stage++) {
        for (int accumulation = 1; accumulation <= 3; accumulation += 2) {
            for (int d = 0; d < 2; d++) {
                toy_options options = {.stage        = stage,
                                       .accumulation = accumulation,
                                       .dtype        = DTYPES[d],
                                       .clip         = 1,
                                       .is_bound     = d == 1 && stage < 3,
                                       .has_eval     = d == 0};

                expect_reference(world, &options);
            }
        }
    }
    deterministic_matrix(world);
    sherd_world_destroy(world);
}

static const rank_part PARTS[] = {
    PART(train_matrix),
};

static void shared_memory_processes_equal_unsharded(void)
{
    for (int world_size = 1; world_size <= 4; world_size++) {
        ranks_run_part(world_size, "train_matrix", -1);
    }
}

static void mpi_processes_equal_unsharded(void)
{
#ifndef SHERDI_HAVE_MPI
    test_skip("this build has no MPI");
#endif
    ranks_need_mpirun();
    for (int world_size = 1; world_size <= 4; world_size++) {
        ranks_run_mpi(world_size, "train_matrix", -1);
    }
}

static const test_case CASES[] = {
    CASE(shared_memory_processes_equal_unsharded),
    CASE(mpi_processes_equal_unsharded),
};

RANKS_MAIN(CASES, PARTS)
