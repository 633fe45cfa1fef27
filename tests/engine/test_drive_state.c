/* State on a drive that is full, or state that was deleted, damaged, undone, or left by a process
 * that was killed. The outcome is an error or a whole step, never another number. */
#include "offload/checksum.h"
#include "tests/engine/drive_rig.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEPS 3

/* ------------------------------------------------------------- full, deleted -- */

/* Sets a real limit in a child: no file may grow past 64 KiB. */
static void no_room_is_an_error_at_seal(void)
{
    pid_t child;
    int   status;

    test_files_remove(test_scratch(), ""); /* those that earlier cases left */
    child = fork();
    if (child == 0) {
        struct rlimit      limit = {65536, 65536};
        char               keys[1024];
        rig_options        options = drive_options(drive_keys("", keys));
        sherd_world       *world;
        sherd_engine      *engine;
        sherd_unit_params  unit;
        sherd_param_params param;
        sherd_unit         u;
        sherd_param        p;

        (void)signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || sherd_world_self(&world) != SHERD_OK ||
            rig_create(world, rig_json(&options), &engine) != SHERD_OK) {
            _exit(2);
        }
        sherd_unit_params_init(&unit);
        unit.name = "u";
        sherd_param_params_init(&param);
        param.name     = "w";
        param.ndim     = 1;
        param.shape[0] = 100000;
        if (sherd_unit_add(engine, &unit, &u) != SHERD_OK ||
            sherd_param_add(engine, u, &param, &p) != SHERD_OK) {
            _exit(3);
        }
        if (sherd_engine_seal(engine) != SHERD_E_IO ||
            strstr(sherd_last_error(), test_scratch()) == NULL) {
            (void)fprintf(stderr, "%s\n", sherd_last_error());
            _exit(4);
        }
        sherd_engine_destroy(engine);
        sherd_world_destroy(world);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_INT(0, WEXITSTATUS(status));
    CHECK_INT(0, test_files(test_scratch(), ""));
}

static void deleted_train(sherd_world *world, void *ctx)
{
    rig r;

    (void)ctx;
    drive_open(&r, world, "");
    rig_seal(&r);
    CHECK_INT(drive_reference[1], rig_train(&r, 1).fingerprint);
    test_files_remove(test_scratch(), "");
    for (int step = 2; step <= STEPS; step++) {
        CHECK_INT(drive_reference[step], rig_train(&r, 1).fingerprint);
    }
    rig_close(&r);
}

/* The open file continues to exist, so training goes on with the right numbers. (The log warns of
 * what is lost; this is not checked here.) */
static void a_deleted_file_trains_on(void)
{
    test_world(1, drive_reference_train, NULL);
    test_world(1, deleted_train, NULL);
    CHECK_INT(0, test_files(test_scratch(), ""));
}

/* ------------------------------------------------------------ flipped bits -- */

static void flipped_train(sherd_world *world, void *ctx)
{
    rig               r;
    sherd_step_report report;

    drive_open(&r, world, ctx);
    rig_seal(&r);
    CHECK_INT(drive_reference[1], rig_train(&r, 1).fingerprint);
    drive_bits_flip();
    CHECK_STATUS(SHERD_E_IO, drive_step_try(&r, &report));
    CHECK(strstr(sherd_last_error(), ".slots-") != NULL);
    CHECK(sherd_step_undo(r.engine) != SHERD_OK); /* both generations are damaged */
    rig_close(&r);
}

static void resume_refused(sherd_world *world, void *ctx)
{
    rig r;

    (void)ctx;
    drive_open(&r, world, ", \"resume\": true");
    CHECK_STATUS(SHERD_E_IO, sherd_engine_seal(r.engine));
    CHECK(strstr(sherd_last_error(), ".slots-") != NULL);
    rig_close(&r);
}

/* State that was filled is compared when the first update reads it; later reads are compared only
 * if verify_reads asks for it. */
static void flipped_after_the_fill(sherd_world *world, void *ctx)
{
    rig               r;
    sherd_step_report report;

    (void)ctx;
    drive_open(&r, world, "");
    rig_seal(&r);
    rig_acquire(&r, 0, SHERD_EVAL); /* this commits what was filled */
    rig_release(&r, 0, SHERD_EVAL);
    drive_bits_flip();
    CHECK_STATUS(SHERD_E_IO, drive_step_try(&r, &report));
    CHECK_ERROR_SAYS("does not hold what was written");
    rig_close(&r);
}

