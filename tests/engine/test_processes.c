/* The toy's training with a process for each rank, over shared memory and under mpirun: the same
 * bits as the training that knows of no ranks. */
#include "engine/run/engine_impl.h"
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include "sherd_build.h"
#ifdef TEST_EMULATED
#include "emulator.h"
#endif

#include <stdlib.h>
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

/* Rank 0 drops its window after its first acquire; the others continue until a call notifies them.
 * Gathers meet. What is queued for NCCL cannot be taken back: there all stop. */
static void stop_on_one_rank(sherd_world *world, int overlap)
{
    rig_options options = {
        .stage = 3,
        .zero  = overlap ? ", \"overlap_comm\": true, \"offload_param\": {\"device\": \"cpu\"}"
                         : ", \"overlap_comm\": false, \"offload_param\": {\"device\": "
                           "\"cpu\"}"};
    int          all_stop = strcmp(sherd_world_transport(world), "nccl") == 0;
    sherd_status status   = SHERD_OK;
    uint64_t     before;
    rig          r;

    rig_open(&r, world, &options);
    rig_three(&r, 5000);
    rig_seal(&r);
    before = rig_train(&r, 1).fingerprint;
    for (int u = 0; u < 3 && status == SHERD_OK; u++) {
        status = sherd_unit_acquire(r.engine, r.units[u], SHERD_FORWARD);
        if (all_stop || sherd_world_rank(world) == 0) {
            break;
        }
        if (status == SHERD_OK) {
            status = sherd_unit_release(r.engine, r.units[u], SHERD_FORWARD);
        }
    }
    if (all_stop) {
        CHECK_OK(status);
    } else if (sherd_world_rank(world) != 0) {
        if (status == SHERD_OK) { /* what it gathers ahead it has not waited for */
            status = sherd_world_barrier(world);
        }
        CHECK_STATUS(SHERD_E_STATE, status);
        CHECK_ERROR_SAYS("rank 0 has dropped the window");
    }
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_INT(before, rig_fingerprint(&r));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void discard_on_one_rank_reaches_all(void)
{
    sherd_world *world;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    stop_on_one_rank(world, 0);
    stop_on_one_rank(world, 1);
    sherd_world_destroy(world);
}

#ifdef TEST_EMULATED
/* What the transport takes of the device at its first calls is there before the plan is held
 * against what is free. */
static void device_memory_is_taken_at_seal(void)
{
    rig_options         options = {.stage = 3, .dtype = SHERD_BF16};
    sherd_world        *world;
    sherd_memory_report memory;
    size_t              held;
    rig                 r;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    rig_open(&r, world, &options);
    rig_three(&r, 5000);
    rig_seal(&r);
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT(memory.receive_planned, memory.receive_held);
    held = emulator_held_bytes();
    (void)rig_train(&r, 2);
    CHECK_INT(held, emulator_held_bytes());
    rig_close(&r);
    sherd_world_destroy(world);
}

/* Each rank sees one device, number 0, which is its own. */
static void own_device_is_promised_whole(void)
{
    rig_options  options = {.stage = 3, .dtype = SHERD_BF16};
    sherd_world *world;
    rig          r;

    CHECK(setenv("SHERD_EMULATOR_DEVICES", "1", 1) == 0);
    CHECK(setenv("SHERD_EMULATOR_FIRST", getenv("SHERD_RANK"), 1) == 0);
    CHECK_OK(sherd_world_from_env(NULL, &world));
    rig_open(&r, world, &options);
    rig_three(&r, 5000);
    rig_seal(&r);
    CHECK(r.engine->plan->machine.device_bytes > (size_t)15 << 30); /* of 16 GiB */
    rig_close(&r);
    sherd_world_destroy(world);
}

static void shared_memory_processes_have_devices_of_their_own(void)
{
    ranks_run_part(2, "own_device_is_promised_whole", -1);
}

static void shared_memory_processes_take_the_device_at_seal(void)
{
    ranks_run_part(2, "device_memory_is_taken_at_seal", -1);
}
#endif

static const rank_part PARTS[] = {
#ifdef TEST_EMULATED
    PART(device_memory_is_taken_at_seal),
    PART(own_device_is_promised_whole),
#endif
    PART(train_matrix),
    PART(discard_on_one_rank_reaches_all),
};

static void shared_memory_processes_are_told_of_a_discard(void)
{
    ranks_run_part(3, "discard_on_one_rank_reaches_all", -1);
}

static void mpi_processes_are_told_of_a_discard(void)
{
#ifndef SHERDI_HAVE_MPI
    test_skip("this build has no MPI");
#endif
    ranks_need_mpirun();
    ranks_run_mpi(3, "discard_on_one_rank_reaches_all", -1);
}

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
    CASE(shared_memory_processes_are_told_of_a_discard),
#ifdef TEST_EMULATED
    CASE(shared_memory_processes_take_the_device_at_seal),
    CASE(shared_memory_processes_have_devices_of_their_own),
#endif
    CASE(mpi_processes_are_told_of_a_discard),
};

RANKS_MAIN(CASES, PARTS)
