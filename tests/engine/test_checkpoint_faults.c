/* Saves and loads that fail, because each request in turn fails, the file system is full, or each
 * allocation in turn finds no memory. Earlier checkpoints do not change in a byte, nothing is left
 * behind, and training can go on. */
#include "engine/checkpoint/folder.h"
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const ENGINES[] = {"io_uring", "threads"};

typedef struct job {
    rig_options options;
    char        dir[256];
    fault_kind  kind;
    int         is_load;
    int         rank;     /* the rank whose allocation fails */
    int         failed;   /* result: calls that gave an error */
    int         attempts; /* result: requests, each of which a fault was tried in */
} job;

static const char *nvme_keys(char out[1024])
{
    (void)snprintf(out, 1024,
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
                   "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   test_scratch(), test_scratch());
    return out;
}

static rig_options options_of(const char *zero)
{
    return (rig_options){.stage = 3, .dtype = SHERD_BF16, .clip = 1, .zero = zero};
}

/* ------------------------------------------------------------------ a save that fails -- */

/* What a failed save must not change, on every rank. */
typedef struct before {
    uint64_t bytes; /* hash of the folder */
    uint64_t fingerprint;
    size_t   held_bytes;
} before;

static before before_look(rig *r, const char *dir)
{
    before b;

    CHECK_OK(sherd_world_barrier(r->world));
    b = (before){saved_bytes(dir), rig_fingerprint(r), sherdi_mem_held_all(&r->engine->mem)};
    CHECK_OK(sherd_world_barrier(r->world));
    return b;
}

static void before_check(rig *r, const char *dir, const before *was)
{
    before is = before_look(r, dir);

    CHECK_INT(was->bytes, is.bytes);
    CHECK_INT(was->fingerprint, is.fingerprint);
    CHECK_INT(was->held_bytes, is.held_bytes);
    CHECK_INT(0, saved_left_behind(dir));
}

/* Saves. All ranks or none must fail; returns 1 if they failed. */
static int save_try(rig *r, const job *j, sherd_status expected)
{
    sherd_status status   = sherd_checkpoint_save(r->engine, j->dir, "b", NULL);
    double       failures = status != SHERD_OK;

    if (status != SHERD_OK) {
        CHECK_INT(expected, status);
        CHECK(strlen(sherd_last_error()) > 20);
    }
    CHECK_OK(sherd_world_sum_f64(r->world, &failures, 1));
    CHECK(failures == 0 || failures == sherd_world_size(r->world));
    return failures > 0;
}

/* Checks that a "b" that was saved is whole, and removes it, so that the next save finds the same
 * folder. */
static void save_settle(rig *r, const job *j)
{
    if (sherd_world_rank(r->world) == 0) {
        (void)saved_verify(j->dir, "b");
        CHECK_OK(sherd_checkpoint_remove(j->dir, "b"));
    }
    CHECK_OK(sherd_world_barrier(r->world));
}

/* Lets one rank arm the fault, which is armed for all threads. */
static void arm(rig *r, fault_kind kind, int nth)
{
    CHECK_OK(sherd_world_barrier(r->world));
    if (sherd_world_rank(r->world) == 0) {
        fault_arm(kind, FAULT_ANY, nth, 1);
    }
    CHECK_OK(sherd_world_barrier(r->world));
}

static int requests_count(rig *r)
{
    int seen;

    CHECK_OK(sherd_world_barrier(r->world));
    seen = fault_seen();
    CHECK_OK(sherd_world_barrier(r->world));
    return seen;
}

static void requests_body(sherd_world *world, void *raw)
{
    job   *j = raw;
    rig    r;
    before was;
    int    count;
    int    failed = 0;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    saved_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "a", NULL));
    was = before_look(&r, j->dir);
    arm(&r, FAULT_NONE, 0);
    CHECK_INT(0, save_try(&r, j, SHERD_E_IO));
    count = requests_count(&r);
    save_settle(&r, j);
    for (int nth = 1; nth <= count; nth++) {
        int is_failed;

        arm(&r, j->kind, nth);
        is_failed = save_try(&r, j, SHERD_E_IO);
        arm(&r, FAULT_NONE, 0);
        if (!is_failed) {
            save_settle(&r, j);
        }
        before_check(&r, j->dir, &was);
        failed += is_failed;
    }
    saved_train(&r, 1);
    was.fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        j->failed   = failed;
        j->attempts = count;
    }
    rig_close(&r);
}

