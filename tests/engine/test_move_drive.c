/* Drives that fail or are full while an engine moves: each request of a move fails in turn. Either
 * all ranks have moved, or all are in the old world as before; no file is left behind, and in both
 * cases the training has the bits of one that never moved. */
#include "base/mem.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 3
#define STEPS 4

typedef struct crew {
    rig_options       options;
    int               old_size, new_size;
    fault_kind        kind;
    int               nth;        /* 0: none */
    int               memory_nth; /* allocation of slot 0 that fails; 0: none */
    uint64_t          free_bytes; /* that the drive has left in the first try; 0: as it is */
    int               count;      /* requests of the first try */
    int               status[SLOTS];
    uint64_t          want[STEPS];
    sherd_world      *worlds[2][SLOTS];
    pthread_barrier_t all;
} crew;

/* Where the files are; NULL: in the test's folder. */
static const char *small_drive;

static const char *folder_path(void)
{
    return small_drive != NULL ? small_drive : test_scratch();
}

static void crew_declare(const crew *c, rig *r, sherd_world *world)
{
    rig_options options = c->options;

    options.accumulation = 6 / sherd_world_size(world);
    rig_open(r, world, &options);
    rig_three(r, 2000);
}

static void crew_step(crew *c, rig *r, int step)
{
    int      size = sherd_world_size(r->world);
    uint64_t got;

    r->micro = (int64_t)step * 6 / size;
    got      = rig_train(r, 6 / size).fingerprint;
    if (c->want[step] == 0) {
        CHECK(size == 1);
        c->want[step] = got;
    } else if (got != c->want[step]) {
        test_fail(__FILE__, __LINE__, "fault %d at request %d: step %d on %d ranks has other bits",
                  (int)c->kind, c->nth, step, size);
    }
}

/* Leaves this room on the small drive; 0: all that nobody has taken. */
static void drive_fill(uint64_t free_bytes)
{
    char           path[512];
    struct statvfs at;
    int            fd;

    (void)snprintf(path, sizeof(path), "%s/filler", folder_path());
    (void)unlink(path);
    CHECK(statvfs(folder_path(), &at) == 0);
    if (free_bytes > 0) {
        uint64_t has_bytes = (uint64_t)at.f_bavail * at.f_frsize;

        CHECK(has_bytes > free_bytes);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        CHECK(fd >= 0);
        CHECK(posix_fallocate(fd, 0, (off_t)(has_bytes - free_bytes)) == 0);
        CHECK(close(fd) == 0);
    }
}

static void crew_meet(crew *c)
{
    (void)pthread_barrier_wait(&c->all);
}

/* Moves with the fault; all slots get the same outcome. */
static int move_try(crew *c, rig *r, int slot, sherd_world *world)
{
    crew_meet(c);
    if (slot == 0) {
        if (c->free_bytes > 0) {
            drive_fill(c->free_bytes);
        }
        fault_arm(c->nth > 0 ? c->kind : FAULT_NONE, FAULT_ANY, c->nth, 1);
        (void)sherdi_mem_fail_nth((size_t)c->memory_nth);
    }
    crew_meet(c);
    c->status[slot] = sherd_engine_move(r->engine, world);
    (void)sherdi_mem_fail_nth(0);
    crew_meet(c);
    if (slot == 0) {
        c->count = fault_seen();
        if (c->free_bytes > 0) {
            CHECK(c->status[0] == SHERD_OK || strstr(sherd_last_error(), "bytes too few") != NULL);
            drive_fill(0);
        }
        fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        for (int s = 0; s < SLOTS; s++) {
            CHECK_INT(c->status[0] == SHERD_OK, c->status[s] == SHERD_OK);
        }
        CHECK_INT(c->status[0] == SHERD_OK ? c->new_size : c->old_size,
                  test_files_count(folder_path(), ".state"));
    }
    crew_meet(c);
    return c->status[slot] == SHERD_OK;
}