/* A flipped bit is found at the next read if verify_reads asks for it, and always when a run
 * resumes. */
static void a_flipped_bit_is_found(void)
{
    test_world(1, flipped_after_the_fill, NULL);
    test_files_remove(test_scratch(), "");
    test_world(1, drive_reference_train, NULL);
    test_world(1, flipped_train, ", \"verify_reads\": true");
    CHECK_INT(1, test_files(test_scratch(), ".state")); /* a run that failed leaves its state */
    test_world(1, resume_refused, NULL);
    test_files_remove(test_scratch(), "");
}

/* --------------------------------------------------------------------- undo -- */

static void undo_train(sherd_world *world, void *ctx)
{
    rig               r;
    sherd_engine_info info;
    sherd_blob_params large;
    char              blob[2];
    size_t            len = sizeof(blob);

    sherd_blob_params_init(&large);
    large.is_large = 1;
    drive_open(&r, world, ctx);
    rig_seal(&r);
    CHECK_INT(SHERD_E_STATE, sherd_step_undo(r.engine)); /* there is nothing to undo yet */
    CHECK_OK(sherd_blob_set(r.engine, "small", "a", 1, NULL));
    CHECK_OK(sherd_blob_set(r.engine, "large", "a", 1, &large));
    (void)rig_train(&r, 2);
    CHECK_OK(sherd_blob_set(r.engine, "small", "bb", 2, NULL));
    CHECK_OK(sherd_blob_set(r.engine, "large", "bb", 2, &large));
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_step_undo(r.engine));
    CHECK_OK(sherd_blob_get(r.engine, "small", blob, &len, NULL));
    CHECK_INT(1, len); /* as it was committed */
    len = sizeof(blob);
    CHECK_OK(sherd_blob_get(r.engine, "large", blob, &len, NULL));
    CHECK_INT(2, len);
    CHECK_INT(drive_reference[2], rig_fingerprint(&r));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(2, info.step);
    CHECK_INT(2, info.micro_step);
    CHECK_INT(SHERD_E_STATE, sherd_step_undo(r.engine)); /* only one step can be undone */
    r.micro = 2;
    CHECK_INT(drive_reference[3], rig_train(&r, 1).fingerprint);
    CHECK_INT(drive_reference[4], rig_train(&r, 1).fingerprint);
    CHECK_OK(sherd_step_undo(r.engine));
    r.micro = 3;
    CHECK_INT(drive_reference[4], rig_train(&r, 1).fingerprint);
    CHECK_INT(drive_reference[5], rig_train(&r, 1).fingerprint);
    rig_close(&r);
}

/* A written value leaves the state in two files. The next save brings it together, on this rank
 * over the generation before. */
static void undo_behind_a_save(sherd_world *world, void *ctx)
{
    float    value = 0.5f;
    rig      r;
    uint64_t mark;

    (void)ctx;
    drive_open(&r, world, "");
    rig_seal(&r);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_param_write(r.engine, r.params[0].handle, "exp_avg", r.params[0].elems - 1, 1,
                               &value));
    (void)rig_train(&r, 3);
    CHECK_OK(sherd_checkpoint_save(r.engine, test_scratch(), "tag", NULL));
    mark = rig_fingerprint(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step_undo(r.engine));
    CHECK_INT(mark, rig_fingerprint(&r));
    (void)rig_train(&r, 1); /* the engine is as it was */
    CHECK_OK(sherd_step_undo(r.engine));
    CHECK_INT(mark, rig_fingerprint(&r));
    rig_close(&r);
}

static void an_undo_that_one_rank_cannot_make_changes_nothing(void)
{
    if (sherdi_checksum_check_built() != SHERD_OK) {
        test_skip("%s", sherd_last_error());
    }
    test_world(2, undo_behind_a_save, NULL);
}

static void the_last_step_is_undone(void)
{
    test_world(1, drive_reference_train, NULL);
    test_world(1, undo_train, "");
    test_world(1, undo_train, ", \"gradients\": \"nvme\", \"verify_reads\": true");
}

/* On every stage, with several ranks and with small parameters that stay whole, an undo publishes
 * the values of the step before. */
