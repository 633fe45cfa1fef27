/* The end of a run whose state is on a drive. Its files are removed when all ranks have come to the
 * end. They stay if a rank is killed, never comes, or keeps its state; a later run can then resume
 * from them. */
#include "base/clock.h"
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ELEMS 3000
#define STEPS 3

/* The folder where the ranks of a part keep their state, the same for all. */
#define FOLDER_VARIABLE "SHERD_TEST_FOLDER"

static const char *folder(void)
{
    const char *given = getenv(FOLDER_VARIABLE);

    return given != NULL ? given : test_scratch();
}

/* Declares an engine, which is not sealed; `keys` are of offload_optimizer, NULL: in memory. */
static void engine_open(rig *r, sherd_world *world, const char *keys)
{
    char        zero[1024] = "";
    rig_options options    = {.stage = 2, .dtype = SHERD_BF16, .zero = zero};

    if (keys != NULL) {
        (void)snprintf(zero, sizeof(zero),
                       ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                       " \"durable\": false%s}",
                       folder(), keys);
    }
    rig_open(r, world, &options);
    (void)rig_unit(r, "a");
    (void)rig_param(r, 0, "a.w", ELEMS);
}

static sherd_engine_info engine_info(const rig *r)
{
    sherd_engine_info info;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    return info;
}

/* Resumes from the files, and checks that the run is at `step` with the numbers of a run in
 * memory. */
static void expect_resumed(sherd_world *world, int64_t step)
{
    rig               plain, again;
    sherd_engine_info info;

    engine_open(&plain, world, NULL);
    rig_seal(&plain);
    (void)rig_train(&plain, (int)step);
    engine_open(&again, world, ", \"resume\": true");
    rig_seal(&again);
    info = engine_info(&again);
    CHECK_INT(1, info.is_resumed);
    CHECK_INT(step, info.step);
    CHECK_INT(rig_fingerprint(&plain), rig_fingerprint(&again));
    rig_close(&again);
    rig_close(&plain);
}

/* ------------------------------------------------------------- processes -- */

static void rest(void)
{
    const struct timespec pause = {.tv_nsec = 2000000};

    (void)nanosleep(&pause, NULL);
}

/* Rank 0 ends. The last rank is killed when rank 0 has had time to remove its file. */
static void one_ends_and_one_is_killed(void)
{
    sherd_world *world;
    rig          r;
    int          rank;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    rank = sherd_world_rank(world);
    engine_open(&r, world, "");
    rig_seal(&r);
    (void)rig_train(&r, STEPS);
    CHECK_OK(sherd_world_barrier(world));
    if (rank == sherd_world_size(world) - 1) {
        ranks_note_wait("ends");
        for (int i = 0; i < 100 && test_files(folder(), ".state") == sherd_world_size(world); i++) {
            rest();
        }
        (void)raise(SIGKILL);
    }
    if (rank == 0) {
        ranks_note_leave("ends");
    }
    rig_close(&r);
    sherd_world_destroy(world);
}

static void all_end(void)
{
    sherd_world *world;
    rig          r;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    engine_open(&r, world, "");
    rig_seal(&r);
    (void)rig_train(&r, STEPS);
    rig_close(&r);
    sherd_world_destroy(world);
}

static void all_go_on(void)
{
    sherd_world *world;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    expect_resumed(world, STEPS);
    sherd_world_destroy(world);
}

static const rank_part PARTS[] = {
    PART(one_ends_and_one_is_killed),
    PART(all_end),
    PART(all_go_on),
};

/* Runs a part on processes. The ranks get the folder by the environment, from which ranks.c removes
 * what launchers set. */
static void part_run(int world_size, const char *part, int killed)
{
    rank_start starts[4];
    char       text[4][2][64];
    char       meeting[200];
    char       setting[512];

    memset(starts, 0, sizeof(starts));
    (void)snprintf(meeting, sizeof(meeting), "SHERD_RENDEZVOUS=%s", ranks_address());
    (void)snprintf(setting, sizeof(setting), FOLDER_VARIABLE "=%s", test_scratch());
    for (int r = 0; r < world_size; r++) {
        (void)snprintf(text[r][0], sizeof(text[r][0]), "SHERD_RANK=%d", r);
        (void)snprintf(text[r][1], sizeof(text[r][1]), "SHERD_WORLD_SIZE=%d", world_size);
        starts[r] = (rank_start){.part        = part,
                                 .environment = {text[r][0], text[r][1], meeting, setting},
                                 .ends        = r == killed ? RANK_IS_KILLED : RANK_PASSES};
    }
    ranks_run(starts, world_size);
}

static void case_begin(void)
{
    test_files_remove(folder(), ".state");
}