static void crew_part(int slot, void *ctx)
{
    crew        *c    = ctx;
    sherd_world *old  = slot < c->old_size ? c->worlds[0][slot] : NULL;
    sherd_world *next = slot < c->new_size ? c->worlds[1][slot] : NULL;
    int          step = 0;
    rig          r;

    if (old == NULL) {
        CHECK_OK(sherd_world_self(&old));
        crew_declare(c, &r, old);
    } else {
        crew_declare(c, &r, old);
        rig_seal(&r);
        crew_step(c, &r, step);
    }
    step++;
    if (!move_try(c, &r, slot, next)) {
        CHECK(c->status[slot] == (c->memory_nth > 0 ? SHERD_E_NOMEM : SHERD_E_IO));
        if (slot < c->old_size) {
            crew_step(c, &r, step);
        }
        step++;
        crew_meet(c);
        CHECK_OK(sherd_engine_move(r.engine, next));
    }
    sherd_world_destroy(old);
    if (next != NULL) {
        r.world = next;
        CHECK_STATUS(SHERD_E_STATE, sherd_step_undo(r.engine));
        CHECK_OK(sherd_step_discard(r.engine)); /* a read ahead may have failed */
        crew_step(c, &r, step++);
        CHECK_OK(sherd_step_undo(r.engine));
        crew_step(c, &r, step - 1);
    }
    rig_close(&r);
    sherd_world_destroy(next);
}

static void crew_run(crew *c)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.timeout_ns  = INT64_C(30000000000);
    params.cpu_threads = 1;
    CHECK(pthread_barrier_init(&c->all, NULL, SLOTS) == 0);
    CHECK_OK(sherd_world_threads_with(c->old_size, &params, c->worlds[0]));
    CHECK_OK(sherd_world_threads_with(c->new_size, &params, c->worlds[1]));
    test_threads(SLOTS, crew_part, c);
    (void)pthread_barrier_destroy(&c->all);
    CHECK_INT(0, test_files_count(folder_path(), "sherd"));
}

static void twin_train(sherd_world *world, void *ctx)
{
    crew *c = ctx;
    rig   r;

    crew_declare(c, &r, world);
    rig_seal(&r);
    for (int step = 0; step < STEPS; step++) {
        crew_step(c, &r, step);
    }
    rig_close(&r);
}

static const char *keys_write(int stage, char out[1024])
{
    (void)snprintf(out, 1024,
                   ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\", "
                   "\"nvme_path\": \"%s\"}%s%s%s",
                   folder_path(),
                   stage < 3 ? ""
                             : ", \"offload_param\": {\"device\": \"nvme\", "
                               "\"nvme_path\": \"",
                   stage < 3 ? "" : folder_path(), stage < 3 ? "" : "\", \"max_in_cpu\": 0}");
    return out;
}

/* Returns how many moves have failed. */
static int requests_fail(crew *c, fault_kind kind, int stride)
{
    int count;
    int failed = 0;

    c->nth = 0;
    crew_run(c);
    CHECK_INT(SHERD_OK, c->status[0]);
    count   = c->count;
    c->kind = kind;
    CHECK(count > 20);
    for (c->nth = 1 + stride / 2; c->nth <= count; c->nth += stride) {
        int nth = c->nth;

        crew_run(c);
        failed += c->status[0] != SHERD_OK;
        c->nth = nth;
    }
    (void)printf("  requests: %d\n", count);
    return failed;
}

static void each_request_fails(int old_size, int new_size)
{
    for (int stage = 2; stage <= 3; stage++) {
        char keys[1024];
        crew c      = {.options  = {.stage = stage,
                                    .dtype = SHERD_BF16,
                                    .clip  = 1,
                                    .zero  = keys_write(stage, keys),
                                    .top   = ", \"deterministic\": true"},
                       .old_size = old_size,
                       .new_size = new_size};
        int  stride = test_is_long() ? 1 : 4;

        test_world(1, twin_train, &c);
        for (int e = 0; e < 2; e++) {
            CHECK(setenv("SHERD_IO", e == 0 ? "io_uring" : "threads", 1) == 0);
            if (e == 1 || fault_can_inject()) {
                CHECK(requests_fail(&c, FAULT_EIO, stride) > 5);
            }
        }
        CHECK_INT(0, requests_fail(&c, FAULT_SHORT, 2 * stride));
        CHECK(unsetenv("SHERD_IO") == 0);
    }
}

static void a_request_that_fails_leaves_one_world_whole_when_ranks_leave(void)
{
    each_request_fails(3, 2);
}

static void a_request_that_fails_leaves_one_world_whole_when_ranks_come(void)
{
    each_request_fails(2, 3);
}