static void undo_everywhere_train(sherd_world *world, void *ctx)
{
    const int  *stage = ctx;
    char        keys[1024];
    rig_options options;
    uint64_t    want[4];
    float       before[DRIVE_ELEMS];
    float       after[DRIVE_ELEMS];
    rig         r;

    (void)snprintf(keys, sizeof(keys),
                   ", \"stage3_param_persistence_threshold\": 3100, \"sub_group_size\": 2048,"
                   " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"durable\": false}",
                   test_scratch());
    options       = drive_options(keys);
    options.stage = *stage;
    rig_open(&r, world, &options);
    rig_three(&r, DRIVE_ELEMS);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        want[step] = rig_train(&r, 1).fingerprint;
        if (step == 1) {
            rig_values(&r, 0, before);
        }
    }
    CHECK_OK(sherd_step_undo(r.engine));
    CHECK_INT(want[1], rig_fingerprint(&r));
    rig_values(&r, 0, after);
    CHECK(memcmp(before, after, sizeof(before)) == 0);
    r.micro = 2;
    CHECK_INT(want[2], rig_train(&r, 1).fingerprint);
    rig_close(&r);
}

static void the_last_step_is_undone_at_every_stage(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        test_world(1, undo_everywhere_train, &stage);
        test_world(3, undo_everywhere_train, &stage);
    }
}

/* --------------------------------------------------------------------- kill -- */

#define KILLS      (test_is_long() ? 500 : 50)
#define KILL_RANKS 2
#define MOST_STEPS 400

/* Resumes from the state that is there, and trains until it is killed or has done its steps. */
typedef struct killed_run {
    int64_t  more;  /* steps to do; 0: up to MOST_STEPS, after which it waits to be killed */
    int      ready; /* a pipe, to which it writes a byte after the first step */
    int64_t  first; /* result: the step at which it began */
    uint64_t fingerprints[2]; /* results: at the beginning, at the end */
} killed_run;

static void killed_train(sherd_world *world, void *ctx)
{
    killed_run       *run = ctx;
    rig               r;
    sherd_engine_info info;
    uint64_t          fingerprint;

    drive_open(&r, world, ", \"resume\": true, \"fast_init\": true");
    rig_seal(&r);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(info.step, info.micro_step);
    r.micro     = info.micro_step;
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        run->first           = info.step;
        run->fingerprints[0] = fingerprint;
    }
    for (int64_t step = 0; step < (run->more > 0 ? run->more : MOST_STEPS - info.step); step++) {
        fingerprint = rig_train(&r, 1).fingerprint;
        if (run->more == 0 && step == 0 && sherd_world_rank(world) == 0) {
            CHECK_INT(1, write(run->ready, "", 1));
        }
    }
    while (run->more == 0) {
        (void)pause();
    }
    if (sherd_world_rank(world) == 0) {
        run->fingerprints[1] = fingerprint;
    }
    rig_close(&r);
}

static void reference_ranks_train(sherd_world *world, void *ctx)
{
    rig         r;
    rig_options options = drive_options("");
    uint64_t   *out     = ctx;

    rig_open(&r, world, &options);
    rig_three(&r, DRIVE_ELEMS);
    rig_seal(&r);
    for (int64_t step = 0; step < MOST_STEPS + 4; step++) {
        uint64_t fingerprint = step == 0 ? rig_fingerprint(&r) : rig_train(&r, 1).fingerprint;

        if (sherd_world_rank(world) == 0) {
            out[step] = fingerprint;
        }
    }
    rig_close(&r);
}

static void sleep_us(uint64_t us)
{
    struct timespec rest = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    (void)nanosleep(&rest, NULL);
}

/* Again and again a process of two ranks trains and is killed at a random moment. What it leaves is
 * a whole step, and a run that resumes from it has the numbers of a run that was never
 * disturbed. */
static void killed_at_any_moment_the_last_step_is_whole(void)
{
    static uint64_t want[MOST_STEPS + 4];
    uint64_t        seed    = 20261121;
    int             resumed = 0;

    /* those of earlier cases; this also makes the folder before the first child starts */
    test_files_remove(test_scratch(), "");
    test_world(KILL_RANKS, reference_ranks_train, want);
    for (int k = 0; k < KILLS; k++) {
        killed_run run = {.more = 0}, look = {.more = 3};
        int        ready[2], status;
        char       byte;
        pid_t      child;

        CHECK_INT(0, pipe(ready));
        run.ready = ready[1];
        child     = fork();
        if (child == 0) {
            test_world(KILL_RANKS, killed_train, &run);
            _exit(1);
        }
        (void)close(ready[1]);
        CHECK(k % 10 != 0 || read(ready[0], &byte, 1) == 1);
        /* so that a step is done, however busy the machine is */
        sleep_us(test_random(&seed) % 60000);
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        (void)close(ready[0]);
        if (k % 5 != 4) {
            continue; /* the next process resumes from what is there, and is killed too */
        }
        test_world(KILL_RANKS, killed_train, &look);
        CHECK(look.first <= MOST_STEPS);
        CHECK_INT(want[look.first], look.fingerprints[0]);
        CHECK_INT(want[look.first + 3], look.fingerprints[1]);
        resumed += look.first > 0;
        test_files_remove(test_scratch(), "");
    }
    CHECK(resumed > 0);
    (void)printf("  kills: %d\n", KILLS);
}