static void a_rank_killed_after_another_ended_leaves_the_run(void)
{
    for (int world_size = 2; world_size <= 3; world_size++) {
        case_begin();
        part_run(world_size, "one_ends_and_one_is_killed", world_size - 1);
        CHECK_INT(world_size, test_files(folder(), ".state"));
        part_run(world_size, "all_go_on", -1);
        CHECK_INT(world_size, test_files(folder(), ".state")); /* this run did no step */
    }
}

static void processes_that_all_end_leave_nothing(void)
{
    for (int world_size = 1; world_size <= 3; world_size++) {
        case_begin();
        part_run(world_size, "all_end", -1);
        CHECK_INT(0, test_files(folder(), ".state"));
    }
}

/* --------------------------------------------------------------- threads -- */

/* Ranks that end in different ways, with a time limit for which a test can wait. */
typedef struct ends {
    sherd_world *worlds[3];
    rig          rigs[3];
    int          is_kept;   /* rank 1 keeps its file */
    int          is_abort;  /* rank 1 gives up while the others wait */
    int          is_absent; /* rank 1 comes after the others have gone */
} ends;

static void ends_train(int rank, void *ctx)
{
    ends *e = ctx;

    engine_open(&e->rigs[rank], e->worlds[rank], "");
    rig_seal(&e->rigs[rank]);
    (void)rig_train(&e->rigs[rank], STEPS);
    CHECK_OK(sherd_world_barrier(e->worlds[rank]));
}

static void ends_close(int rank, void *ctx)
{
    ends *e = ctx;

    if (rank == 1 && e->is_absent) {
        return;
    }
    if (rank == 1 && e->is_kept) {
        CHECK_OK(sherd_engine_keep_state(e->rigs[1].engine, 1));
    }
    if (rank == 1 && e->is_abort) {
        sherd_world_abort(e->worlds[1], "the test says so");
    }
    rig_close(&e->rigs[rank]);
}

static void go_on(sherd_world *world, void *ctx)
{
    (void)ctx;
    expect_resumed(world, STEPS);
}

static void ends_run(ends *e)
{
    sherd_world_params params;

    case_begin();
    sherd_world_params_init(&params);
    params.timeout_ns = 2 * (int64_t)1000000000;
    CHECK_OK(sherd_world_threads_with(3, &params, e->worlds));
    test_threads(3, ends_train, e);
    CHECK_INT(3, test_files(folder(), ".state"));
    test_threads(3, ends_close, e);
    if (e->is_absent) {
        CHECK_INT(3, test_files(folder(), ".state"));
        rig_close(&e->rigs[1]);
    }
    for (int r = 0; r < 3; r++) {
        sherd_world_destroy(e->worlds[r]);
    }
}

static void threads_that_all_end_leave_nothing(void)
{
    ends e = {.is_kept = 0};

    ends_run(&e);
    CHECK_INT(0, test_files(folder(), ".state"));
}

static void a_rank_that_comes_too_late_keeps_as_the_others(void)
{
    ends e = {.is_absent = 1};

    ends_run(&e);
    CHECK_INT(3, test_files(folder(), ".state"));
    test_world(3, go_on, NULL);
}

static void one_rank_that_keeps_keeps_for_all(void)
{
    ends e = {.is_kept = 1};

    ends_run(&e);
    CHECK_INT(3, test_files(folder(), ".state"));
    test_world(3, go_on, NULL);
}

static void a_rank_that_gives_up_at_the_end_keeps_for_all(void)
{
    ends e = {.is_abort = 1};

    ends_run(&e);
    CHECK_INT(3, test_files(folder(), ".state"));
    test_world(3, go_on, NULL);
}

/* Rank 0 ends after an exception, while rank 1 waits for it in a call. The world has no time limit
 * of its own. */
static void end_in_the_middle(sherd_world *world, void *ctx)
{
    pthread_barrier_t *trained = ctx;
    int64_t            start_ns;
    rig                r;

    engine_open(&r, world, "");
    rig_seal(&r);
    (void)rig_train(&r, STEPS);
    (void)pthread_barrier_wait(trained);
    if (sherd_world_rank(world) == 0) {
        start_ns = sherdi_now_ns();
        rig_forward(&r, 0, SHERD_FORWARD);
        sherd_world_abort(world, "an exception");
        rig_close(&r);
        CHECK(sherdi_now_ns() - start_ns < 5 * (int64_t)1000000000);
    } else {
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
        CHECK_ERROR_SAYS("an exception");
        rig_close(&r);
    }
}

static void a_rank_that_gives_up_in_the_middle_waits_for_nobody(void)
{
    pthread_barrier_t trained;

    case_begin();
    CHECK_INT(0, pthread_barrier_init(&trained, NULL, 2));
    test_world(2, end_in_the_middle, &trained);
    (void)pthread_barrier_destroy(&trained);
    CHECK_INT(2, test_files(folder(), ".state"));
    test_world(2, go_on, NULL);
}

