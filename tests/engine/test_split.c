/* Engines on worlds that were split from another one: data-parallel groups, with ranks that hold
 * other parts of a model. What they train is what engines on worlds of that size train, to the
 * bit. */
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include "sherd_build.h"

#include <string.h>

/* An emulated device takes a hundred times as long. */
#ifdef TEST_EMULATED
#define IS_FAST 0
#else
#define IS_FAST 1
#endif

/* Ranks that hold the parts of one model. */
#define PARTS 2

static sherd_world *group_of(sherd_world *world, int color)
{
    sherd_world *group = NULL;

    CHECK_OK(sherd_world_split(world, color, sherd_world_rank(world), &group));
    return group;
}

/* Each group has a stage of its own, and none of the others' numbers. */
static void groups_train(sherd_world *world)
{
    int          part    = sherd_world_rank(world) % PARTS;
    sherd_world *group   = group_of(world, part);
    toy_options  options = {
         .stage = part == 0 ? 3 : 1, .accumulation = 2, .dtype = SHERD_BF16, .clip = 1};
    toy_result want = {0};
    toy_result got  = {0};

    toy_reference(sherd_world_size(group), &options, &want);
    toy_train(group, &options, &got);
    CHECK_INT(want.fingerprint, got.fingerprint);
    CHECK_BYTES_EQUAL(want.grad_norm, got.grad_norm, sizeof(want.grad_norm));
    sherd_world_destroy(group);
}

static void rig_start(rig *r, sherd_world *world)
{
    const rig_options options = {.stage = 3,
                                 .dtype = SHERD_BF16,
                                 .clip  = 0.5,
                                 .zero  = ", \"offload_optimizer\": {\"device\": \"cpu\"}"};

    rig_open(r, world, &options);
    rig_three(r, 3000);
    rig_seal(r);
}

static void plain_body(sherd_world *world, void *ctx)
{
    uint64_t fingerprint;
    rig      r;

    rig_start(&r, world);
    (void)rig_train(&r, 3);
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        *(uint64_t *)ctx = fingerprint;
    }
    rig_close(&r);
}

/* Of worlds of so many ranks that were not split. */
#define MOST_PLAIN 4
static uint64_t plain_runs[MOST_PLAIN + 1];

static void plain_runs_fill(void)
{
    for (int size = 1; size <= MOST_PLAIN; size++) {
        test_world(size, plain_body, &plain_runs[size]);
    }
}

/* Two engines of a rank, one on its data-parallel group and one on the ranks of its copy of the
 * model, take turns; the parent is called in between, and gone before the end. */
static void groups_train_by_turns(sherd_world **world)
{
    int          rank  = sherd_world_rank(*world);
    sherd_world *data  = group_of(*world, rank % PARTS);
    sherd_world *model = group_of(*world, rank / PARTS);
    double       sum   = 1;
    rig          on_data, on_model;

    rig_start(&on_data, data);
    rig_start(&on_model, model);
    for (int step = 0; step < 3; step++) {
        CHECK_INT(1, rig_train(&on_data, 1).was_updated);
        CHECK_INT(1, rig_train(&on_model, 1).was_updated);
        if (step == 0) {
            CHECK_OK(sherd_world_sum_f64(*world, &sum, 1));
            CHECK(sum == sherd_world_size(*world));
            sherd_world_destroy(*world);
            *world = NULL;
        }
    }
    CHECK_INT(plain_runs[sherd_world_size(data)], rig_fingerprint(&on_data));
    CHECK_INT(plain_runs[sherd_world_size(model)], rig_fingerprint(&on_model));
    sherd_world_destroy(data); /* the engines hold their own */
    sherd_world_destroy(model);
    rig_close(&on_data);
    rig_close(&on_model);
}

static void thread_body(int rank, void *ctx)
{
    sherd_world **world = &((sherd_world **)ctx)[rank];

    groups_train(*world);
    groups_train_by_turns(world);
}

static void threads_at(int world_size)
{
    sherd_world *worlds[8];

    CHECK_OK(sherd_world_threads(world_size, worlds));
    test_threads(world_size, thread_body, worlds);
}

static void groups_of_threads_train_as_worlds_of_their_size(void)
{
    plain_runs_fill();
    threads_at(4);
    if (IS_FAST) {
        threads_at(7);
        threads_at(8);
    }
}

/* What every rank of processes runs. */
static void groups_of_ranks(void)
{
    sherd_world *world;

    plain_runs_fill();
    CHECK_OK(sherd_world_from_env(NULL, &world));
    groups_train(world);
    groups_train_by_turns(&world);
}

static void groups_of_processes_train_as_worlds_of_their_size(void)
{
    ranks_run_part(4, "groups_of_ranks", -1);
    if (IS_FAST) {
        ranks_run_part(7, "groups_of_ranks", -1);
    }
    if (test_is_long()) {
        ranks_run_part(8, "groups_of_ranks", -1);
    }
}

static void groups_under_mpi_train_as_worlds_of_their_size(void)
{
#ifdef SHERDI_HAVE_MPI
    ranks_need_mpirun();
    ranks_run_mpi(4, "groups_of_ranks", -1);
    if (test_is_long()) {
        ranks_run_mpi(7, "groups_of_ranks", -1);
        ranks_run_mpi(8, "groups_of_ranks", -1);
    }
#else
    test_skip("built without MPI");
#endif
}

static const test_case CASES[] = {
    CASE(groups_of_threads_train_as_worlds_of_their_size),
    CASE(groups_of_processes_train_as_worlds_of_their_size),
    CASE(groups_under_mpi_train_as_worlds_of_their_size),
};

static const rank_part PARTS_OF_RANKS[] = {PART(groups_of_ranks)};

RANKS_MAIN(CASES, PARTS_OF_RANKS)