/* ----------------------------------------------------------------- gradients -- */

static char told[1024];

static void told_keep(void *ctx, sherd_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)snprintf(told, sizeof(told), "%s", line);
}

static void options_seal(sherd_world *world, void *ctx)
{
    rig r;

    rig_open(&r, world, ctx);
    rig_three(&r, DRIVE_ELEMS);
    CHECK_OK(sherd_engine_seal(r.engine));
    rig_close(&r);
}

static void gradients_that_stay_in_memory_are_told(void)
{
    static const struct {
        int         stage;
        const char *top, *why; /* NULL: the gradients rest on the drive */
    } TOLD[] = {{1, "", "below stage 2"},
                {2, "", NULL},
                {3, "", NULL},
                {3, ", \"deterministic\": true", "deterministic"}};

    for (size_t i = 0; i < sizeof(TOLD) / sizeof(TOLD[0]); i++) {
        char        keys[1024];
        rig_options options = drive_options(drive_keys(", \"gradients\": \"nvme\"", keys));

        options.stage = TOLD[i].stage;
        options.top   = TOLD[i].top;
        told[0]       = '\0';
        sherd_log_set(told_keep, NULL, SHERD_LOG_WARN);
        test_world(2, options_seal, &options);
        sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
        CHECK_INT(TOLD[i].why != NULL, strstr(told, "gradients \"nvme\" has no effect") != NULL);
        CHECK(TOLD[i].why == NULL || strstr(told, TOLD[i].why) != NULL);
    }
}

/* ----------------------------------------------------- a start that failed -- */

typedef struct late_start {
    int      is_resumed;
    int64_t  steps[2];    /* of each rank, when it begins */
    uint64_t fingerprint; /* of three steps */
} late_start;

/* Rank 1 has not filled everything when all ranks start; then it fills the rest, and all start
 * again. */