/* -------------------------------------------------------- several engines -- */

static void engines_in_order(sherd_world *world, void *ctx)
{
    rig one, two, open;

    (void)ctx;
    engine_open(&one, world, "");
    engine_open(&two, world, ", \"buffer_count\": 3");
    engine_open(&open, world, "");
    rig_seal(&one);
    rig_seal(&two);
    (void)rig_train(&one, 1);
    (void)rig_train(&two, 1);
    rig_close(&open); /* this engine was never sealed */
    rig_close(&two);
    rig_close(&one);
}

/* Each rank waits for the other rank's end of the same engine, and neither waits for ever. Both
 * give up their first engine before either ends its second. Without `gave_up`, a rank that gives up
 * earlier would still find the other one waiting. */
static void engines_across(sherd_world *world, void *ctx)
{
    rig                one, two;
    pthread_barrier_t *gave_up  = ctx;
    int                is_first = sherd_world_rank(world) == 0;

    engine_open(&one, world, "");
    engine_open(&two, world, "");
    rig_seal(&one);
    rig_seal(&two);
    (void)rig_train(&one, 1);
    (void)rig_train(&two, 1);
    CHECK_OK(sherd_world_barrier(world)); /* so that both begin to wait at the same time */
    rig_close(is_first ? &one : &two);
    (void)pthread_barrier_wait(gave_up);
    rig_close(is_first ? &two : &one);
}

typedef struct worlds {
    sherd_world      *worlds[2];
    pthread_barrier_t gave_up;
} worlds;

static void worlds_part(int rank, void *ctx)
{
    worlds *w = ctx;

    engines_across(w->worlds[rank], &w->gave_up);
    sherd_world_destroy(w->worlds[rank]);
}

static void engines_of_one_world_end_each_by_itself(void)
{
    worlds             w = {0};
    sherd_world_params params;

    case_begin();
    test_world(2, engines_in_order, NULL);
    CHECK_INT(0, test_files(folder(), ".state"));
    sherd_world_params_init(&params);
    params.timeout_ns = 2 * (int64_t)1000000000;
    CHECK_OK(sherd_world_threads_with(2, &params, w.worlds));
    CHECK_INT(0, pthread_barrier_init(&w.gave_up, NULL, 2));
    test_threads(2, worlds_part, &w);
    (void)pthread_barrier_destroy(&w.gave_up);
    CHECK_INT(4, test_files(folder(), ".state"));
}

/* ------------------------------------------------------- nothing was done -- */

static void train_and_keep(sherd_world *world, void *ctx)
{
    rig r;

    (void)ctx;
    engine_open(&r, world, ", \"keep\": true");
    rig_seal(&r);
    (void)rig_train(&r, STEPS);
    rig_close(&r);
}

static void look_only(sherd_world *world, void *ctx)
{
    rig r;

    (void)ctx;
    engine_open(&r, world, ", \"resume\": true");
    rig_seal(&r);
    CHECK_INT(STEPS, engine_info(&r).step);
    rig_forward(&r, 0, SHERD_EVAL);
    rig_close(&r);
}

static void go_one_further(sherd_world *world, void *ctx)
{
    rig r;

    (void)ctx;
    engine_open(&r, world, ", \"resume\": true");
    rig_seal(&r);
    r.micro = STEPS;
    (void)rig_train(&r, 1);
    rig_close(&r);
}

static void a_run_that_did_nothing_leaves_what_it_found(void)
{
    for (int world_size = 1; world_size <= 2; world_size++) {
        case_begin();
        test_world(world_size, train_and_keep, NULL);
        CHECK_INT(world_size, test_files(folder(), ".state"));
        test_world(world_size, look_only, NULL);
        CHECK_INT(world_size, test_files(folder(), ".state"));
        test_world(world_size, go_on, NULL);
        CHECK_INT(world_size, test_files(folder(), ".state"));
        test_world(world_size, go_one_further, NULL);
        CHECK_INT(0, test_files(folder(), ".state"));
    }
}

static const test_case CASES[] = {
    CASE(a_rank_killed_after_another_ended_leaves_the_run),
    CASE(processes_that_all_end_leave_nothing),
    CASE(threads_that_all_end_leave_nothing),
    CASE(a_rank_that_comes_too_late_keeps_as_the_others),
    CASE(one_rank_that_keeps_keeps_for_all),
    CASE(a_rank_that_gives_up_at_the_end_keeps_for_all),
    CASE(a_rank_that_gives_up_in_the_middle_waits_for_nobody),
    CASE(engines_of_one_world_end_each_by_itself),
    CASE(a_run_that_did_nothing_leaves_what_it_found),
};

RANKS_MAIN(CASES, PARTS)