static void loads_body(sherd_world *world, void *raw)
{
    job     *j = raw;
    rig      r;
    uint64_t want;
    int      count;
    int      failed = 0;

    saved_open(&r, world, &j->options);
    arm(&r, FAULT_NONE, 0);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "a", NULL));
    count = requests_count(&r);
    want  = rig_fingerprint(&r);
    for (int nth = 1; nth <= count; nth++) {
        sherd_status status;

        arm(&r, j->kind, nth);
        status = sherd_checkpoint_load(r.engine, j->dir, "a", NULL);
        arm(&r, FAULT_NONE, 0);
        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_IO, status);
            failed++;
            CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "a", NULL));
        }
        CHECK_INT(want, rig_fingerprint(&r));
    }
    saved_train(&r, 1);
    if (sherd_world_rank(world) == 0) {
        j->failed   = failed;
        j->attempts = count;
    }
    rig_close(&r);
}

static void every_request_fails_once(fault_kind kind, const char *zero, const char *name)
{
    saved_need_checksums();
    for (size_t e = 0; e < 2; e++) {
        job j = {.options = options_of(zero), .kind = kind};

        if (setenv("SHERD_IO", ENGINES[e], 1) != 0 || (e == 0 && !fault_can_inject())) {
            continue;
        }
        (void)saved_dir(name, j.dir);
        test_world(2, requests_body, &j);
        CHECK(j.attempts >= 2 && (kind == FAULT_SHORT) == (j.failed == 0));
        (void)printf("  saves: %d of %d failed\n", j.failed, j.attempts);
        test_world(2, loads_body, &j);
        CHECK(j.attempts >= 2 && (kind == FAULT_SHORT) == (j.failed == 0));
        (void)printf("  loads: %d of %d failed\n", j.failed, j.attempts);
    }
    (void)unsetenv("SHERD_IO");
}

static void eio_at_every_request_leaves_what_was_there(void)
{
    every_request_fails_once(FAULT_EIO, NULL, "eio");
}

static void eio_with_state_on_nvme(void)
{
    char keys[1024];

    every_request_fails_once(FAULT_EIO, nvme_keys(keys), "nvme");
}

static void enospc_at_every_request_leaves_what_was_there(void)
{
    test_need_long();
    every_request_fails_once(FAULT_ENOSPC, NULL, "enospc");
}

static void short_transfers_change_nothing(void)
{
    every_request_fails_once(FAULT_SHORT, NULL, "short");
}

/* ---------------------------------------------------------------------- memory -- */

static void memory_body(sherd_world *world, void *raw)
{
    job   *j       = raw;
    int    is_mine = sherd_world_rank(world) == j->rank;
    size_t made;
    before was;
    rig    r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    saved_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "a", NULL));
    was = before_look(&r, j->dir);
    (void)sherdi_mem_fail_nth(0);
    CHECK_INT(0, save_try(&r, j, SHERD_E_NOMEM));
    made = sherdi_mem_fail_nth(0);
    CHECK_OK(sherd_world_broadcast(world, &made, sizeof(made), j->rank));
    save_settle(&r, j);
    for (size_t nth = 1; nth <= made; nth++) {
        int is_failed;

        (void)sherdi_mem_fail_nth(is_mine ? nth : 0);
        is_failed = save_try(&r, j, SHERD_E_NOMEM);
        (void)sherdi_mem_fail_nth(0);
        if (!is_failed) {
            save_settle(&r, j);
        }
        before_check(&r, j->dir, &was);
        j->failed += is_mine && is_failed;
    }
    saved_train(&r, 1);
    rig_close(&r);
}

