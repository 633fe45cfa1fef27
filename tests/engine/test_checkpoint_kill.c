/* Processes that are killed at any moment while they save, save asynchronously and remove older
 * checkpoints: the latest one is whole, and so is every other, and what was left behind goes with
 * the next save. */
#include "engine/checkpoint/folder.h"
#include "sherd_tools.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const rig_options OPTIONS = {.stage = 3, .dtype = SHERD_BF16, .clip = 1};

#define KILL_RANKS 3
#define KILL_STEPS 400

typedef struct killed {
    rig_options options;
    char        dir[256];
    int         keep_last;
    uint64_t   *fingerprints; /* after each step */
    int64_t     first;        /* out: where it went on */
    int         ready;        /* the child's end of a pipe */
} killed;

static void reference_body(sherd_world *world, void *raw)
{
    killed *k = raw;
    rig     r;

    saved_open(&r, world, &k->options);
    saved_fill(&r);
    for (int s = 0; s <= KILL_STEPS; s++) {
        uint64_t fingerprint = rig_fingerprint(&r);

        if (sherd_world_rank(world) == 0) {
            k->fingerprints[s] = fingerprint;
        }
        saved_train(&r, 1);
    }
    rig_close(&r);
}

/* From the latest on: a step, a save, and so on up to KILL_STEPS, until it is killed. */
static void killed_body(sherd_world *world, void *raw)
{
    killed           *k = raw;
    sherd_save_params params;
    sherd_engine_info info;
    char              latest[SHERDI_CHECKPOINT_NAME_BYTES];
    int               is_first;
    rig               r;

    saved_open(&r, world, &k->options);
    is_first = sherdi_checkpoint_latest(k->dir, latest) != SHERD_OK;
    CHECK_OK(sherd_world_barrier(world));
    if (!is_first) {
        CHECK_OK(sherd_checkpoint_load(r.engine, k->dir, NULL, NULL));
    }
    saved_fill(&r);
    sherd_save_params_init(&params);
    params.keep_last = k->keep_last;
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    for (int64_t s = 0; s < KILL_STEPS - info.step; s++) {
        if (s == is_first) { /* there is one that must survive */
            CHECK_OK(sherd_checkpoint_wait(r.engine, NULL));
            CHECK(sherd_world_rank(world) != 0 || write(k->ready, "", 1) == 1);
        }
        saved_train(&r, 1);
        CHECK_OK(sherd_checkpoint_save(r.engine, k->dir, NULL, &params));
    }
    for (;;) {
        (void)pause();
    }
}

/* What the next process does, to its end: the latest one is whole, and so is every other; the next
 * save clears the rest. */
static void after_body(sherd_world *world, void *raw)
{
    killed           *k = raw;
    sherd_engine_info info;
    rig               r;

    saved_open(&r, world, &k->options);
    CHECK_OK(sherd_checkpoint_load(r.engine, k->dir, NULL, NULL));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK(info.step > 0 && info.step <= KILL_STEPS);
    CHECK_INT(k->fingerprints[info.step], rig_fingerprint(&r));
    CHECK_OK(sherd_checkpoint_save(r.engine, k->dir, "after", NULL));
    CHECK_OK(sherd_checkpoint_wait(r.engine, NULL));
    CHECK_INT(0, saved_left_behind(k->dir));
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        k->first = info.step;
        CHECK_OK(sherd_checkpoint_remove(k->dir, "after"));
    }
    rig_close(&r);
}

static sherd_status whole_check(void *ctx, const sherd_checkpoint_info *info)
{
    const killed *k = ctx;

    CHECK(info->is_complete);
    CHECK_INT(info->step, saved_verify(k->dir, info->tag));
    return SHERD_OK;
}

static sherd_status remove_one(void *ctx, const sherd_checkpoint_info *info)
{
    return sherd_checkpoint_remove(ctx, info->tag);
}

static void sleep_us(uint64_t us)
{
    struct timespec rest = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    (void)nanosleep(&rest, NULL);
}

/* Returns when the child is gone, killed at a moment that is drawn. */
static void one_kill(killed *k, uint64_t us)
{
    int   ends[2];
    char  byte;
    pid_t child;
    int   status;

    CHECK(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        k->ready = ends[1];
        test_world(KILL_RANKS, killed_body, k);
        _exit(1);
    }
    (void)close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1 && close(ends[0]) == 0);
    sleep_us(us);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status)) {
        test_fail(__FILE__, __LINE__, "the child ended by itself with %d", WEXITSTATUS(status));
    }
}

static void killed_at_any_moment(killed k, const char *name, int kills)
{
    static uint64_t fingerprints[KILL_STEPS + 1];
    uint64_t        seed = 20261123 + (uint64_t)k.keep_last;

    saved_need_checksums();
    k.fingerprints = fingerprints;
    (void)saved_dir(name, k.dir);
    test_world(KILL_RANKS, reference_body, &k);
    for (int i = 0; i < kills; i++) {
        one_kill(&k, test_random(&seed) % 30000);
        CHECK_OK(sherd_checkpoints_find(k.dir, whole_check, &k));
        test_world(KILL_RANKS, after_body, &k);
        if (k.first > KILL_STEPS / 2) {
            CHECK_OK(sherd_checkpoints_find(k.dir, remove_one, k.dir));
        }
    }
}

static int kills_of(int all)
{
    return test_is_long() ? all : 4;
}

static void killed_in_a_save_the_latest_is_whole(void)
{
    killed k = {.options = OPTIONS, .keep_last = 8};

    killed_at_any_moment(k, "kill-save", kills_of(200));
}

static void killed_in_an_asynchronous_save_the_latest_is_whole(void)
{
    killed k = {.options = OPTIONS, .keep_last = 3};

    k.options.top = ", \"checkpoint\": {\"async\": true}";
    killed_at_any_moment(k, "kill-async", kills_of(200));
}

static void killed_as_old_ones_are_removed_the_latest_is_whole(void)
{
    killed k = {.options = OPTIONS, .keep_last = 1};

    killed_at_any_moment(k, "kill-remove", kills_of(200));
}

static const test_case CASES[] = {
    CASE(killed_in_a_save_the_latest_is_whole),
    CASE(killed_in_an_asynchronous_save_the_latest_is_whole),
    CASE(killed_as_old_ones_are_removed_the_latest_is_whole),
};

RUN_MAIN(CASES)