/* An allocation fails on slot 0, up to the first of which the move has no need. */
static void no_memory_leaves_the_old_world_whole(void)
{
    int n = 0;

    for (int size = 2; size <= 3; size++) {
        char keys[1024];
        crew c = {.options  = {.stage = 3,
                               .dtype = SHERD_BF16,
                               .zero  = keys_write(3, keys),
                               .top   = ", \"deterministic\": true"},
                  .old_size = size,
                  .new_size = 5 - size};

        test_world(1, twin_train, &c);
        for (n = 1; c.memory_nth == 0 || c.status[0] != SHERD_OK; n += test_is_long() ? 1 : 9) {
            c.memory_nth = n;
            crew_run(&c);
        }
        CHECK(n > 40);
    }
}

/* ------------------------------------------------------------------ a full drive -- */

/* Seal refuses numbers of ranks whose files do not fit next to those of others. */
static void elastic_train(sherd_world *world, void *ctx)
{
    crew       *c       = ctx;
    rig_options options = c->options;
    rig         r;

    options.top = ", \"sherd\": {\"elastic\": [1, 3]}";
    for (int is_full = 1; is_full >= 0; is_full--) {
        CHECK_OK(sherd_world_barrier(world));
        if (sherd_world_rank(world) == 0) {
            drive_fill(is_full ? c->free_bytes : 0);
        }
        CHECK_OK(sherd_world_barrier(world));
        rig_open(&r, world, &options);
        rig_three(&r, 2000);
        if (is_full) {
            CHECK_STATUS(SHERD_E_IO, sherd_engine_seal(r.engine));
            CHECK_ERROR_SAYS("sherd.elastic: while the engine moves to 1 ranks, or away");
        } else {
            CHECK_OK(sherd_engine_seal(r.engine));
        }
        rig_close(&r);
        CHECK_OK(sherd_world_barrier(world));
    }
}

static uint64_t drive_free(void)
{
    struct statvfs at;

    CHECK(statvfs(folder_path(), &at) == 0);
    return (uint64_t)at.f_bavail * at.f_frsize;
}

static void layout_measure(sherd_world *world, void *ctx)
{
    crew    *c      = ctx;
    uint64_t before = drive_free();
    rig      r;

    crew_declare(c, &r, world);
    rig_seal(&r);
    c->free_bytes = before - drive_free(); /* that one rank's files take */
    rig_close(&r);
}

/* Moves with less room than the files of the new layout take, and with enough. */
static void full_run(void)
{
    char     keys[1024];
    crew     c = {.options  = {.stage = 3,
                               .dtype = SHERD_BF16,
                               .zero  = keys_write(3, keys),
                               .top   = ", \"deterministic\": true"},
                  .old_size = 3,
                  .new_size = 2};
    uint64_t bytes;

    test_world(1, layout_measure, &c);
    bytes = c.free_bytes;
    CHECK(bytes > 100000);
    test_world(1, twin_train, &c);
    for (int quarters = 1; quarters <= 12; quarters++) {
        c.free_bytes = bytes * (uint64_t)quarters / 4;
        crew_run(&c);
        CHECK(quarters > 2 || c.status[0] == SHERD_E_IO);
        CHECK(quarters < 10 || c.status[0] == SHERD_OK);
    }
    c.free_bytes = bytes * 5 / 2; /* for one layout of two ranks, which take more than one */
    test_world(2, elastic_train, &c);
}

/* Runs in a child, which alone sees its small file system; 77: none can be mounted. */
static int full_child(void)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s/small", test_scratch());
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mkdir(path, 0700) != 0 || mount("none", path, "tmpfs", 0, "size=64m") != 0) {
        return 77;
    }
    (void)alarm(120); /* a slot that fails leaves the others at a barrier */
    small_drive = path;
    full_run();
    return 0;
}

static void a_full_drive_refuses_the_move_and_loses_nothing(void)
{
    pid_t child;
    int   status;

    (void)test_scratch();
    (void)fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        _exit(full_child());
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        test_skip("no file system can be mounted here");
    }
    CHECK(WIFEXITED(status));
    CHECK_INT(0, WEXITSTATUS(status));
}

static const test_case CASES[] = {
    CASE(a_full_drive_refuses_the_move_and_loses_nothing),
    CASE(no_memory_leaves_the_old_world_whole),
    CASE(a_request_that_fails_leaves_one_world_whole_when_ranks_leave),
    CASE(a_request_that_fails_leaves_one_world_whole_when_ranks_come),
};

RUN_MAIN(CASES)