static void late_start_run(sherd_world *world, void *raw)
{
    late_start       *late = raw;
    uint64_t          fingerprint;
    int               rank = sherd_world_rank(world);
    sherd_engine_info info;
    rig               r;

    drive_open(&r, world, late->is_resumed ? ", \"resume\": true" : "");
    CHECK_OK(sherd_engine_seal(r.engine));
    for (int p = 0; p < r.num_params && !late->is_resumed; p++) {
        if (rank == 0 || p != 2) {
            CHECK_OK(
                sherd_param_fill(r.engine, r.params[p].handle, rig_fill, (void *)(uintptr_t)p));
        }
    }
    if (!late->is_resumed) {
        CHECK_INT(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
        if (rank == 1) {
            CHECK_OK(
                sherd_param_fill(r.engine, r.params[2].handle, rig_fill, (void *)(uintptr_t)2));
        }
    }
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    late->steps[rank] = info.step;
    if (late->is_resumed) {
        CHECK_INT(late->fingerprint, rig_fingerprint(&r));
        (void)rig_train(&r, 1); /* a run that commits nothing leaves the state */
    } else {
        (void)rig_train(&r, 3);
        fingerprint = rig_fingerprint(&r);
        if (rank == 0) {
            late->fingerprint = fingerprint;
        }
    }
    CHECK_OK(sherd_engine_keep_state(r.engine, !late->is_resumed));
    rig_close(&r);
}

static void a_start_that_failed_on_one_rank_is_resumed_at_one_step(void)
{
    late_start late = {0};

    test_world(2, late_start_run, &late);
    late.is_resumed = 1;
    test_world(2, late_start_run, &late);
    CHECK_INT(3, late.steps[0]);
    CHECK_INT(3, late.steps[1]);
}

/* ----------------------------------------------------------------- blobs -- */

enum { LONG_BLOB = 1000000 };

/* Rank 0 has a long blob of the run, rank 1 one of its own. After a resume rank 1 has both. */
static void long_blobs_run(sherd_world *world, void *raw)
{
    const int        *turn       = raw;
    int               is_resumed = *turn > 0;
    int               rank       = sherd_world_rank(world);
    sherd_blob_params own        = {.struct_size = sizeof(own), .is_per_rank = 1, .rank = -1};
    unsigned char    *data       = calloc(1, LONG_BLOB);
    size_t            len        = LONG_BLOB;
    rig               r;

    CHECK(data != NULL);
    drive_open(&r, world, is_resumed ? ", \"resume\": true" : "");
    rig_seal(&r);
    if (is_resumed) {
        CHECK_OK(sherd_blob_get(r.engine, "run", data, &len, NULL));
        CHECK_INT(LONG_BLOB, len);
        CHECK(data[0] == 7 && data[LONG_BLOB - 1] == 7);
    }
    if (is_resumed && rank == 1) {
        CHECK_OK(sherd_blob_get(r.engine, "own", data, &len, &own));
        CHECK(data[0] == 9 && data[LONG_BLOB - 1] == 9);
    }
    memset(data, rank == 0 ? 7 : 9, LONG_BLOB);
    CHECK_OK(sherd_blob_set(r.engine, rank == 0 ? "run" : "own", data, LONG_BLOB,
                            rank == 0 ? NULL : &own));
    (void)rig_train(&r, 2);
    CHECK_OK(sherd_engine_keep_state(r.engine, *turn < 2));
    rig_close(&r);
    free(data);
}

static void blobs_of_a_rank_and_of_the_run_are_kept_again_after_a_resume(void)
{
    for (int turn = 0; turn < 3; turn++) {
        test_world(2, long_blobs_run, &turn);
    }
}

/* ------------------------------------------------------- counters that are set -- */

static void counters_set_run(sherd_world *world, void *ctx)
{
    sherd_checkpoint_report saved;
    sherd_engine_info       info;
    uint64_t                fingerprint;
    char                    dir[256];
    rig                     r;

    (void)ctx;
    (void)snprintf(dir, sizeof(dir), "%s/counters", test_scratch());
    drive_open(&r, world, "");
    rig_seal(&r);
    (void)rig_train(&r, 3);
    fingerprint = rig_fingerprint(&r);
    CHECK_OK(sherd_checkpoint_save(r.engine, dir, "one", NULL));
    sherd_checkpoint_report_init(&saved);
    CHECK_OK(sherd_checkpoint_wait(r.engine, &saved));
    CHECK_INT(fingerprint, saved.fingerprint);
    rig_close(&r);

    drive_open(&r, world, "");
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(sherd_checkpoint_load(r.engine, dir, "one", NULL));
    sherd_checkpoint_report_init(&saved);
    CHECK_OK(sherd_checkpoint_wait(r.engine, &saved));
    CHECK_INT(fingerprint, saved.fingerprint);
    CHECK_OK(sherd_engine_set_step(r.engine, 100, 100));
    r.micro = 100;
    CHECK_INT(101, rig_train(&r, 1).step);
    CHECK_OK(sherd_step_undo(r.engine));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(100, info.step);
    CHECK_INT(fingerprint, rig_fingerprint(&r));
    rig_close(&r);
}

static void counters_that_are_set_behind_a_load_are_undone_to(void)
{
    saved_need_checksums();
    for (int ranks = 1; ranks <= 2; ranks++) {
        test_world(ranks, counters_set_run, NULL);
    }
}

static const test_case CASES[] = {
    CASE(no_room_is_an_error_at_seal),
    CASE(gradients_that_stay_in_memory_are_told),
    CASE(a_deleted_file_trains_on),
    CASE(a_flipped_bit_is_found),
    CASE(a_start_that_failed_on_one_rank_is_resumed_at_one_step),
    CASE(blobs_of_a_rank_and_of_the_run_are_kept_again_after_a_resume),
    CASE(the_last_step_is_undone),
    CASE(the_last_step_is_undone_at_every_stage),
    CASE(killed_at_any_moment_the_last_step_is_whole),
    /* the last: they leave folders */
    CASE(counters_that_are_set_behind_a_load_are_undone_to),
    CASE(an_undo_that_one_rank_cannot_make_changes_nothing),
};

RUN_MAIN(CASES)