static void load_memory_body(sherd_world *world, void *raw)
{
    job     *j       = raw;
    int      is_mine = sherd_world_rank(world) == j->rank;
    size_t   made;
    size_t   held;
    uint64_t want;
    rig      r;

    saved_open(&r, world, &j->options);
    (void)sherdi_mem_fail_nth(0);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "a", NULL));
    made = sherdi_mem_fail_nth(0);
    CHECK_OK(sherd_world_broadcast(world, &made, sizeof(made), j->rank));
    want = rig_fingerprint(&r);
    held = sherdi_mem_held_all(&r.engine->mem);
    for (size_t nth = 1; nth <= made; nth++) {
        sherd_status status;

        (void)sherdi_mem_fail_nth(is_mine ? nth : 0);
        status = sherd_checkpoint_load(r.engine, j->dir, "a", NULL);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_NOMEM, status);
            j->failed += is_mine;
            CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "a", NULL));
        }
        CHECK_INT(held, sherdi_mem_held_all(&r.engine->mem));
        CHECK_INT(want, rig_fingerprint(&r));
    }
    rig_close(&r);
}

static void every_allocation_fails_once(void)
{
    saved_need_checksums();
    for (int rank = 0; rank < 2; rank++) {
        job j = {.options = options_of(NULL), .rank = rank};

        (void)saved_dir(rank == 0 ? "memory0" : "memory1", j.dir);
        test_world(2, memory_body, &j);
        CHECK(j.failed > 20);
        j.failed = 0;
        test_world(2, load_memory_body, &j);
        CHECK(j.failed > 20);
    }
}

/* -------------------------------------------------------------------- a full disk -- */

/* Makes a file that leaves `free_bytes` bytes of the file system free. */
static void fill_up(const char *folder, uint64_t free_bytes)
{
    char           path[512];
    struct statvfs at;
    int            fd;

    (void)snprintf(path, sizeof(path), "%s/filler", folder);
    (void)unlink(path);
    CHECK(statvfs(folder, &at) == 0);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    if ((uint64_t)at.f_bavail * at.f_frsize > free_bytes) {
        CHECK(posix_fallocate(fd, 0, (off_t)((uint64_t)at.f_bavail * at.f_frsize - free_bytes)) ==
              0);
    }
    CHECK(close(fd) == 0);
}

/* Returns the bytes that this rank's data takes on the drive. */
static uint64_t data_pages_bytes(const char *dir)
{
    struct stat at;
    char        path[512];

    (void)snprintf(path, sizeof(path), "%s/a/rank-00000-of-00001.safetensors", dir);
    CHECK(stat(path, &at) == 0);
    return ((uint64_t)at.st_size + 4095) / 4096 * 4096;
}

/* Removes the new checkpoint, which is complete if only DIR/latest could not be written. */
static void complete_remove(const char *dir)
{
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/b", dir);
    if (sherdi_checkpoint_has(path)) {
        CHECK_INT(1, saved_verify(dir, "b"));
        CHECK_OK(sherd_checkpoint_remove(dir, "b"));
    }
}

/* Begins with one page too few for the data and adds a page each time, until all can be saved. In
 * between the write of the manifest fails, then that of DIR/latest. */
static void full_body(sherd_world *world, void *raw)
{
    job     *j = raw;
    char     above[256];
    rig      r;
    before   was;
    uint64_t need;
    int      is_saved = 0;

    (void)snprintf(above, sizeof(above), "%s", j->dir);
    (void)snprintf(j->dir, sizeof(j->dir), "%.250s/c", above);
    saved_open(&r, world, &j->options);
    saved_fill(&r);
    saved_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "a", NULL));
    need = data_pages_bytes(j->dir);
    was  = before_look(&r, j->dir);
    for (uint64_t more = 0; more < 12 && !is_saved; more++) {
        fill_up(above, need - 4096 + more * 4096);
        is_saved = !save_try(&r, j, SHERD_E_IO);
        if (!is_saved) {
            j->failed++;
            complete_remove(j->dir);
            before_check(&r, j->dir, &was);
        }
    }
    CHECK(is_saved && j->failed > 1);
    CHECK_INT(1, saved_verify(j->dir, NULL));
    saved_train(&r, 1);
    rig_close(&r);
}

static uint64_t free_bytes_of(const char *folder)
{
    struct statvfs at;

    CHECK(statvfs(folder, &at) == 0);
    return (uint64_t)at.f_bavail * at.f_frsize;
}

/* There is room for the next slot file of one rank and not of two. No rank keeps its state then,
 * and no space is taken. */
static void full_for_one_body(sherd_world *world, void *raw)
{
    job     *j = raw;
    char     dir[256];
    rig      r;
    before   was;
    size_t   set_bytes; /* without its spare */
    uint64_t was_free;
    int      rank = sherd_world_rank(world);
    job      mine = *j;

    (void)snprintf(dir, sizeof(dir), "%.250s/c", j->dir);
    (void)snprintf(mine.dir, sizeof(mine.dir), "%s", dir);
    saved_open(&r, world, &j->options);
    saved_fill(&r);
    saved_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, dir, "a", NULL));
    saved_train(&r, 1);
    set_bytes = r.engine->plan->nvme_bytes[0] / 2;
    CHECK(set_bytes > 0);
    if (rank == 0) {
        fill_up(j->dir, set_bytes * 3 / 2);
    }
    was      = before_look(&r, dir);
    was_free = free_bytes_of(j->dir);
    CHECK_INT(1, save_try(&r, &mine, SHERD_E_IO));
    before_check(&r, dir, &was);
    CHECK_INT(was_free, free_bytes_of(j->dir));
    CHECK_OK(sherd_world_barrier(world));
    if (rank == 0) {
        fill_up(j->dir, set_bytes * 3);
    }
    CHECK_OK(sherd_world_barrier(world));
    CHECK_INT(0, save_try(&r, &mine, SHERD_E_IO));
    saved_train(&r, 1);
    rig_close(&r);
}

/* Mounts a small file system, in a child so that only the child sees it. Returns 77 if that is not
 * possible. */
static int small_drive_make(const char *dir)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mkdir(dir, 0700) == 0 && mount("none", dir, "tmpfs", 0, "size=16m") == 0
               ? 0
               : 77;
}

static int full_child(job *j)
{
    int failed = small_drive_make(j->dir);

    if (failed == 0) {
        test_world(1, full_body, j);
    }
    return failed;
}

static int full_for_one_child(job *j)
{
    char keys[1024];
    int  failed = small_drive_make(j->dir);

    (void)snprintf(keys, sizeof(keys),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   j->dir);
    j->options.zero = keys;
    if (failed == 0) {
        test_world(2, full_for_one_body, j);
    }
    j->options.zero = NULL;
    return failed;
}

static void child_of(int (*run)(job *j), job *j)
{
    pid_t child = fork();
    int   status;

    if (child == 0) {
        _exit(run(j));
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        test_skip("no file system can be mounted here");
    }
    CHECK(WIFEXITED(status));
    CHECK_INT(0, WEXITSTATUS(status));
}

static void a_full_disk_leaves_what_was_there(void)
{
    job j = {.options = options_of(NULL)};

    saved_need_checksums();
    (void)saved_dir("full", j.dir);
    child_of(full_child, &j);
}

static void room_for_one_ranks_state_keeps_nobodys(void)
{
    job j = {.options = options_of(NULL)};

    saved_need_checksums();
    (void)saved_dir("one", j.dir);
    child_of(full_for_one_child, &j);
}

static const test_case CASES[] = {
    CASE(eio_at_every_request_leaves_what_was_there),
    CASE(eio_with_state_on_nvme),
    CASE(enospc_at_every_request_leaves_what_was_there),
    CASE(short_transfers_change_nothing),
    CASE(every_allocation_fails_once),
    CASE(a_full_disk_leaves_what_was_there),
    CASE(room_for_one_ranks_state_keeps_nobodys),
};

RUN_MAIN(CASES)
